//! The split kernel: cube (s, c) attends to the s-th part of the keys for the c-th group of query heads; the last s is
//! the new token itself.

use cubecl::prelude::*;

use super::output::{new_token, write_split};
use super::prologue::{F4, NONE, U4, load_pairs, norm_pairs, store_pairs, weigh_and_rotate};
use super::spec::Blueprint;
use super::tile::{accumulate, score, weigh};
use crate::overlap::{after_wait, release_next, wait_for_previous};
use crate::state::POSITION;

/// Sizes and places that do not change the generated code: vectors of 4 in `qkv` and `rope`, slots of the cache.
#[derive(CubeType, CubeLaunch, Clone, Copy)]
pub(super) struct Places {
    pub q: u32,
    pub k: u32,
    pub v: u32,
    pub rope: u32,
    pub slots: u32,
    pub eps: f32,
}

/// Keys in the cache that were there before this launch.
#[cube]
pub(super) fn held_keys(position: u32, slots: u32, #[comptime] bp: Blueprint) -> u32 {
    min(position + comptime!(u32::from(!bp.owns_kv)), slots)
}

/// Keys of one split; splits past `held` have none.
#[cube]
pub(super) fn keys_per_split(held: u32, #[comptime] bp: Blueprint) -> u32 {
    let splits = comptime!(bp.tuning.splits as u32);
    let rows = comptime!(bp.key_rows() as u32);
    let even = (held + splits - 1u32) / splits;
    max((even + rows - 1u32) / rows * rows, comptime!(bp.tuning.min_keys as u32))
}

/// Grid: [splits (+ 1 for the new token), H / group]. Writes `partial` [H, partials, D] (not yet divided by the sum) and
/// `stats` [H, partials, 2]: the maximum of the scores and the sum of e^(score − maximum).
#[cube(launch_unchecked)]
pub(super) fn attention_split_kernel<NV: Size>(
    qkv: &mut [F4],
    q_norm: &[F4],
    k_norm: &[F4],
    rope: &[F4],
    state: &[u32],
    k_cache: &mut [U4],
    v_cache: &mut [Vector<u32, NV>],
    partial: &mut [f32],
    stats: &mut [f32],
    places: Places,
    #[comptime] bp: Blueprint,
) {
    after_wait(qkv, places.eps < 0.0f32, comptime!(bp.overlaps));
    let position = state[POSITION];
    let split = CUBE_POS_X;
    if split < comptime!(bp.tuning.splits as u32) {
        let held = held_keys(position, places.slots, bp);
        let per = keys_per_split(held, bp);
        let start = split * per;
        if start < held {
            let end = min(start + per, held);
            // In a ring that is full, the new token is about to replace the oldest key.
            let full = comptime!(bp.owns_kv) && position >= places.slots;
            let replaced = select(full, position % places.slots, 0xffff_ffffu32);
            attend::<NV>(&*qkv, q_norm, rope, k_cache, v_cache, partial, stats, start, end, replaced, &places, bp);
        }
    } else if comptime!(bp.owns_kv) {
        wait_for_previous(comptime!(bp.overlaps));
        new_token::<NV>(
            &*qkv,
            q_norm,
            k_norm,
            rope,
            k_cache,
            v_cache,
            partial,
            stats,
            position % places.slots,
            &places,
            bp,
        );
    }
}

/// Loads q of this cube's heads, norms and rotates it, and leaves it in shared memory. The caller synchronizes.
#[cube]
pub(super) fn query(
    qkv: &[F4],
    q_norm: &[F4],
    rope: &[F4],
    sums: &mut Shared<[f32]>,
    out: &mut Shared<[F4]>,
    places: &Places,
    #[comptime] bp: Blueprint,
) {
    let heads = comptime!(bp.heads_pow2());
    let group = comptime!(bp.tuning.group);
    let stride = comptime!(bp.head_dim / 4);
    let at = places.q as usize + CUBE_POS_Y as usize * comptime!(bp.tuning.group * (bp.head_dim / 4));
    let mut x = load_pairs(qkv, at, stride, heads, group, bp);
    let weight = load_pairs(q_norm, 0usize, 0usize, heads, group, bp);
    let turn = load_pairs(rope, places.rope as usize, 0usize, heads, group, bp);
    norm_pairs(&mut x, sums, 0usize, places.eps, heads, bp);
    weigh_and_rotate(&mut x, &weight, &turn, heads, bp);
    store_pairs(&x, out, 0usize, heads, comptime!(bp.tuning.group), bp);
}

