//! One tile of keys and values, already in registers: scores, online softmax, weighted sum.

use cubecl::prelude::*;

use super::lanes::{group_max, halvings, spread_first, spread_sum};
use super::prologue::{F4, NONE, U4, UNROLLED_PARTS};
use super::spec::{Blueprint, KvType};
use crate::math::{exp, hi, lo};

/// The 8 values of one piece of a K row.
#[cube]
fn unpack_chunk(keys: &Array<U4>, at: usize, #[comptime] bp: Blueprint) -> Array<f32> {
    let mut x = Array::<f32>::new(8usize);
    if comptime!(matches!(bp.kv, KvType::Bf16)) {
        #[unroll]
        for e in 0..4usize {
            let word = keys[at].extract(e);
            x[comptime!(2 * e)] = lo(word);
            x[comptime!(2 * e + 1)] = hi(word);
        }
    } else {
        #[unroll]
        for e in 0..8usize {
            x[e] = f32::reinterpret(keys[at + comptime!(e / 4)].extract(comptime!(e % 4)));
        }
    }
    x
}

/// Scores of the tile's keys for every head, as `parts` sums each: [head, part, key].
#[cube]
pub(super) fn score(keys: &Array<U4>, q: &Array<F4>, scores: &mut Shared<[f32]>, #[comptime] bp: Blueprint) {
    let unroll = comptime!(bp.tuning.unroll);
    let lanes = comptime!(bp.tuning.lanes);
    let heads = comptime!(bp.heads_pow2());
    let tile = comptime!(bp.tuning.tile);
    let reach = comptime!(bp.reach(lanes));
    let halving = comptime!(halvings(heads, reach));
    let lane = UNIT_POS as usize % lanes;
    let row = UNIT_POS as usize / lanes;
    let part = lane / reach;
    let near = lane % reach;
    let first = spread_first(near, heads, reach);
    let writes = near % comptime!(reach >> halving) == 0;
    let chunks = comptime!(bp.chunks());
    let vectors = comptime!(bp.chunk_vectors());
    let rows = comptime!(bp.key_rows());
    #[unroll(unroll)]
    for r in 0..comptime!(tile / rows) {
        let mut dots = Array::<f32>::new(heads);
        #[unroll]
        for h in 0..heads {
            dots[h] = 0.0f32;
        }
        #[unroll(unroll)]
        for c in 0..chunks {
            let x = unpack_chunk(keys, (r * chunks + c) * vectors, bp);
            #[unroll(unroll)]
            for h in 0..comptime!(bp.tuning.group) {
                let mut dot = dots[h];
                #[unroll]
                for e in 0..8usize {
                    let y = q[(h * chunks + c) * 2 + comptime!(e / 4)].extract(comptime!(e % 4));
                    dot = fma(x[e], y, dot);
                }
                dots[h] = dot;
            }
        }
        spread_sum(&mut dots, near, heads, reach);
        let key = row + r * rows;
        if writes {
            #[unroll]
            for i in 0..comptime!(heads >> halving) {
                scores[((first + i) * comptime!(bp.parts()) + part) * tile + key] = dots[i];
            }
        }
    }
}

/// Adds up the parts of one score; keys that do not count get [`NONE`].
#[cube]
fn masked_score(
    scores: &Shared<[f32]>,
    head: usize,
    key: usize,
    base: u32,
    end: u32,
    replaced: u32,
    #[comptime] bp: Blueprint,
) -> f32 {
    let tile = comptime!(bp.tuning.tile);
    let parts = comptime!(bp.parts());
    let mut s = scores[head * parts * tile + key];
    #[unroll(parts <= UNROLLED_PARTS)]
    for p in 1..parts {
        s += scores[(head * parts + p) * tile + key];
    }
    let slot = base + key as u32;
    select(slot < end && slot != replaced, s, NONE)
}

/// Online softmax: from scores to weights [key, head], and by how much the sums so far shrink.
#[cube]
pub(super) fn weigh(
    scores: &Shared<[f32]>,
    weights: &mut Shared<[f32]>,
    decay: &mut Shared<[f32]>,
    best: &mut Array<f32>,
    total: &mut Array<f32>,
    base: u32,
    end: u32,
    replaced: u32,
    #[comptime] bp: Blueprint,
) {
    let tile = comptime!(bp.tuning.tile);
    let heads = comptime!(bp.heads_pow2());
    let units = comptime!(bp.tuning.units);
    #[unroll]
    for i in 0..comptime!((heads * tile).div_ceil(units)) {
        let at = UNIT_POS as usize + comptime!(i * units);
        let key = at % tile;
        let head = (at / tile) % heads;
        let s = masked_score(scores, head, key, base, end, replaced, bp);
        let mut most = s;
        if comptime!(tile <= bp.plane) {
            most = group_max(s, tile);
        } else {
            for other in 0..tile {
                most = max(most, masked_score(scores, head, other, base, end, replaced, bp));
            }
        }
        most = max(most, best[i]);
        let shrink = exp(best[i] - most);
        let weight = select(s > NONE, exp(s - most), 0.0f32);
        total[i] = fma(total[i], shrink, weight);
        best[i] = most;
        if at < comptime!(heads * tile) {
            weights[key * heads + head] = weight;
            if key == 0 {
                decay[head] = shrink;
            }
        }
    }
}

#[cube]
pub(super) fn accumulate<NV: Size>(
    values: &Array<Vector<u32, NV>>,
    weights: &Shared<[f32]>,
    decay: &Shared<[f32]>,
    acc: &mut Array<f32>,
    #[comptime] bp: Blueprint,
) {
    let dims = comptime!(bp.tuning.value_dims);
    let rows = comptime!(bp.value_rows());
    let row = UNIT_POS as usize / comptime!(bp.head_dim / bp.tuning.value_dims);
    let unroll = comptime!(bp.tuning.unroll);
    #[unroll(unroll)]
    for h in 0..comptime!(bp.tuning.group) {
        let shrink = decay[h];
        #[unroll]
        for d in 0..dims {
            acc[h * dims + d] = acc[h * dims + d] * shrink;
        }
    }
    #[unroll(unroll)]
    for i in 0..comptime!(bp.tuning.tile / rows) {
        let mut x = Array::<f32>::new(dims);
        #[unroll]
        for d in 0..dims {
            if comptime!(matches!(bp.kv, KvType::Bf16)) {
                let word = values[i].extract(comptime!(d / 2));
                x[d] = if comptime!(d % 2 == 0) { lo(word) } else { hi(word) };
            } else {
                x[d] = f32::reinterpret(values[i].extract(d));
            }
        }
        let at = (row + i * rows) * comptime!(bp.heads_pow2());
        #[unroll(unroll)]
        for h in 0..comptime!(bp.tuning.group) {
            let weight = weights[at + h];
            #[unroll]
            for d in 0..dims {
                acc[h * dims + d] = fma(weight, x[d], acc[h * dims + d]);
            }
        }
    }
}
