//! AVX2 with FMA, and AVX-512.

use super::simd::Simd;
use std::arch::x86_64::*;

#[derive(Clone, Copy)]
pub(super) struct Avx2;

impl Simd for Avx2 {
    type V = __m256;
    const LANES: usize = 8;
    const ROWS: usize = 6;

    #[inline(always)]
    unsafe fn zero() -> __m256 {
        unsafe { _mm256_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(p: *const f32) -> __m256 {
        unsafe { _mm256_broadcast_ss(&*p) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m256 {
        unsafe { _mm256_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m256) {
        unsafe { _mm256_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn add(a: __m256, b: __m256) -> __m256 {
        unsafe { _mm256_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m256, b: __m256, c: __m256) -> __m256 {
        unsafe { _mm256_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> __m256 {
        unsafe {
            // Each becomes the upper half of 32 bits; -1 is a zero byte. One instruction where to widen and to shift
            // would be two.
            let places = _mm256_setr_epi8(
                -1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7, // low
                -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15, // high
            );
            _mm256_castsi256_ps(_mm256_shuffle_epi8(_mm256_broadcastsi128_si256(_mm_loadu_si128(p.cast())), places))
        }
    }

    #[inline(always)]
    unsafe fn widen(pairs: __m256) -> (__m256, __m256) {
        unsafe {
            let even = _mm256_slli_epi32::<16>(_mm256_castps_si256(pairs));
            let odd = _mm256_and_ps(pairs, _mm256_castsi256_ps(_mm256_set1_epi32(0xffff_0000_u32 as i32)));
            (_mm256_castsi256_ps(even), odd)
        }
    }

    #[inline(always)]
    unsafe fn transposed(rows: *const u8, stride: isize) -> [__m256; 4] {
        unsafe {
            let a = pair(rows, stride, 0);
            let b = pair(rows, stride, 1);
            let c = pair(rows, stride, 2);
            let d = pair(rows, stride, 3);
            let (ab, ef) = (_mm256_castps_pd(_mm256_unpacklo_ps(a, b)), _mm256_castps_pd(_mm256_unpackhi_ps(a, b)));
            let (cd, gh) = (_mm256_castps_pd(_mm256_unpacklo_ps(c, d)), _mm256_castps_pd(_mm256_unpackhi_ps(c, d)));
            [
                _mm256_castpd_ps(_mm256_unpacklo_pd(ab, cd)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(ab, cd)),
                _mm256_castpd_ps(_mm256_unpacklo_pd(ef, gh)),
                _mm256_castpd_ps(_mm256_unpackhi_pd(ef, gh)),
            ]
        }
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
    const ROWS: usize = 8;

    #[inline(always)]
    unsafe fn zero() -> __m512 {
        unsafe { _mm512_setzero_ps() }
    }

    #[inline(always)]
    unsafe fn splat(p: *const f32) -> __m512 {
        unsafe { _mm512_set1_ps(*p) }
    }

    #[inline(always)]
    unsafe fn load(p: *const f32) -> __m512 {
        unsafe { _mm512_loadu_ps(p) }
    }

    #[inline(always)]
    unsafe fn store(p: *mut f32, v: __m512) {
        unsafe { _mm512_storeu_ps(p, v) }
    }

    #[inline(always)]
    unsafe fn add(a: __m512, b: __m512) -> __m512 {
        unsafe { _mm512_add_ps(a, b) }
    }

    #[inline(always)]
    unsafe fn fma(a: __m512, b: __m512, c: __m512) -> __m512 {
        unsafe { _mm512_fmadd_ps(a, b, c) }
    }

    #[inline(always)]
    unsafe fn bf16(p: *const u8) -> __m512 {
        unsafe {
            let wide = _mm512_cvtepu16_epi32(_mm256_loadu_si256(p.cast()));
            _mm512_castsi512_ps(_mm512_slli_epi32::<16>(wide))
        }
    }

    #[inline(always)]
    unsafe fn widen(pairs: __m512) -> (__m512, __m512) {
        unsafe {
            let pairs = _mm512_castps_si512(pairs);
            let odd = _mm512_and_si512(pairs, _mm512_set1_epi32(0xffff_0000_u32 as i32));
            (_mm512_castsi512_ps(_mm512_slli_epi32::<16>(pairs)), _mm512_castsi512_ps(odd))
        }
    }

    #[inline(always)]
    unsafe fn transposed(rows: *const u8, stride: isize) -> [__m512; 4] {
        unsafe {
            let (a, b) = (quads(rows, stride, 0), quads(rows, stride, 1));
            let (c, d) = (quads(rows, stride, 2), quads(rows, stride, 3));
            let (ab, ef) = (_mm512_castps_pd(_mm512_unpacklo_ps(a, b)), _mm512_castps_pd(_mm512_unpackhi_ps(a, b)));
            let (cd, gh) = (_mm512_castps_pd(_mm512_unpacklo_ps(c, d)), _mm512_castps_pd(_mm512_unpackhi_ps(c, d)));
            [
                _mm512_castpd_ps(_mm512_unpacklo_pd(ab, cd)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(ab, cd)),
                _mm512_castpd_ps(_mm512_unpacklo_pd(ef, gh)),
                _mm512_castpd_ps(_mm512_unpackhi_pd(ef, gh)),
            ]
        }
    }

    #[inline(always)]
    unsafe fn prefetch(p: *const u8) {
        unsafe { _mm_prefetch::<_MM_HINT_T0>(p.cast()) }
    }
}

// Nothing below may become a closure or go through `map`: those are not always inlined, and a call from code that
// enables an instruction set to code that does not passes vectors through memory.

/// 128 bits of row `i`.
#[inline(always)]
unsafe fn quad(rows: *const u8, stride: isize, i: isize) -> __m128 {
    unsafe { _mm_loadu_ps(rows.wrapping_offset(i * stride).cast()) }
}

/// 128 bits of rows `i` and `i + 4`, side by side: what follows transposes four rows in each half.
#[inline(always)]
unsafe fn pair(rows: *const u8, stride: isize, i: isize) -> __m256 {
    unsafe { _mm256_insertf128_ps::<1>(_mm256_castps128_ps256(quad(rows, stride, i)), quad(rows, stride, i + 4)) }
}

/// 128 bits of rows `i`, `i + 4`, `i + 8` and `i + 12`.
#[inline(always)]
unsafe fn quads(rows: *const u8, stride: isize, i: isize) -> __m512 {
    unsafe {
        let v = _mm512_castps128_ps512(quad(rows, stride, i));
        let v = _mm512_insertf32x4::<1>(v, quad(rows, stride, i + 4));
        let v = _mm512_insertf32x4::<2>(v, quad(rows, stride, i + 8));
        _mm512_insertf32x4::<3>(v, quad(rows, stride, i + 12))
    }
}
