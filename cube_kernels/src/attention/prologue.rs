//! Norm and rotation of q, k and v, and the new token's own part of the attention.
//!
//! A head's dimensions i and i + D/2 turn together, so units hold them in pairs of 4-vectors: element `c` of a list of
//! pairs is `(x[i], x[i + D/2])` for the unit's c-th `i`.

use cubecl::prelude::*;

use super::lanes::group_sum;
use super::spec::{Blueprint, KvType};
use crate::math::{hi, lo, pack};

/// Stands for minus infinity where a difference of two of them must stay finite.
pub(super) const NONE: f32 = -1.0e30;

/// Sums of more parts than this are loops: software devices compile long code for minutes.
pub(super) const UNROLLED_PARTS: usize = 8;
pub(super) type F4 = Vector<f32, Const<4>>;
pub(super) type U4 = Vector<u32, Const<4>>;

/// Pairs that one unit holds when the cube works on `heads` heads at once.
fn pairs_per_unit(heads: usize, bp: Blueprint) -> usize {
    (bp.head_dim / 8).div_ceil(bp.tuning.units / heads)
}

/// Loads this unit's pairs of `heads` rows of D numbers, of which `real` exist, `stride` vectors apart (0: one row for
/// all heads).
#[cube]
pub(super) fn load_pairs(
    source: &[F4],
    at: usize,
    stride: usize,
    #[comptime] heads: usize,
    #[comptime] real: usize,
    #[comptime] bp: Blueprint,
) -> Array<F4> {
    let pairs = comptime!(bp.head_dim / 8);
    let units = comptime!(bp.tuning.units / heads);
    let count = comptime!(pairs_per_unit(heads, bp));
    let head = (UNIT_POS as usize / units) % real;
    let lane = UNIT_POS as usize % units;
    let mut out = Array::<F4>::new(comptime!(2 * count));
    #[unroll]
    for c in 0..count {
        let i = lane + c * units;
        // A unit without a pair of its own repeats another's, so that no load is out of bounds.
        let row = at + head * stride + i % pairs;
        out[2 * c] = source[row];
        out[2 * c + 1] = source[row + pairs];
    }
    out
}

#[cube]
fn sum_of_squares(x: F4, sum: f32) -> f32 {
    let mut s = sum;
    #[unroll]
    for e in 0..4usize {
        s = fma(x.extract(e), x.extract(e), s);
    }
    s
}

/// Divides each head by its root mean square. `sums` holds this call's partial sums from `offset` on. Barrier inside
/// when a head is spread over more units than a plane has.
#[cube]
pub(super) fn norm_pairs(
    x: &mut Array<F4>,
    sums: &mut Shared<[f32]>,
    offset: usize,
    eps: f32,
    #[comptime] heads: usize,
    #[comptime] bp: Blueprint,
) {
    let pairs = comptime!(bp.head_dim / 8);
    let units = comptime!(bp.tuning.units / heads);
    let count = comptime!(pairs_per_unit(heads, bp));
    let reach = comptime!(bp.reach(units));
    let parts = comptime!(units / reach);
    let lane = UNIT_POS as usize % units;
    let mut sum = 0.0f32;
    #[unroll]
    for c in 0..count {
        let s = sum_of_squares(x[2 * c + 1], sum_of_squares(x[2 * c], sum));
        sum = select(lane + c * units < pairs, s, sum);
    }
    sum = group_sum(sum, reach);
    if comptime!(parts > 1) {
        if UNIT_POS as usize % reach == 0 {
            sums[offset + UNIT_POS as usize / reach] = sum;
        }
        sync_cube();
        let first = offset + (UNIT_POS as usize / units) * parts;
        sum = 0.0f32;
        #[unroll(parts <= UNROLLED_PARTS)]
        for p in 0..parts {
            sum += sums[first + p];
        }
    }
    let scale = F4::new(f32::inverse_sqrt(sum / comptime!(bp.head_dim as f32) + eps));
    #[unroll]
    for c in 0..comptime!(2 * count) {
        x[c] = x[c] * scale;
    }
}

/// Multiplies by `weight` and rotates by `turn` (cosines, sines).
#[cube]
pub(super) fn weigh_and_rotate(
    x: &mut Array<F4>,
    weight: &Array<F4>,
    turn: &Array<F4>,
    #[comptime] heads: usize,
    #[comptime] bp: Blueprint,
) {
    #[unroll]
    for c in 0..comptime!(pairs_per_unit(heads, bp)) {
        let a = x[2 * c] * weight[2 * c];
        let b = x[2 * c + 1] * weight[2 * c + 1];
        x[2 * c] = a * turn[2 * c] - b * turn[2 * c + 1];
        x[2 * c + 1] = b * turn[2 * c] + a * turn[2 * c + 1];
    }
}

