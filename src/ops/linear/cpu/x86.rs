//! AVX2 with FMA, and AVX-512.

use super::simd::Simd;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx2;

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const TILE_ROWS: usize = 3;
    const DIRECT_ROWS: usize = 2;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m256 {
        unsafe { _mm256_loadu_ps(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn widen(p: *const u8) -> (__m256, __m256) {
        unsafe {
            let raw = _mm256_loadu_si256(p.cast());
            let even = _mm256_slli_epi32::<16>(raw);
            let odd = _mm256_and_si256(raw, _mm256_set1_epi32(0xffff_0000_u32 as i32));
            (_mm256_castsi256_ps(even), _mm256_castsi256_ps(odd))
        }
    }

    #[inline(always)]
    unsafe fn sums(v: [__m256; 4]) -> [f32; 4] {
        unsafe { sums128(v.map(|v| _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps::<1>(v)))) }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

#[derive(Clone, Copy)]
pub(super) struct Avx512;

impl Simd for Avx512 {
    type V = __m512;
    const LANES: usize = 16;
    const TILE_ROWS: usize = 4;
    const DIRECT_ROWS: usize = 3;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn load(p: *const u8) -> __m512 {
        unsafe { _mm512_loadu_ps(p.cast()) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn widen(p: *const u8) -> (__m512, __m512) {
        unsafe {
            let raw = _mm512_loadu_si512(p.cast());
            let even = _mm512_slli_epi32::<16>(raw);
            let odd = _mm512_and_si512(raw, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(even), _mm512_castsi512_ps(odd))
        }
    }

    #[inline(always)]
    unsafe fn sums(v: [__m512; 4]) -> [f32; 4] {
        unsafe {
            sums128(v.map(|v| {
                let low = _mm_add_ps(_mm512_castps512_ps128(v), _mm512_extractf32x4_ps::<1>(v));
                let high = _mm_add_ps(_mm512_extractf32x4_ps::<2>(v), _mm512_extractf32x4_ps::<3>(v));
                _mm_add_ps(low, high)
            }))
        }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

/// Sums of four vectors of four lanes: a transposition with additions on the way.
#[inline(always)]
unsafe fn sums128(v: [__m128; 4]) -> [f32; 4] {
    unsafe {
        let ab = _mm_add_ps(_mm_unpacklo_ps(v[0], v[1]), _mm_unpackhi_ps(v[0], v[1])); // a02 b02 a13 b13
        let cd = _mm_add_ps(_mm_unpacklo_ps(v[2], v[3]), _mm_unpackhi_ps(v[2], v[3]));
        let sum = _mm_add_ps(_mm_movelh_ps(ab, cd), _mm_movehl_ps(cd, ab));
        let mut out = [0.0; 4];
        _mm_storeu_ps(out.as_mut_ptr(), sum);
        out
    }
}
