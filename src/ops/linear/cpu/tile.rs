//! A tile: some rows of w, transposed and widened to f32.

use super::simd::Simd;
use super::weight::{Stored, Weight};
use std::ops::Range;

/// The stretch of K whose products are added up by themselves before they join the result.
///
/// It decides the order of additions, so that it is the same for every route and every instruction set. A tile of
/// this length fits in L1, and short sums lose less to rounding.
pub(super) const STRETCH: usize = 256;

/// Columns of y, which are rows of w, that are computed together: two vectors.
pub(super) const fn columns<S: Simd>() -> usize {
    2 * S::LANES
}

/// Values of K in one vector of a row.
pub(super) fn step<S: Simd>(stored: Stored) -> usize {
    S::LANES * 4 / stored.bytes()
}

/// Fills `out`, `[ks.len(), columns]`, with rows `columns` of w; zeros where there are fewer rows than columns.
///
/// # Safety
/// [`Simd`]'s conditions.
#[inline(always)]
pub(super) unsafe fn fill<S: Simd>(weight: &Weight<'_>, rows: Range<usize>, ks: Range<usize>, out: &mut [f32]) {
    let width = columns::<S>();
    debug_assert!(out.len() >= ks.len() * width && rows.len() <= width);
    let step = step::<S>(weight.stored);
    let whole = if rows.len() == width && weight.rows_are_dense() { ks.len() / step } else { 0 };
    for i in 0..whole {
        for half in 0..2 {
            let at = weight.at(rows.start + half * S::LANES, ks.start + i * step);
            let place = out[i * step * width + half * S::LANES..].as_mut_ptr();
            // SAFETY: all `width` rows have `step` values from here, and so has the tile.
            unsafe {
                let square = S::transposed(at, weight.row_bytes());
                for (j, v) in square.as_ref().iter().enumerate() {
                    match weight.stored {
                        Stored::F32 => S::store(place.wrapping_add(j * width), *v),
                        Stored::Bf16 => {
                            let (even, odd) = S::widen(*v);
                            S::store(place.wrapping_add(2 * j * width), even);
                            S::store(place.wrapping_add((2 * j + 1) * width), odd);
                        }
                    }
                }
            }
        }
    }
    for k in whole * step..ks.len() {
        for c in 0..width {
            out[k * width + c] = if c < rows.len() { weight.get(rows.start + c, ks.start + k) } else { 0.0 };
        }
    }
}
