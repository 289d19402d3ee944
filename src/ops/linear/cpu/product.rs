//! The two routes of a product: through the registers only, for very few rows of x, and through tiles.
//!
//! Each value of y is one chain of multiply-adds along a stretch of K, and the stretches are added in order. So it does
//! not matter how many rows of x there are, which route they take, how wide the vectors are or how w is stored.

use super::simd::Simd;
use super::tile::{STRETCH, columns, fill, step};
use super::weight::{Stored, Weight};
use std::ops::Range;

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

/// Sums of `R` rows of x with two vectors of columns.
type Sums<S, const R: usize> = [[<S as Simd>::V; 2]; R];

/// Where sums go: rows of x from `row`, columns of y; stretch of K.
#[derive(Clone)]
struct Place {
    row: usize,
    columns: Range<usize>,
    ks: Range<usize>,
}

/// Computes one task's columns of y.
///
/// # Safety
/// [`Simd`]'s conditions; `x` and `y` as long as `product` says; no task twice at a time.
#[inline(always)]
pub(super) unsafe fn run<S: Simd>(product: &Product<'_>, task: usize, tile: &mut Vec<f32>) {
    let [n, k] = product.weight.shape;
    let first = task * product.task_columns;
    let columns_of_task = first..n.min(first + product.task_columns);
    let width = columns::<S>();
    tile.resize(STRETCH * width, 0.0);
    let small = product.m <= S::ROWS_BESIDE_SQUARE && product.weight.rows_are_dense();
    if small {
        for column in columns_of_task.clone().step_by(width) {
            let block = column..columns_of_task.end.min(column + width);
            for start in (0..k).step_by(STRETCH) {
                let place = Place { row: 0, columns: block.clone(), ks: start..k.min(start + STRETCH) };
                let next = following(&product.weight, &place, &columns_of_task, width);
                unsafe {
                    if block.len() == width {
                        match product.m {
                            1 => direct::<S, 1>(product, place, next, tile),
                            2 => direct::<S, 2>(product, place, next, tile),
                            3 => direct::<S, 3>(product, place, next, tile),
                            _ => direct::<S, 4>(product, place, next, tile),
                        }
                    } else {
                        tiled::<S>(product, place, None, tile);
                    }
                }
            }
        }
        return;
    }
    // One stretch of x meets all columns of the task, so that it stays in L2.
    for start in (0..k).step_by(STRETCH) {
        for column in columns_of_task.clone().step_by(width) {
            let block = column..columns_of_task.end.min(column + width);
            let place = Place { row: 0, columns: block, ks: start..k.min(start + STRETCH) };
            unsafe { tiled::<S>(product, place, None, tile) }
        }
    }
}

/// What is read after `place`: the same rows' next stretch, or the start of the next rows.
fn following(weight: &Weight<'_>, place: &Place, task: &Range<usize>, width: usize) -> Option<*const u8> {
    if place.ks.end < weight.shape[1] {
        Some(weight.at(place.columns.start, place.ks.end))
    } else {
        (place.columns.start + 2 * width <= task.end).then(|| weight.at(place.columns.end, 0))
    }
}

/// Multiplies from the weight's own memory: transposed and widened in registers, `R` rows of x.
///
/// # Safety
/// See [`run`]; the rows of w are dense, `place` has all columns.
#[inline(always)]
unsafe fn direct<S: Simd, const R: usize>(product: &Product<'_>, place: Place, next: Option<*const u8>, tile: &mut [f32]) {
    let weight = &product.weight;
    let step = step::<S>(weight.stored);
    let whole = place.ks.len() / step;
    let stride = weight.row_bytes();
    let row_bytes = STRETCH * weight.stored.bytes();
    let rows_each = columns::<S>().div_ceil(whole.max(1));
    let x: [*const f32; R] = std::array::from_fn(|r| product.x[r * weight.shape[1] + place.ks.start..].as_ptr());
    unsafe {
        let mut sums: Sums<S, R> = [[S::zero(); 2]; R];
        let mut at = weight.at(place.columns.start, place.ks.start);
        for i in 0..whole {
            if let Some(next) = next {
                for row in i * rows_each..columns::<S>().min((i + 1) * rows_each) {
                    for line in (0..row_bytes).step_by(64) {
                        S::prefetch(next.wrapping_offset(row as isize * stride).wrapping_add(line));
                    }
                }
            }
            for half in 0..2 {
                let square = S::transposed(at.wrapping_offset((half * S::LANES) as isize * stride), stride);
                for (j, v) in square.as_ref().iter().enumerate() {
                    match weight.stored {
                        Stored::F32 => {
                            for (sums, x) in sums.iter_mut().zip(x) {
                                sums[half] = S::fma(*v, S::splat(x.wrapping_add(i * step + j)), sums[half]);
                            }
                        }
                        Stored::Bf16 => {
                            let (even, odd) = S::widen(*v);
                            for (sums, x) in sums.iter_mut().zip(x) {
                                let x = x.wrapping_add(i * step + 2 * j);
                                sums[half] = S::fma(even, S::splat(x), sums[half]);
                                sums[half] = S::fma(odd, S::splat(x.wrapping_add(1)), sums[half]);
                            }
                        }
                    }
                }
            }
            at = at.wrapping_add(S::LANES * 4);
        }
        let rest = place.ks.start + whole * step..place.ks.end;
        if !rest.is_empty() {
            fill::<S>(weight, place.columns.clone(), rest.clone(), tile);
            accumulate::<S, R>(x.map(|x| x.wrapping_add(whole * step)), tile, rest.len(), &mut sums);
        }
        add::<S, R>(product, &place, &sums);
    }
}

