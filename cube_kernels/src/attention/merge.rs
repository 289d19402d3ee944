//! The merge kernel: adds up the splits of one head, each by its share of the softmax.

use cubecl::prelude::*;

use super::kernel::{held_keys, keys_per_split};
use super::lanes::{group_max, group_sum};
use super::prologue::{F4, NONE, UNROLLED_PARTS};
use super::spec::Blueprint;
use crate::math::exp;
use crate::overlap::{after_wait, release_next, wait_for_previous};
use crate::state::POSITION;

/// Splits that have keys.
#[cube]
pub(super) fn live_splits(position: u32, slots: u32, #[comptime] bp: Blueprint) -> u32 {
    let held = held_keys(position, slots, bp);
    let per = keys_per_split(held, bp);
    (held + per - 1u32) / per
}

#[cube]
fn is_live(split: usize, live: u32, #[comptime] bp: Blueprint) -> bool {
    let split = split as u32;
    if comptime!(bp.owns_kv) { split < live || split == comptime!(bp.tuning.splits as u32) } else { split < live }
}

/// Leaves the weight of each partial result of the `heads` heads from `first_head` on in `weights` (`[heads, partials]`, 0
/// for those without keys) and what [`merge_scale`] needs in `sums`: out = scale · Σ weights[s]·partial[s].
///
/// For any cube of `units` units, all of which must call it: two barriers inside. `sums` has 2·`units` elements; `heads` is
/// a power of two.
#[cube]
pub fn merge_weights(
    stats: &[f32],
    first_head: usize,
    live: u32,
    weights: &mut Shared<[f32]>,
    sums: &mut Shared<[f32]>,
    #[comptime] units: usize,
    #[comptime] heads: usize,
    #[comptime] bp: Blueprint,
) {
    let partials = comptime!(bp.partials());
    let across = comptime!(units / heads);
    let steps = comptime!(partials.div_ceil(across));
    let reach = comptime!(bp.reach(across));
    let parts = comptime!(across / reach);
    let unit = UNIT_POS as usize;
    let head = unit / across;
    let mut score = Array::<f32>::new(steps);
    let mut total = Array::<f32>::new(steps);
    let mut most = f32::new(NONE);
    #[unroll]
    for i in 0..steps {
        let split = unit % across + comptime!(i * across);
        let exists = split < partials && (heads == 1 || head < comptime!(bp.tuning.group));
        let at = 2 * ((first_head + select(exists, head as u32, 0u32) as usize) * partials + split % partials);
        let counts = exists && is_live(split, live, bp);
        score[i] = select(counts, stats[at], NONE);
        total[i] = select(counts, stats[at + 1], 0.0f32);
        most = max(most, score[i]);
    }
    most = group_max(most, reach);
    if unit % reach == 0 {
        sums[unit / reach] = most;
    }
    sync_cube();
    #[unroll(parts <= UNROLLED_PARTS)]
    for p in 0..parts {
        most = max(most, sums[head * parts + p]);
    }
    let mut sum = 0.0f32;
    #[unroll]
    for i in 0..steps {
        let split = unit % across + comptime!(i * across);
        let weight = exp(score[i] - most);
        sum = fma(weight, total[i], sum);
        if split < partials {
            weights[head * partials + split] = weight;
        }
    }
    sum = group_sum(sum, reach);
    if unit % reach == 0 {
        sums[units + unit / reach] = sum;
    }
    sync_cube();
}

/// What the weighted sum of the `head`-th head of [`merge_weights`] is to be multiplied by.
#[cube]
pub fn merge_scale(
    sums: &Shared<[f32]>,
    head: usize,
    #[comptime] units: usize,
    #[comptime] heads: usize,
    #[comptime] bp: Blueprint,
) -> f32 {
    let across = comptime!(units / heads);
    let parts = comptime!(across / bp.reach(across));
    let mut sum = 0.0f32;
    #[unroll(parts <= UNROLLED_PARTS)]
    for p in 0..parts {
        sum += sums[units + head * parts + p];
    }
    1.0f32 / sum
}

/// Grid: [D / merge_dims, H]. Writes out [H, D].
#[cube(launch_unchecked)]
pub(super) fn attention_merge_kernel(
    partial: &mut [F4],
    stats: &mut [f32],
    state: &[u32],
    out: &mut [F4],
    slots: u32,
    #[comptime] units: usize,
    #[comptime] bp: Blueprint,
) {
    let columns = comptime!(bp.tuning.merge_dims / 4);
    let rows = comptime!(units / columns);
    let steps = comptime!(bp.partials().div_ceil(rows));
    let vectors = comptime!(bp.head_dim / 4);
    let head = CUBE_POS_Y as usize;
    let row = UNIT_POS as usize / columns;
    let column = UNIT_POS as usize % columns;
    let at = CUBE_POS_X as usize * columns + column;
    let live = live_splits(state[POSITION], slots, bp);
    wait_for_previous(comptime!(bp.overlaps));
    after_wait(partial, slots == 0u32, comptime!(bp.overlaps));
    after_wait(stats, slots == 0u32, comptime!(bp.overlaps));
    let mut loaded = Array::<F4>::new(steps);
    // Partial results without keys were never written: read one that was, and weigh it 0.
    let always = comptime!(if bp.owns_kv { bp.tuning.splits } else { 0 });
    #[unroll]
    for i in 0..steps {
        let split = row + comptime!(i * rows);
        let from = select(is_live(split, live, bp), split as u32, comptime!(always as u32)) as usize;
        loaded[i] = partial[(head * comptime!(bp.partials()) + from) * vectors + at];
    }
    let mut weights = Shared::<[f32]>::new_slice(comptime!(bp.partials()));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(2 * units));
    let mut added = Shared::<[F4]>::new_slice(units);
    merge_weights(&*stats, head, live, &mut weights, &mut sums, units, 1usize, bp);
    release_next(comptime!(bp.overlaps));
    let mut acc = F4::new(0.0f32);
    #[unroll]
    for i in 0..steps {
        let split = row + comptime!(i * rows);
        let inside = split < comptime!(bp.partials());
        let weight = select(inside, weights[split % comptime!(bp.partials())], 0.0f32);
        acc += loaded[i] * F4::new(weight);
    }
    added[UNIT_POS as usize] = acc;
    sync_cube();
    if row == 0 {
        #[unroll(rows <= UNROLLED_PARTS)]
        for r in 1..rows {
            acc += added[column + r * columns];
        }
        out[head * vectors + at] = acc * F4::new(merge_scale(&sums, 0usize, units, 1usize, bp));
    }
}
