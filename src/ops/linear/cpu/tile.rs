//! A tile: some rows of w, transposed and widened to f32.

use super::product::{CHAINS, STRETCH};
use super::simd::Simd;
use super::weight::{Stored, Weight};
use std::ops::Range;

/// Bytes that come from memory at once.
pub(super) const LINE: usize = 64;

/// Columns of y, which are rows of w, that are computed together: two vectors.
pub(super) const fn columns<S: Simd>() -> usize {
    2 * S::LANES
}

/// Values of a tile.
pub(super) const fn values<S: Simd>() -> usize {
    (STRETCH + CHAINS) * columns::<S>()
}

/// Bytes of each row that are transposed at once.
const STEP: usize = 16;

/// The part of w that the next tile is made of.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    at: *const u8,
    stride: isize,
    rows: usize,
    len: usize,
}

impl Ahead {
    pub fn new(weight: &Weight<'_>, rows: Range<usize>, from: usize) -> Self {
        let len = STRETCH.min(weight.shape[1] - from);
        Self { at: weight.at(rows.start, from), stride: weight.row_bytes(), rows: rows.len(), len }
    }

    /// Asks for part `i` of `parts`.
    #[inline(always)]
    pub unsafe fn prefetch<S: Simd, const BF16: bool>(self, i: usize, parts: usize) {
        let size = if BF16 { 2 } else { 4 };
        let lines = STRETCH * size / LINE;
        for line in self.rows * lines * i / parts..self.rows * lines * (i + 1) / parts {
            let at = line % lines * LINE;
            if at < self.len * size {
                // SAFETY: asking for any address is harmless.
                unsafe { S::prefetch(self.at.wrapping_offset((line / lines) as isize * self.stride).wrapping_add(at)) }
            }
        }
    }
}

/// Fills `out`, `[CHAINS, links, columns]`, with rows `columns` of w: link `i` of chain `c` is place `i * CHAINS + c`
/// of `ks`. Zeros where there are fewer rows than columns or fewer places than links.
///
/// # Safety
/// [`Simd`]'s conditions.
#[inline(always)]
pub(super) unsafe fn fill<S: Simd, const BF16: bool>(
    weight: &Weight<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    out: &mut [f32],
) {
    let width = columns::<S>();
    let links = ks.len().div_ceil(CHAINS);
    debug_assert!(out.len() >= links * CHAINS * width && rows.len() <= width);
    let place = |k: usize| (k % CHAINS * (links + 1) + k / CHAINS) * width;
    let step = STEP / if BF16 { Stored::Bf16 } else { Stored::F32 }.bytes();
    let whole = if rows.len() == width && weight.rows_are_dense() { ks.len() / step } else { 0 };
    let (stride, next) = (weight.row_bytes(), (links + 1) * width);
    for i in 0..whole {
        for half in 0..2 {
            let at = weight.at(rows.start + half * S::LANES, ks.start);
            let mut to = out[place(i * step) + half * S::LANES..].as_mut_ptr();
            // SAFETY: all `width` rows have `step` values from here, and so has the tile.
            unsafe {
                for v in S::transposed(at.wrapping_add(i * STEP), stride) {
                    if BF16 {
                        let (even, odd) = S::widen(v);
                        S::store(to, even);
                        S::store(to.wrapping_add(next), odd);
                        to = to.wrapping_add(2 * next);
                    } else {
                        S::store(to, v);
                        to = to.wrapping_add(next);
                    }
                }
            }
        }
    }
    for k in whole * step..links * CHAINS {
        for (c, value) in out[place(k)..][..width].iter_mut().enumerate() {
            *value = if c < rows.len() && k < ks.len() { weight.get(rows.start + c, ks.start + k) } else { 0.0 };
        }
    }
}
