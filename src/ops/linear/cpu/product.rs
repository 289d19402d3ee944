//! One product, and the route for many rows of x.
//!
//! A value of y is a sum of chains of multiply-adds: in each stretch of K, chain `c` goes through every place that is
//! `c` modulo [`CHAINS`], and chain after chain, stretch after stretch is added. So it does not matter how many rows of
//! x there are, which route they take, how wide the vectors are or how w is stored. The chains are what a dot product
//! along K has in the lanes of a vector (few rows); here, where columns are in the lanes, they follow each other.

use super::dot::few_rows;
use super::simd::Simd;
use super::tile::{self, Ahead, columns, fill};
use super::weight::{Stored, Weight};
use std::ops::Range;

/// Chains in a stretch.
pub(super) const CHAINS: usize = 8;

/// The stretch of K whose chains are added up before the next begins: a tile of this length fits in L2 along with x,
/// longer chains would lose more to rounding, and shorter ones more time to being added.
pub(super) const STRETCH: usize = 512;

/// One product: everything that its tasks share.
pub(super) struct Product<'a> {
    /// `[M, K]`, or what [`chained`] makes of it.
    pub x: &'a [f32],
    pub weight: Weight<'a>,
    /// `[M, N]`
    pub y: Output,
    pub m: usize,
    /// Whether this is the route for few rows.
    pub few: bool,
    /// Columns of y per task.
    pub task_columns: usize,
}

/// y, of which each task writes its own columns.
#[derive(Clone, Copy)]
pub(super) struct Output(pub *mut f32);
// SAFETY: the tasks of a product write disjoint places.
unsafe impl Send for Output {}
unsafe impl Sync for Output {}

/// Makes `out` a row of x with the links of a chain next to each other in each stretch. What x does not fill
/// stays as it is.
pub(super) fn chained(x: &[f32], out: &mut [f32]) {
    for (x, out) in x.chunks(STRETCH).zip(out.chunks_mut(STRETCH)) {
        let links = out.len() / CHAINS;
        for (i, x) in x.chunks(CHAINS).enumerate() {
            for (c, x) in x.iter().enumerate() {
                out[c * links + i] = *x;
            }
        }
    }
}

/// Computes one task's columns of y; `D` is for few rows.
///
/// # Safety
/// [`Simd`]'s conditions; `x` and `y` as long as `product` says; no task twice at a time.
#[inline(always)]
pub(super) unsafe fn run<S: Simd, D: Simd>(product: &Product<'_>, task: usize, tile: &mut Vec<f32>) {
    let first = task * product.task_columns;
    let task = first..product.weight.shape[0].min(first + product.task_columns);
    unsafe {
        match (product.few, product.weight.stored) {
            (true, Stored::F32) => few_rows::<D, false>(product, task),
            (true, Stored::Bf16) => few_rows::<D, true>(product, task),
            (false, Stored::F32) => many_rows::<S, false>(product, task, tile),
            (false, Stored::Bf16) => many_rows::<S, true>(product, task, tile),
        }
    }
}

#[inline(always)]
unsafe fn many_rows<S: Simd, const BF16: bool>(product: &Product<'_>, task: Range<usize>, tile: &mut Vec<f32>) {
    let k = product.weight.shape[1];
    tile.resize(tile::values::<S>(), 0.0);
    // One stretch of x meets all columns of the task, so that it stays in L2.
    for start in (0..k).step_by(STRETCH) {
        let ks = start..k.min(start + STRETCH);
        for column in task.clone().step_by(columns::<S>()) {
            let place = Place { columns: column..task.end.min(column + columns::<S>()), ks: ks.clone() };
            let next = if place.columns.end < task.end { (place.columns.end, start) } else { (task.start, ks.end) };
            let ahead = (next.1 < k && product.weight.rows_are_dense())
                .then(|| Ahead::new(&product.weight, next.0..task.end.min(next.0 + columns::<S>()), next.1));
            unsafe {
                fill::<S, BF16>(&product.weight, place.columns.clone(), ks.clone(), tile);
                multiply::<S, BF16>(product, &place, tile, ahead);
            }
        }
    }
}

/// Columns of y, and the stretch of K.
struct Place {
    columns: Range<usize>,
    ks: Range<usize>,
}