/// Multiplies all of x with one tile.
///
/// # Safety
/// See [`run`].
#[inline(always)]
unsafe fn tiled<S: Simd>(product: &Product<'_>, place: Place, _next: Option<*const u8>, tile: &mut [f32]) {
    let panels = product.m.div_ceil(S::ROWS);
    unsafe {
        fill::<S>(&product.weight, place.columns.clone(), place.ks.clone(), tile);
        for panel in 0..panels {
            // As even as possible: a panel of one row is slow.
            let rows = product.m * panel / panels..product.m * (panel + 1) / panels;
            let place = Place { row: rows.start, ..place.clone() };
            match rows.len() {
                1 => panel_of::<S, 1>(product, &place, tile),
                2 => panel_of::<S, 2>(product, &place, tile),
                3 => panel_of::<S, 3>(product, &place, tile),
                4 => panel_of::<S, 4>(product, &place, tile),
                5 => panel_of::<S, 5>(product, &place, tile),
                6 => panel_of::<S, 6>(product, &place, tile),
                7 => panel_of::<S, 7>(product, &place, tile),
                _ => panel_of::<S, 8>(product, &place, tile),
            }
        }
    }
}

#[inline(always)]
unsafe fn panel_of<S: Simd, const R: usize>(product: &Product<'_>, place: &Place, tile: &[f32]) {
    let k = product.weight.shape[1];
    let x = std::array::from_fn(|r| product.x[(place.row + r) * k + place.ks.start..].as_ptr());
    unsafe {
        let mut sums = [[S::zero(); 2]; R];
        accumulate::<S, R>(x, tile, place.ks.len(), &mut sums);
        add::<S, R>(product, place, &sums);
    }
}

/// Continues the sums over `len` values of K: the inner loop.
///
/// # Safety
/// [`Simd`]'s conditions; `len` values behind each of x, and `len` rows of the tile.
#[inline(always)]
unsafe fn accumulate<S: Simd, const R: usize>(x: [*const f32; R], tile: &[f32], len: usize, sums: &mut Sums<S, R>) {
    debug_assert!(tile.len() >= len * columns::<S>());
    let mut acc = *sums;
    let mut w = tile.as_ptr();
    for i in 0..len {
        unsafe {
            let (a, b) = (S::load(w), S::load(w.wrapping_add(S::LANES)));
            for r in 0..R {
                let x = S::splat(x[r].wrapping_add(i));
                acc[r] = [S::fma(a, x, acc[r][0]), S::fma(b, x, acc[r][1])];
            }
        }
        w = w.wrapping_add(columns::<S>());
    }
    *sums = acc;
}

/// Adds one stretch's sums to y; the first stretch's are y.
///
/// # Safety
/// See [`run`].
#[inline(always)]
unsafe fn add<S: Simd, const R: usize>(product: &Product<'_>, place: &Place, sums: &Sums<S, R>) {
    let n = product.weight.shape[0];
    for (r, sums) in sums.iter().enumerate() {
        let y = product.y.0.wrapping_add((place.row + r) * n + place.columns.start);
        unsafe {
            if place.columns.len() == columns::<S>() {
                for (half, sum) in sums.iter().enumerate() {
                    let y = y.wrapping_add(half * S::LANES);
                    S::store(y, if place.ks.start == 0 { *sum } else { S::add(S::load(y), *sum) });
                }
            } else {
                // At most AVX-512's width.
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
