//! The route for few rows of x: w is read in order, once, and goes straight into the registers.

use super::product::{CHAINS, Product, STRETCH};
use super::simd::Simd;
use super::tile::LINE;
use std::ops::Range;

/// Rows of w that are read side by side: so many chains of multiply-adds keep the units busy for one row of x.
pub(super) const COLUMNS: usize = 4;

/// Computes `columns` of y.
///
/// # Safety
/// [`Simd`]'s conditions; a vector holds no more than `CHAINS` values; the weight is dense and as `BF16` says.
#[inline(always)]
pub(super) unsafe fn few_rows<S: Simd, const BF16: bool>(product: &Product<'_>, columns: Range<usize>) {
    let k = product.weight.shape[1];
    for start in columns.clone().step_by(COLUMNS) {
        let columns = start..columns.end.min(start + COLUMNS);
        for start in (0..k).step_by(STRETCH) {
            let ks = start..k.min(start + STRETCH);
            // Two rows of x, for more would not fit in the registers; the others find w in L1.
            for row in (0..product.m).step_by(2) {
                unsafe {
                    match (row, product.m - row) {
                        (0, 1) => dot::<S, BF16, true, 1>(product, row, &columns, &ks),
                        (0, _) => dot::<S, BF16, true, 2>(product, row, &columns, &ks),
                        (_, 1) => dot::<S, BF16, false, 1>(product, row, &columns, &ks),
                        (_, _) => dot::<S, BF16, false, 2>(product, row, &columns, &ks),
                    }
                }
            }
        }
    }
}

/// `CHAINS` partial sums: one vector, or two.
type Sums<S> = [<S as Simd>::V; 2];

/// Adds a stretch of `R` rows of x with up to `COLUMNS` rows of w to y.
#[inline(always)]
unsafe fn dot<S: Simd, const BF16: bool, const AHEAD: bool, const R: usize>(
    product: &Product<'_>,
    row: usize,
    columns: &Range<usize>,
    ks: &Range<usize>,
) {
    let [n, k] = product.weight.shape;
    let size = product.weight.stored.bytes();
    // Columns that are not there are those of the last.
    let w: [*const u8; COLUMNS] =
        std::array::from_fn(|c| product.weight.at(columns.end.min(columns.start + c + 1) - 1, ks.start));
    let x: [*const f32; R] = std::array::from_fn(|r| product.x[(row + r) * k + ks.start..].as_ptr());
    // Reading goes on with the rows below.
    let below = COLUMNS as isize * product.weight.row_bytes();
    let steps = ks.len() / CHAINS;
    unsafe {
        let mut sums = [[[S::zero(); 2]; COLUMNS]; R];
        for i in 0..steps {
            let at = i * CHAINS * size;
            if AHEAD && at % LINE == 0 {
                for w in w {
                    S::prefetch(w.wrapping_offset(below).wrapping_add(at));
                }
            }
            sums = step::<S, BF16, R>(sums, x, w, i * CHAINS);
        }
        let mut totals = [[[0.0f32; CHAINS]; COLUMNS]; R];
        if steps * CHAINS < ks.len() {
            let rest = ks.start + steps * CHAINS..ks.end;
            let mut xs = [[0.0f32; CHAINS]; R];
            for (r, end) in xs.iter_mut().enumerate() {
                end[..rest.len()].copy_from_slice(&product.x[(row + r) * k..][rest.clone()]);
            }
            let mut ws = [[0.0f32; CHAINS]; COLUMNS];
            for (column, end) in columns.clone().zip(&mut ws) {
                for (at, value) in rest.clone().zip(end) {
                    *value = product.weight.get(column, at);
                }
            }
            sums = step::<S, false, R>(
                sums,
                std::array::from_fn(|r| xs[r].as_ptr()),
                std::array::from_fn(|c| ws[c].as_ptr().cast()),
                0,
            );
        }
        for (r, totals) in totals.iter_mut().enumerate() {
            for (c, totals) in totals.iter_mut().enumerate() {
                for part in 0..CHAINS / S::LANES {
                    S::store(totals[part * S::LANES..].as_mut_ptr(), sums[r][c][part]);
                }
            }
        }
        for (r, totals) in totals.iter().enumerate() {
            for (column, totals) in columns.clone().zip(totals) {
                let y = product.y.0.wrapping_add((row + r) * n + column);
                let first = if ks.start == 0 { 0.0 } else { *y };
                *y = totals.iter().fold(first, |sum, v| sum + v);
            }
        }
    }
}

/// Continues every chain by one.
#[inline(always)]
unsafe fn step<S: Simd, const BF16: bool, const R: usize>(
    mut sums: [[Sums<S>; COLUMNS]; R],
    x: [*const f32; R],
    w: [*const u8; COLUMNS],
    i: usize,
) -> [[Sums<S>; COLUMNS]; R] {
    for part in 0..CHAINS / S::LANES {
        let at = i + part * S::LANES;
        for c in 0..COLUMNS {
            unsafe {
                let w =
                    if BF16 { S::bf16(w[c].wrapping_add(2 * at)) } else { S::load(w[c].wrapping_add(4 * at).cast()) };
                for r in 0..R {
                    sums[r][c][part] = S::fma(w, S::load(x[r].wrapping_add(at)), sums[r][c][part]);
                }
            }
        }
    }
    sums
}