/// Multiplies all of x with one tile.
#[inline(always)]
unsafe fn multiply<S: Simd, const BF16: bool>(
    product: &Product<'_>,
    place: &Place,
    tile: &[f32],
    ahead: Option<Ahead>,
) {
    let panels = product.m.div_ceil(S::ROWS);
    for panel in 0..panels {
        let ahead = ahead.map(|ahead| (ahead, panel, panels));
        // As even as possible: a panel of one row is slow.
        let rows = product.m * panel / panels..product.m * (panel + 1) / panels;
        unsafe {
            match rows.len() {
                1 => multiply_rows::<S, BF16, 1>(product, place, rows.start, tile, ahead),
                2 => multiply_rows::<S, BF16, 2>(product, place, rows.start, tile, ahead),
                3 => multiply_rows::<S, BF16, 3>(product, place, rows.start, tile, ahead),
                4 => multiply_rows::<S, BF16, 4>(product, place, rows.start, tile, ahead),
                5 => multiply_rows::<S, BF16, 5>(product, place, rows.start, tile, ahead),
                6 => multiply_rows::<S, BF16, 6>(product, place, rows.start, tile, ahead),
                7 => multiply_rows::<S, BF16, 7>(product, place, rows.start, tile, ahead),
                _ => multiply_rows::<S, BF16, 8>(product, place, rows.start, tile, ahead),
            }
        }
    }
}

/// `R` rows of x from `row` on with one tile, added to y.
#[inline(always)]
unsafe fn multiply_rows<S: Simd, const BF16: bool, const R: usize>(
    product: &Product<'_>,
    place: &Place,
    row: usize,
    tile: &[f32],
    ahead: Option<(Ahead, usize, usize)>,
) {
    let [n, k] = product.weight.shape;
    let links = place.ks.len().div_ceil(CHAINS);
    debug_assert!(tile.len() >= links * CHAINS * columns::<S>());
    let mut x: [*const f32; R] =
        std::array::from_fn(|r| product.x[(row + r) * k.next_multiple_of(CHAINS) + place.ks.start..].as_ptr());
    let mut w = tile.as_ptr();
    let y: [*mut f32; R] = std::array::from_fn(|r| product.y.0.wrapping_add((row + r) * n + place.columns.start));
    let whole = place.columns.len() == columns::<S>();
    unsafe {
        let mut totals = [[S::zero(); 2]; R];
        if place.ks.start > 0 {
            for r in 0..R {
                // As long as the widest tile has columns.
                let mut values = [0.0f32; 32];
                let from = if whole {
                    y[r].cast_const()
                } else {
                    values.as_mut_ptr().copy_from_nonoverlapping(y[r], place.columns.len());
                    values.as_ptr()
                };
                totals[r] = [S::load(from), S::load(from.wrapping_add(S::LANES))];
            }
        }
        for chain in 0..CHAINS {
            if let Some((ahead, panel, panels)) = ahead {
                ahead.prefetch::<S, BF16>(panel * CHAINS + chain, panels * CHAINS);
            }
            let mut sums = [[S::zero(); 2]; R];
            for i in 0..links {
                let (a, b) = (S::load(w), S::load(w.wrapping_add(S::LANES)));
                for r in 0..R {
                    let x = S::splat(x[r].wrapping_add(i));
                    sums[r] = [S::fma(a, x, sums[r][0]), S::fma(b, x, sums[r][1])];
                }
                w = w.wrapping_add(columns::<S>());
            }
            for r in 0..R {
                totals[r] = [S::add(totals[r][0], sums[r][0]), S::add(totals[r][1], sums[r][1])];
                x[r] = x[r].wrapping_add(links);
            }
            w = w.wrapping_add(columns::<S>());
        }
        for (y, totals) in y.into_iter().zip(totals) {
            if whole {
                S::store(y, totals[0]);
                S::store(y.wrapping_add(S::LANES), totals[1]);
            } else {
                let mut values = [0.0f32; 32];
                S::store(values.as_mut_ptr(), totals[0]);
                S::store(values.as_mut_ptr().wrapping_add(S::LANES), totals[1]);
                y.copy_from_nonoverlapping(values.as_ptr(), place.columns.len());
            }
        }
    }
}
