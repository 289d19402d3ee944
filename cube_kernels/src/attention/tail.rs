//! The merge inside the split kernel: the last cube of a group of heads to finish adds up the splits.
//!
//! Saves a launch per layer where `sync_storage` orders memory between cubes. No cube waits for another.

use cubecl::prelude::*;

use super::merge::{merge_scale, merge_weights};
use super::spec::Blueprint;

/// Loads that one unit has under way at once.
const IN_FLIGHT: usize = 32;

/// Every cube that wrote a partial result calls this; `counters` (one per group of heads) is 0 before and after.
#[cube]
pub(super) fn merge_if_last(
    partial: &mut [f32],
    stats: &mut [f32],
    counters: &mut [Atomic<u32>],
    out: &mut [f32],
    live: u32,
    #[comptime] bp: Blueprint,
) {
    let mut arrived = Shared::<u32>::new();
    // Release this cube's results, then acquire those of all that came before.
    sync_storage();
    if UNIT_POS == 0 {
        *arrived = counters[CUBE_POS_Y as usize].fetch_add(1u32);
    }
    sync_storage();
    if *arrived + 1u32 == live + comptime!(u32::from(bp.owns_kv)) {
        if UNIT_POS == 0 {
            counters[CUBE_POS_Y as usize].store(0u32);
        }
        merge_group(partial, stats, out, live, bp);
    }
}

#[cube]
fn merge_group(partial: &mut [f32], stats: &mut [f32], out: &mut [f32], live: u32, #[comptime] bp: Blueprint) {
    let units = comptime!(bp.tuning.units);
    let heads = comptime!(bp.heads_pow2());
    let d = comptime!(bp.head_dim);
    let partials = comptime!(bp.partials());
    let all = comptime!(bp.tuning.group * bp.head_dim);
    let outs = comptime!(all.div_ceil(units));
    let batch = comptime!((IN_FLIGHT / outs).max(1));
    let first_head = CUBE_POS_Y as usize * comptime!(bp.tuning.group);
    let mut weights = Shared::<[f32]>::new_slice(comptime!(heads * partials));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(2 * units));
    merge_weights(&*stats, first_head, live, &mut weights, &mut sums, units, heads, bp);
    let mut acc = Array::<f32>::new(outs);
    let unroll = comptime!(bp.tuning.unroll);
    #[unroll(unroll)]
    for i in 0..outs {
        acc[i] = 0.0f32;
        if comptime!(bp.owns_kv) {
            let at = (UNIT_POS as usize + i * units) % all;
            let newest = (at / d) * partials + comptime!(bp.tuning.splits);
            acc[i] = weights[newest] * partial[(first_head * partials + newest) * d + at % d];
        }
    }
    let mut split = 0u32;
    while split < live {
        let mut loaded = Array::<f32>::new(comptime!(batch * outs));
        #[unroll(unroll)]
        for b in 0..batch {
            let from = min(split + b as u32, live - 1u32) as usize;
            #[unroll(unroll)]
            for i in 0..outs {
                let at = (UNIT_POS as usize + i * units) % all;
                let row = (first_head + at / d) * partials + from;
                loaded[b * outs + i] = partial[row * d + at % d];
            }
        }
        #[unroll(unroll)]
        for b in 0..batch {
            let from = min(split + b as u32, live - 1u32) as usize;
            let counts = (split + b as u32) < live;
            #[unroll(unroll)]
            for i in 0..outs {
                let at = (UNIT_POS as usize + i * units) % all;
                let weight = select(counts, weights[(at / d) * partials + from], 0.0f32);
                acc[i] = fma(weight, loaded[b * outs + i], acc[i]);
            }
        }
        split += comptime!(batch as u32);
    }
    #[unroll(unroll)]
    for i in 0..outs {
        let at = UNIT_POS as usize + i * units;
        if at < all {
            out[first_head * d + at] = acc[i] * merge_scale(&sums, at / d, units, heads, bp);
        }
    }
}
