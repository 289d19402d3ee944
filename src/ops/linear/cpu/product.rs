//! The two routes of a product: through the registers only, for very few rows of x, and through tiles.
//!
//! Each value of y is one chain of multiply-adds along a stretch of K, and the stretches are added in order. So it does
//! not matter how many rows of x there are, which route they take, how wide the vectors are or how w is stored.

use super::direct::direct;
use super::simd::Simd;
use super::tile::{Ahead, STRETCH, columns, fill};
use super::weight::{Stored, Weight};
use std::ops::Range;

/// Up to so many rows of x, w is multiplied without a tile between.
const DIRECT_ROWS: usize = 4;

/// One product: everything that its tasks share.
pub(super) struct Product<'a> {
    /// `[M, K]`
    pub x: &'a [f32],
    pub weight: Weight<'a>,
    /// `[M, N]`
    pub y: Output,
    pub m: usize,
    /// Rows of w per task.
    pub task_columns: usize,
}

/// y, of which each task writes its own columns.
#[derive(Clone, Copy)]
pub(super) struct Output(pub *mut f32);
// SAFETY: the tasks of a product write disjoint places.
unsafe impl Send for Output {}
unsafe impl Sync for Output {}

/// Computes one task's columns of y.
///
/// # Safety
/// [`Simd`]'s conditions; `x` and `y` as long as `product` says; no task twice at a time.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(product: &Product<'_>, task: usize, tile: &mut Vec<f32>) {
    let first = task * product.task_columns;
    let task = first..product.weight.shape[0].min(first + product.task_columns);
    tile.resize(STRETCH * columns::<S>(), 0.0);
    unsafe {
        match product.weight.stored {
            Stored::F32 => run_stored::<S, false>(product, task, tile),
            Stored::Bf16 => run_stored::<S, true>(product, task, tile),
        }
    }
}

#[inline(always)]
unsafe fn run_stored<S: Simd, const BF16: bool>(product: &Product<'_>, task: Range<usize>, tile: &mut [f32]) {
    let [_, k] = product.weight.shape;
    let dense = product.weight.rows_are_dense();
    let mut rest = task.clone();
    unsafe {
        if product.m <= DIRECT_ROWS && dense {
            rest.start += task.len() / S::LANES * S::LANES;
            for column in (task.start..rest.start).step_by(S::LANES) {
                match product.m {
                    1 => direct::<S, BF16, 1>(product, column, &task),
                    2 => direct::<S, BF16, 2>(product, column, &task),
                    3 => direct::<S, BF16, 3>(product, column, &task),
                    _ => direct::<S, BF16, 4>(product, column, &task),
                }
            }
        }
        // One stretch of x meets all columns of the task, so that it stays in L2.
        for start in (0..k).step_by(STRETCH) {
            let ks = start..k.min(start + STRETCH);
            for column in rest.clone().step_by(columns::<S>()) {
                let place = Place { columns: column..rest.end.min(column + columns::<S>()), ks: ks.clone() };
                let next = if place.columns.end < rest.end {
                    Some((place.columns.end, start))
                } else {
                    (ks.end < k).then_some((rest.start, ks.end))
                };
                let ahead = next
                    .filter(|_| dense && ks.len() == STRETCH)
                    .map(|(row, from)| Ahead { at: product.weight.at(row, from), stride: product.weight.row_bytes() });
                fill::<S, BF16>(&product.weight, place.columns.clone(), ks.clone(), ahead, tile);
                multiply::<S>(product, &place, tile);
            }
        }
    }
}

/// Columns of y, and the stretch of K.
pub(super) struct Place {
    columns: Range<usize>,
    ks: Range<usize>,
}

/// Multiplies all of x with one tile.
#[inline(always)]
unsafe fn multiply<S: Simd>(product: &Product<'_>, place: &Place, tile: &[f32]) {
    let panels = product.m.div_ceil(S::ROWS);
    for panel in 0..panels {
        // As even as possible: a panel of one row is slow.
        let rows = product.m * panel / panels..product.m * (panel + 1) / panels;
        unsafe {
            match rows.len() {
                1 => multiply_rows::<S, 1>(product, place, rows.start, tile),
                2 => multiply_rows::<S, 2>(product, place, rows.start, tile),
                3 => multiply_rows::<S, 3>(product, place, rows.start, tile),
                4 => multiply_rows::<S, 4>(product, place, rows.start, tile),
                5 => multiply_rows::<S, 5>(product, place, rows.start, tile),
                6 => multiply_rows::<S, 6>(product, place, rows.start, tile),
                7 => multiply_rows::<S, 7>(product, place, rows.start, tile),
                _ => multiply_rows::<S, 8>(product, place, rows.start, tile),
            }
        }
    }
}

/// The inner loop: `R` rows of x from `row` on with one tile, added to y.
#[inline(always)]
unsafe fn multiply_rows<S: Simd, const R: usize>(product: &Product<'_>, place: &Place, row: usize, tile: &[f32]) {
    let [n, k] = product.weight.shape;
    let mut x = [std::ptr::null::<f32>(); R];
    for (r, x) in x.iter_mut().enumerate() {
        *x = product.x[(row + r) * k..][place.ks.clone()].as_ptr();
    }
    debug_assert!(tile.len() >= place.ks.len() * columns::<S>());
    let mut w = tile.as_ptr();
    unsafe {
        let mut sums = [[S::zero(); 2]; R];
        for i in 0..place.ks.len() {
            let (a, b) = (S::load(w), S::load(w.wrapping_add(S::LANES)));
            for r in 0..R {
                let x = S::splat(x[r].wrapping_add(i));
                sums[r] = [S::fma(a, x, sums[r][0]), S::fma(b, x, sums[r][1])];
            }
            w = w.wrapping_add(columns::<S>());
        }
        for (r, sums) in sums.iter().enumerate() {
            let y = product.y.0.wrapping_add((row + r) * n + place.columns.start);
            if place.columns.len() == columns::<S>() {
                add::<S>(y, sums[0], place.ks.start == 0);
                add::<S>(y.wrapping_add(S::LANES), sums[1], place.ks.start == 0);
            } else {
                // As long as the widest tile has columns.
                let mut values = [0.0f32; 32];
                S::store(values.as_mut_ptr(), sums[0]);
                S::store(values.as_mut_ptr().wrapping_add(S::LANES), sums[1]);
                for (c, value) in values.iter().take(place.columns.len()).enumerate() {
                    let y = y.wrapping_add(c);
                    *y = if place.ks.start == 0 { *value } else { *y + *value };
                }
            }
        }
    }
}

/// Adds one stretch's sums to y; the first stretch's are y.
#[inline(always)]
pub(super) unsafe fn add<S: Simd>(y: *mut f32, sum: S::V, first: bool) {
    unsafe { S::store(y, if first { sum } else { S::add(S::load(y), sum) }) }
}
