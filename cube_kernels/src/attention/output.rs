//! The ends of the split kernel: a split's partial result, and the new token's.

use cubecl::prelude::*;

use super::kernel::{Places, query};
use super::lanes::group_sum;
use super::prologue::{F4, U4, UNROLLED_PARTS, new_key_value, write_key};
use super::spec::{Blueprint, KvType};
use crate::math::pack;

/// Place of this cube's partial result for its head `head`.
#[cube]
fn partial_of(head: usize, #[comptime] bp: Blueprint) -> usize {
    (CUBE_POS_Y as usize * comptime!(bp.tuning.group) + head) * comptime!(bp.partials()) + CUBE_POS_X as usize
}

/// Adds the sums of the cube's rows of V and of the units' totals, and writes both.
#[cube]
pub(super) fn write_split(
    acc: &Array<f32>,
    best: &Array<f32>,
    total: &Array<f32>,
    scores: &mut Shared<[f32]>,
    partial: &mut [f32],
    stats: &mut [f32],
    #[comptime] bp: Blueprint,
) {
    let unroll = comptime!(bp.tuning.unroll);
    let dims = comptime!(bp.tuning.value_dims);
    let group = comptime!(bp.tuning.group);
    let units = comptime!(bp.tuning.units);
    let tile = comptime!(bp.tuning.tile);
    let rows = comptime!(bp.value_rows());
    let across = comptime!(bp.head_dim / dims);
    let row = UNIT_POS as usize / across;
    let column = UNIT_POS as usize % across;
    // Nobody reads scores after the last barrier of the loop.
    #[unroll]
    for i in 0..comptime!((bp.heads_pow2() * tile).div_ceil(units)) {
        let at = UNIT_POS as usize + comptime!(i * units);
        if at < comptime!(bp.heads_pow2() * tile) {
            scores[at] = total[i];
            if at % tile == 0 && at < comptime!(group * tile) {
                stats[2 * partial_of(at / tile, bp)] = best[i];
            }
        }
    }
    if comptime!(rows > 1) {
        let mut sums = Shared::<[f32]>::new_slice(comptime!(units * dims * group));
        #[unroll(unroll)]
        for h in 0..group {
            #[unroll]
            for d in 0..dims {
                sums[(row * group + h) * comptime!(bp.head_dim) + column * dims + d] = acc[h * dims + d];
            }
        }
        sync_cube();
        #[unroll(unroll)]
        for i in 0..comptime!((group * bp.head_dim).div_ceil(units)) {
            let at = UNIT_POS as usize + i * units;
            if at < comptime!(group * bp.head_dim) {
                let mut sum = sums[at];
                #[unroll(rows <= UNROLLED_PARTS)]
                for r in 1..rows {
                    sum += sums[at + r * comptime!(group * bp.head_dim)];
                }
                let head = at / comptime!(bp.head_dim);
                partial[partial_of(head, bp) * comptime!(bp.head_dim) + at % comptime!(bp.head_dim)] = sum;
            }
        }
    } else {
        #[unroll(unroll)]
        for h in 0..group {
            let at = partial_of(h, bp) * comptime!(bp.head_dim) + column * dims;
            #[unroll]
            for d in 0..dims {
                partial[at + d] = acc[h * dims + d];
            }
        }
        sync_cube();
    }
    let head = UNIT_POS as usize;
    if head < group {
        let mut sum = 0.0f32;
        for key in 0..tile {
            sum += scores[head * tile + key];
        }
        stats[2 * partial_of(head, bp) + 1] = sum;
    }
}

/// Writes a row of values to a cache made of `NV`-word vectors.
#[cube]
fn write_value<NV: Size>(
    values: &Shared<[F4]>,
    from: usize,
    cache: &mut [Vector<u32, NV>],
    row: usize,
    #[comptime] bp: Blueprint,
) {
    let unit = UNIT_POS as usize;
    let dims = comptime!(bp.tuning.value_dims);
    let across = comptime!(bp.head_dim / dims);
    if unit < comptime!(bp.head_dim / 4) {
        let x = values[from + unit];
        #[unroll]
        for part in 0..comptime!(4 / dims) {
            let mut words = Vector::<u32, NV>::new(0u32);
            #[unroll]
            for w in 0..comptime!(bp.value_words()) {
                if comptime!(matches!(bp.kv, KvType::Bf16)) {
                    let d = comptime!(part * dims + 2 * w);
                    words.insert(w, pack(x.extract(d), x.extract(comptime!(d + 1))));
                } else {
                    words.insert(w, u32::reinterpret(x.extract(comptime!(part * dims + w))));
                }
            }
            cache[row * across + unit * comptime!(4 / dims) + part] = words;
        }
    }
}

