//! NEON, which every aarch64 has.

use super::simd::Simd;
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub(super) struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const ROWS: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn splat(p: *const f32) -> float32x4_t {
        unsafe { vld1q_dup_f32(p) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> float32x4_t {
        unsafe { row(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }

    #[inline(always)]
    unsafe fn add(a: float32x4_t, b: float32x4_t) -> float32x4_t {
        unsafe { vaddq_f32(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> float32x4_t {
        unsafe { vreinterpretq_f32_u32(vshll_n_u16::<16>(vreinterpret_u16_u8(vld1_u8(p)))) }
    }

    #[inline(always)]
    unsafe fn widen(pairs: float32x4_t) -> (float32x4_t, float32x4_t) {
        unsafe {
            let pairs = vreinterpretq_u32_f32(pairs);
            let odd = vandq_u32(pairs, vdupq_n_u32(0xffff_0000));
            (vreinterpretq_f32_u32(vshlq_n_u32::<16>(pairs)), vreinterpretq_f32_u32(odd))
        }
    }

    #[inline(always)]
    unsafe fn transposed(rows: *const u8, stride: isize) -> [float32x4_t; 4] {
        unsafe {
            let (a, b) = (row(rows), row(rows.wrapping_offset(stride)));
            let (c, d) = (row(rows.wrapping_offset(2 * stride)), row(rows.wrapping_offset(3 * stride)));
            // Lanes 0 and 2 of two rows, lanes 1 and 3 of two rows.
            let (ab0, ab1) = (vreinterpretq_f64_f32(vtrn1q_f32(a, b)), vreinterpretq_f64_f32(vtrn2q_f32(a, b)));
            let (cd0, cd1) = (vreinterpretq_f64_f32(vtrn1q_f32(c, d)), vreinterpretq_f64_f32(vtrn2q_f32(c, d)));
            [
                vreinterpretq_f32_f64(vtrn1q_f64(ab0, cd0)),
                vreinterpretq_f32_f64(vtrn1q_f64(ab1, cd1)),
                vreinterpretq_f32_f64(vtrn2q_f64(ab0, cd0)),
                vreinterpretq_f32_f64(vtrn2q_f64(ab1, cd1)),
            ]
        }
    }
}

/// One vector, through bytes: the weights of a mapped file may lie at any address.
#[inline(always)]
unsafe fn row(p: *const u8) -> float32x4_t {
    unsafe { vreinterpretq_f32_u8(vld1q_u8(p)) }
}