/// Stores `heads` heads, of which `real` exist, from vector `at` of `out` on.
#[cube]
pub(super) fn store_pairs(
    x: &Array<F4>,
    out: &mut Shared<[F4]>,
    at: usize,
    #[comptime] heads: usize,
    #[comptime] real: usize,
    #[comptime] bp: Blueprint,
) {
    let pairs = comptime!(bp.head_dim / 8);
    let units = comptime!(bp.tuning.units / heads);
    let head = UNIT_POS as usize / units;
    let lane = UNIT_POS as usize % units;
    #[unroll]
    for c in 0..comptime!(pairs_per_unit(heads, bp)) {
        let i = lane + c * units;
        if i < pairs && head < real {
            out[at + head * 2 * pairs + i] = x[2 * c];
            out[at + head * 2 * pairs + i + pairs] = x[2 * c + 1];
        }
    }
}

/// Rounds to what the cache can hold.
#[cube]
fn round_pairs(x: &mut Array<F4>, #[comptime] count: usize) {
    #[unroll]
    for c in 0..count {
        let mut v = x[c];
        #[unroll]
        for e in 0..2usize {
            let pair = pack(v.extract(comptime!(2 * e)), v.extract(comptime!(2 * e + 1)));
            v.insert(comptime!(2 * e), lo(pair));
            v.insert(comptime!(2 * e + 1), hi(pair));
        }
        x[c] = v;
    }
}

/// Norms and rotates the new token's key, norms its value, and leaves both (rounded to the cache's type) in `out`,
/// key first. `sums` has room for two more calls from `offset` on. The caller synchronizes.
#[cube]
pub(super) fn new_key_value(
    qkv: &[F4],
    k_at: usize,
    v_at: usize,
    k_norm: &[F4],
    rope: &[F4],
    rope_at: usize,
    out: &mut Shared<[F4]>,
    sums: &mut Shared<[f32]>,
    eps: f32,
    #[comptime] bp: Blueprint,
) {
    let mut k = load_pairs(qkv, k_at, 0usize, 1usize, 1usize, bp);
    let mut v = load_pairs(qkv, v_at, 0usize, 1usize, 1usize, bp);
    let weight = load_pairs(k_norm, 0usize, 0usize, 1usize, 1usize, bp);
    let turn = load_pairs(rope, rope_at, 0usize, 1usize, 1usize, bp);
    let sums_per_call = comptime!(bp.tuning.units / bp.reach(bp.tuning.units));
    norm_pairs(&mut k, sums, sums_per_call, eps, 1usize, bp);
    norm_pairs(&mut v, sums, comptime!(2 * sums_per_call), eps, 1usize, bp);
    weigh_and_rotate(&mut k, &weight, &turn, 1usize, bp);
    if comptime!(matches!(bp.kv, KvType::Bf16)) {
        round_pairs(&mut k, comptime!(2 * pairs_per_unit(1, bp)));
        round_pairs(&mut v, comptime!(2 * pairs_per_unit(1, bp)));
    }
    store_pairs(&k, out, 0usize, 1usize, 1usize, bp);
    store_pairs(&v, out, comptime!(bp.head_dim / 4), 1usize, 1usize, bp);
}

/// Writes a row of `head_dim` values to row `row` of a cache made of 4-word vectors.
#[cube]
pub(super) fn write_key(values: &Shared<[F4]>, cache: &mut [U4], row: usize, #[comptime] bp: Blueprint) {
    let vectors = comptime!(bp.head_dim / 4 / bp.kv.per_word());
    let unit = UNIT_POS as usize;
    if unit < vectors {
        let mut words = U4::new(0u32);
        if comptime!(matches!(bp.kv, KvType::Bf16)) {
            let a = values[2 * unit];
            let b = values[2 * unit + 1];
            words.insert(0usize, pack(a.extract(0usize), a.extract(1usize)));
            words.insert(1usize, pack(a.extract(2usize), a.extract(3usize)));
            words.insert(2usize, pack(b.extract(0usize), b.extract(1usize)));
            words.insert(3usize, pack(b.extract(2usize), b.extract(3usize)));
        } else {
            let a = values[unit];
            #[unroll]
            for e in 0..4usize {
                words.insert(e, u32::reinterpret(a.extract(e)));
            }
        }
        cache[row * vectors + unit] = words;
    }
}