/// The new token: writes its key and value into the cache and attends to itself.
#[cube]
pub(super) fn new_token<NV: Size>(
    qkv: &[F4],
    q_norm: &[F4],
    k_norm: &[F4],
    rope: &[F4],
    k_cache: &mut [U4],
    v_cache: &mut [Vector<u32, NV>],
    partial: &mut [f32],
    stats: &mut [f32],
    slot: u32,
    places: &Places,
    #[comptime] bp: Blueprint,
) {
    let vectors = comptime!(bp.head_dim / 4);
    let units = comptime!(bp.tuning.units);
    let group = comptime!(bp.tuning.group);
    let kv_head = CUBE_POS_Y / comptime!(bp.cubes_per_kv as u32);
    let mut q = Shared::<[F4]>::new_slice(comptime!(group * vectors));
    let mut kv = Shared::<[F4]>::new_slice(comptime!(2 * vectors));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(3 * units / bp.reach(units)));
    let at = kv_head as usize * vectors;
    let k_at = places.k as usize + at;
    let v_at = places.v as usize + at;
    new_key_value(qkv, k_at, v_at, k_norm, rope, places.rope as usize, &mut kv, &mut sums, places.eps, bp);
    query(qkv, q_norm, rope, &mut sums, &mut q, places, bp);
    sync_cube();
    if CUBE_POS_Y % comptime!(bp.cubes_per_kv as u32) == 0 {
        let row = (kv_head * places.slots + slot) as usize;
        write_key(&kv, k_cache, row, bp);
        write_value::<NV>(&kv, vectors, v_cache, row, bp);
    }
    own_score(&q, &kv, &mut sums, stats, bp);
    let unroll = comptime!(bp.tuning.unroll);
    #[unroll(unroll)]
    for i in 0..comptime!((group * vectors).div_ceil(units)) {
        let at = UNIT_POS as usize + i * units;
        if at < comptime!(group * vectors) {
            let x = kv[vectors + at % vectors];
            let to = (partial_of(at / vectors, bp) * vectors + at % vectors) * 4;
            #[unroll]
            for e in 0..4usize {
                partial[to + e] = x.extract(e);
            }
        }
    }
}

/// The score of the new key for each head, as the statistics of a split with this key alone.
#[cube]
fn own_score(
    q: &Shared<[F4]>,
    kv: &Shared<[F4]>,
    sums: &mut Shared<[f32]>,
    stats: &mut [f32],
    #[comptime] bp: Blueprint,
) {
    let vectors = comptime!(bp.head_dim / 4);
    let units = comptime!(bp.tuning.units / bp.heads_pow2());
    let reach = comptime!(bp.reach(units));
    let parts = comptime!(units / reach);
    let lane = UNIT_POS as usize % units;
    let head = (UNIT_POS as usize / units) % comptime!(bp.tuning.group);
    let mut dot = 0.0f32;
    let mut i = lane;
    while i < vectors {
        let a = q[head * vectors + i];
        let b = kv[i];
        #[unroll]
        for e in 0..4usize {
            dot = fma(a.extract(e), b.extract(e), dot);
        }
        i += units;
    }
    dot = group_sum(dot, reach);
    if comptime!(parts > 1) {
        // The sums of the norms were read before the caller's barrier.
        if UNIT_POS as usize % reach == 0 {
            sums[UNIT_POS as usize / reach] = dot;
        }
        sync_cube();
        dot = 0.0f32;
        #[unroll(parts <= UNROLLED_PARTS)]
        for p in 0..parts {
            dot += sums[(UNIT_POS as usize / units) * parts + p];
        }
    }
    if lane == 0 && UNIT_POS as usize / units < comptime!(bp.tuning.group) {
        stats[2 * partial_of(head, bp)] = dot;
        stats[2 * partial_of(head, bp) + 1] = 1.0f32;
    }
}
