//! A tile: some rows of w, transposed and widened to f32.

use super::simd::Simd;
use super::weight::{Stored, Weight};
use std::ops::Range;

/// The stretch of K whose products are added up by themselves before they join the result.
///
/// It decides the order of additions, so that it is the same for every route and every instruction set. A tile of
/// this length fits in L1, and short sums lose less to rounding.
pub(super) const STRETCH: usize = 256;

/// Bytes that come from memory at once.
pub(super) const LINE: usize = 64;

/// Columns of y, which are rows of w, that are computed together: two vectors.
pub(super) const fn columns<S: Simd>() -> usize {
    2 * S::LANES
}

/// Bytes of each row that are transposed at once.
pub(super) const STEP: usize = 16;

/// Memory that will be read next: the same part of some rows.
#[derive(Clone, Copy)]
pub(super) struct Ahead {
    pub at: *const u8,
    pub stride: isize,
}

impl Ahead {
    /// Asks for part `i` of `parts` of `lines` lines in each of `rows` rows. Row after row: a stretch of a row comes
    /// faster from memory than a line of each. All but `i` should be constants, for this is in the inner loop.
    #[inline(always)]
    pub unsafe fn prefetch<S: Simd>(self, rows: usize, lines: usize, i: usize, parts: usize) {
        let each = rows * lines / parts;
        let (row, line) = (i * each / lines, i * each % lines);
        for r in 0..each.div_ceil(lines) {
            let at = self.at.wrapping_offset((row + r) as isize * self.stride).wrapping_add(line * LINE);
            for l in 0..each.min(lines) {
                // SAFETY: asking for any address is harmless.
                unsafe { S::prefetch(at.wrapping_add(l * LINE)) }
            }
        }
    }
}

/// Fills `out`, `[ks.len(), columns]`, with rows `columns` of w; zeros where there are fewer rows than columns.
///
/// # Safety
/// [`Simd`]'s conditions.
#[inline(always)]
pub(super) unsafe fn fill<S: Simd, const BF16: bool>(
    weight: &Weight<'_>,
    rows: Range<usize>,
    ks: Range<usize>,
    ahead: Option<Ahead>,
    out: &mut [f32],
) {
    let width = columns::<S>();
    debug_assert!(out.len() >= ks.len() * width && rows.len() <= width);
    let stored = if BF16 { Stored::Bf16 } else { Stored::F32 };
    let step = STEP / stored.bytes();
    let whole = if rows.len() == width && weight.rows_are_dense() { ks.len() / step } else { 0 };
    let stride = weight.row_bytes();
    for half in 0..if whole > 0 { 2 } else { 0 } {
        // One vector of rows all along: two would meet in the same places of L1 when rows are a multiple of 4 KB.
        let mut at = weight.at(rows.start + half * S::LANES, ks.start);
        let mut place = out[half * S::LANES..].as_mut_ptr();
        for i in 0..whole {
            // SAFETY: all `width` rows have `step` values from here, and so has the tile.
            unsafe {
                if let Some(ahead) = ahead {
                    let lines = STRETCH * stored.bytes() / LINE;
                    ahead.prefetch::<S>(width, lines, half * whole + i, 2 * STRETCH / step);
                }
                for v in S::transposed(at, stride) {
                    if BF16 {
                        let (even, odd) = S::widen(v);
                        S::store(place, even);
                        S::store(place.wrapping_add(width), odd);
                        place = place.wrapping_add(2 * width);
                    } else {
                        S::store(place, v);
                        place = place.wrapping_add(width);
                    }
                }
            }
            at = at.wrapping_add(STEP);
        }
    }
    for k in whole * step..ks.len() {
        for c in 0..width {
            out[k * width + c] = if c < rows.len() { weight.get(rows.start + c, ks.start + k) } else { 0.0 };
        }
    }
}
