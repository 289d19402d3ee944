//! NEON, which every aarch64 has.

use super::simd::Simd;
use std::arch::aarch64::*;

#[derive(Clone, Copy)]
pub(super) struct Neon;

impl Simd for Neon {
    type V = float32x4_t;
    const LANES: usize = 4;
    const TILE_ROWS: usize = 4;
    const DIRECT_ROWS: usize = 4;

    #[inline(always)]
    unsafe fn zero() -> float32x4_t {
        unsafe { vdupq_n_f32(0.0) }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> float32x4_t {
        // Through bytes: the weights of a mapped file may lie at any address.
        unsafe { vreinterpretq_f32_u8(vld1q_u8(p)) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: float32x4_t) {
        unsafe { vst1q_f32(p, v) }
    }

    #[inline(always)]
    unsafe fn fma(a: float32x4_t, b: float32x4_t, c: float32x4_t) -> float32x4_t {
        unsafe { vfmaq_f32(c, a, b) }
    }

    #[inline(always)]
    unsafe fn widen(p: *const u8) -> (float32x4_t, float32x4_t) {
        unsafe {
            let raw = vreinterpretq_u32_u8(vld1q_u8(p));
            let odd = vandq_u32(raw, vdupq_n_u32(0xffff_0000));
            (vreinterpretq_f32_u32(vshlq_n_u32::<16>(raw)), vreinterpretq_f32_u32(odd))
        }
    }

    #[inline(always)]
    unsafe fn sums(v: [float32x4_t; 4]) -> [f32; 4] {
        unsafe {
            let sum = vpaddq_f32(vpaddq_f32(v[0], v[1]), vpaddq_f32(v[2], v[3]));
            let mut out = [0.0; 4];
            vst1q_f32(out.as_mut_ptr(), sum);
            out
        }
    }
}
