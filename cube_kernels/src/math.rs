//! Arithmetic that every runtime computes the same way: no libm, no native bf16, no plane size.

use cubecl::prelude::*;

use crate::Caps;

const LOG2_E: f32 = core::f32::consts::LOG2_E;
// ln 2 in two parts, so that n·ln 2 is exact enough for the range reduction.
const LN_2_HIGH: f32 = 0.693_359_375;
const LN_2_LOW: f32 = -2.121_944_4e-4;
const EXP_MIN: f32 = -87.0;
const EXP_MAX: f32 = 88.0;
/// Beyond this, tanh is 1 in f32; several drivers return NaN for large arguments.
const TANH_MAX: f32 = 15.0;
const GELU_INNER: f32 = 0.797_884_6;
const GELU_CUBIC: f32 = 0.044_715;
const EXPONENT_BITS: u32 = 0x7f80_0000;

/// The bf16 in the low half of a packed pair.
#[cube]
pub fn lo(pair: u32) -> f32 {
    f32::reinterpret(pair << 16u32)
}

/// The bf16 in the high half of a packed pair.
#[cube]
pub fn hi(pair: u32) -> f32 {
    f32::reinterpret(pair & 0xffff_0000u32)
}

/// The bits of `x` rounded to the nearest bf16 (ties to even), in the high half; the low half is not cleared.
#[cube]
fn round_to_bf16(x: f32) -> u32 {
    let bits = u32::reinterpret(x);
    let rounded = bits + 0x7fffu32 + ((bits >> 16u32) & 1u32);
    let nan = (bits & 0x7fff_ffffu32) > EXPONENT_BITS;
    select(nan, bits | 0x0040_0000u32, rounded)
}

/// Two f32 as a pair of bf16, `low` in the low half; rounds to nearest even, NaN stays NaN.
#[cube]
pub fn pack(low: f32, high: f32) -> u32 {
    (round_to_bf16(low) >> 16u32) | (round_to_bf16(high) & 0xffff_0000u32)
}

/// Whether `x` is NaN or infinite, decided on its bits.
#[cube]
pub fn is_not_finite(x: f32) -> bool {
    (u32::reinterpret(x) & EXPONENT_BITS) == EXPONENT_BITS
}

/// e^x within 2e-7 relative (drivers that reassociate: plus 6e-8·|x|); 0 below -87, e^88 above 88; NaN stays NaN.
#[cube]
pub fn exp(x: f32) -> f32 {
    let bounded = max(min(x, EXP_MAX), EXP_MIN);
    let n = (bounded * LOG2_E + 0.5f32).floor();
    let r = fma(-n, LN_2_LOW, fma(-n, LN_2_HIGH, bounded));
    let mut p = fma(1.987_569_1e-4f32, r, 1.398_2e-3f32);
    p = fma(p, r, 8.333_452e-3f32);
    p = fma(p, r, 4.166_579_6e-2f32);
    p = fma(p, r, 1.666_666_5e-1f32);
    p = fma(p, r, 0.5f32);
    p = fma(p * r, r, r + 1.0f32);
    let power = f32::reinterpret(u32::cast_from(i32::cast_from(n) + 127i32) << 23u32);
    let value = select(x < EXP_MIN, 0.0f32, p * power);
    select(x == x, value, x)
}

/// tanh within 5e-7 relative, saturated beyond |x| = 15; NaN stays NaN.
#[cube]
pub fn tanh(x: f32) -> f32 {
    let a = min(x.abs(), TANH_MAX);
    let z = x * x;
    let mut p = fma(-5.704_988_7e-3f32, z, 2.063_908_9e-2f32);
    p = fma(p, z, -5.373_971_5e-2f32);
    p = fma(p, z, 1.333_144_2e-1f32);
    p = fma(p, z, -3.333_328e-1f32);
    let small = fma(p * z, x, x);
    let large = 1.0f32 - 2.0f32 / (exp(2.0f32 * a) + 1.0f32);
    let large = select(x < 0.0f32, -large, large);
    let value = select(a < 0.625f32, small, large);
    select(x == x, value, x)
}

/// The tanh form of GELU, 0.5·x·(1 + tanh(√(2/π)·(x + 0.044715·x³))), written as x / (1 + e^(-2u)) so that it keeps its
/// relative accuracy for negative x.
#[cube]
pub fn gelu_tanh(x: f32) -> f32 {
    let u = GELU_INNER * x * fma(GELU_CUBIC * x, x, 1.0f32);
    let u = max(min(u, TANH_MAX), -TANH_MAX);
    x / (1.0f32 + exp(-2.0f32 * u))
}

/// cap·tanh(x / cap).
#[cube]
pub fn softcap(x: f32, cap: f32) -> f32 {
    cap * tanh(x / cap)
}

/// Shared memory that [`lanes_sum`] needs in a cube of `units` units.
#[cube]
pub fn lanes_scratch(#[comptime] units: u32, #[comptime] caps: Caps) -> Shared<[f32]> {
    Shared::<[f32]>::new_slice(comptime!(if caps.plane_ops { 1 } else { units as usize }))
}

/// The sum of `value` over the `caps.lanes` units that share `UNIT_POS_Y`, in each of them.
///
/// The cube is `[caps.lanes, planes]`. Every unit of the cube must call this: without plane operations it is a tree in
/// `scratch` (from [`lanes_scratch`]) with barriers.
#[cube]
pub fn lanes_sum(value: f32, scratch: &mut Shared<[f32]>, #[comptime] caps: Caps) -> f32 {
    if comptime!(caps.plane_ops) {
        plane_sum(value)
    } else {
        let at = UNIT_POS as usize;
        let lane = UNIT_POS_X as usize;
        scratch[at] = value;
        sync_cube();
        #[unroll]
        for step in 0..comptime!(caps.lanes.ilog2()) {
            let half = comptime!((caps.lanes >> (step + 1)) as usize);
            if lane < half {
                scratch[at] = scratch[at] + scratch[at + half];
            }
            sync_cube();
        }
        let sum = scratch[at - lane];
        sync_cube();
        sum
    }
}

/// Adds up what the planes of a cube left in `sums[offset..offset + planes]`; the caller has synchronized.
#[cube]
pub fn add_up(sums: &Shared<[f32]>, offset: usize, #[comptime] planes: u32) -> f32 {
    let mut total = sums[offset];
    #[unroll]
    for p in 1..comptime!(planes as usize) {
        total += sums[offset + p];
    }
    total
}

/// The sum of `value` over the whole cube `[caps.lanes, planes]`, in each unit. `sums` has `planes` elements; the caller
/// synchronizes before it uses them again.
#[cube]
pub fn cube_sum(
    value: f32,
    sums: &mut Shared<[f32]>,
    scratch: &mut Shared<[f32]>,
    #[comptime] planes: u32,
    #[comptime] caps: Caps,
) -> f32 {
    let sum = lanes_sum(value, scratch, caps);
    if UNIT_POS_X == 0 {
        sums[UNIT_POS_Y as usize] = sum;
    }
    sync_cube();
    let mut total = sums[0];
    #[unroll]
    for p in 1..comptime!(planes as usize) {
        total += sums[p];
    }
    total
}