/// The keys start..end of the cache, for all heads of the cube.
#[cube]
fn attend<NV: Size>(
    qkv: &[F4],
    q_norm: &[F4],
    rope: &[F4],
    k_cache: &mut [U4],
    v_cache: &mut [Vector<u32, NV>],
    partial: &mut [f32],
    stats: &mut [f32],
    start: u32,
    end: u32,
    replaced: u32,
    places: &Places,
    #[comptime] bp: Blueprint,
) {
    let tile = comptime!(bp.tuning.tile as u32);
    let heads = comptime!(bp.heads_pow2());
    let steps = comptime!((bp.heads_pow2() * bp.tuning.tile).div_ceil(bp.tuning.units));
    let row0 = (CUBE_POS_Y / comptime!(bp.cubes_per_kv as u32)) * places.slots;
    let mut keys = Array::<U4>::new(comptime!(bp.tuning.tile / bp.key_rows() * bp.chunks() * bp.chunk_vectors()));
    let mut values = Array::<Vector<u32, NV>>::new(comptime!(bp.tuning.tile / bp.value_rows()));
    // What the cache held before does not depend on the launch ahead: ask for it first.
    load_keys(k_cache, &mut keys, row0, start, end, bp);
    load_values::<NV>(v_cache, &mut values, row0, start, end, bp);
    wait_for_previous(comptime!(bp.overlaps));

    let mut q_shared = Shared::<[F4]>::new_slice(comptime!(bp.tuning.group * bp.head_dim / 4));
    let mut sums = Shared::<[f32]>::new_slice(comptime!(3 * bp.tuning.units / bp.reach(bp.tuning.units)));
    let mut scores = Shared::<[f32]>::new_aligned_slice(comptime!(heads * bp.parts() * bp.tuning.tile), 16usize);
    let mut weights = Shared::<[f32]>::new_aligned_slice(comptime!(heads * bp.tuning.tile), 16usize);
    let mut decay = Shared::<[f32]>::new_slice(heads);
    query(qkv, q_norm, rope, &mut sums, &mut q_shared, places, bp);
    sync_cube();
    release_next(comptime!(bp.overlaps));
    let q = query_registers(&q_shared, bp);

    let mut best = Array::<f32>::new(steps);
    let mut total = Array::<f32>::new(steps);
    #[unroll]
    for i in 0..steps {
        best[i] = NONE;
        total[i] = 0.0f32;
    }
    let mut acc = Array::<f32>::new(comptime!(bp.tuning.group * bp.tuning.value_dims));
    let unroll = comptime!(bp.tuning.unroll);
    #[unroll(unroll)]
    for i in 0..comptime!(bp.tuning.group * bp.tuning.value_dims) {
        acc[i] = 0.0f32;
    }
    let mut base = start;
    while base < end {
        let more = base + tile < end;
        score(&keys, &q, &mut scores, bp);
        if more {
            load_keys(k_cache, &mut keys, row0, base + tile, end, bp);
        }
        sync_cube();
        weigh(&scores, &mut weights, &mut decay, &mut best, &mut total, base, end, replaced, bp);
        sync_cube();
        accumulate::<NV>(&values, &weights, &decay, &mut acc, bp);
        if more {
            load_values::<NV>(v_cache, &mut values, row0, base + tile, end, bp);
        }
        base += tile;
    }
    write_split(&acc, &best, &total, &mut scores, partial, stats, bp);
}

#[cube]
fn query_registers(q_shared: &Shared<[F4]>, #[comptime] bp: Blueprint) -> Array<F4> {
    let lanes = comptime!(bp.tuning.lanes);
    let chunks = comptime!(bp.chunks());
    let unroll = comptime!(bp.tuning.unroll);
    let lane = UNIT_POS as usize % lanes;
    let mut q = Array::<F4>::new(comptime!(bp.tuning.group * bp.chunks() * 2));
    #[unroll(unroll)]
    for h in 0..comptime!(bp.tuning.group) {
        #[unroll(unroll)]
        for c in 0..chunks {
            let at = h * comptime!(bp.head_dim / 4) + (lane + c * lanes) * 2;
            q[(h * chunks + c) * 2] = q_shared[at];
            q[(h * chunks + c) * 2 + 1] = q_shared[at + 1];
        }
    }
    q
}

/// Rows of K from `base` on; rows past `end` repeat the last one, which costs no memory traffic and keeps them finite.
#[cube]
fn load_keys(cache: &mut [U4], keys: &mut Array<U4>, row0: u32, base: u32, end: u32, #[comptime] bp: Blueprint) {
    let rows = comptime!(bp.key_rows());
    let vectors = comptime!(bp.chunk_vectors());
    let lane = UNIT_POS as usize % comptime!(bp.tuning.lanes);
    let row = UNIT_POS / comptime!(bp.tuning.lanes as u32);
    let chunks = comptime!(bp.chunks());
    let lanes = comptime!(bp.tuning.lanes);
    let unroll = comptime!(bp.tuning.unroll);
    #[unroll(unroll)]
    for r in 0..comptime!(bp.tuning.tile / rows) {
        let key = min(base + (r * rows) as u32 + row, end - 1u32);
        let at = (row0 + key) as usize * comptime!(bp.head_dim / 8 * vectors) + lane * vectors;
        #[unroll(unroll)]
        for c in 0..chunks {
            #[unroll]
            for e in 0..vectors {
                keys[(r * chunks + c) * vectors + e] = cache[at + c * comptime!(lanes * vectors) + e];
            }
        }
    }
}

#[cube]
fn load_values<NV: Size>(
    cache: &mut [Vector<u32, NV>],
    values: &mut Array<Vector<u32, NV>>,
    row0: u32,
    base: u32,
    end: u32,
    #[comptime] bp: Blueprint,
) {
    let units = comptime!(bp.head_dim / bp.tuning.value_dims);
    let rows = comptime!(bp.value_rows());
    let row = UNIT_POS / comptime!(units as u32);
    let unroll = comptime!(bp.tuning.unroll);
    #[unroll(unroll)]
    for i in 0..comptime!(bp.tuning.tile / rows) {
        let key = min(base + (i * rows) as u32 + row, end - 1u32);
        values[i] = cache[(row0 + key) as usize * units + UNIT_POS as usize % units];
    }
}
