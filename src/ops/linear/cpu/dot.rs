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
    const { assert!(S::LANES <= CHAINS) };
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

/// Adds a stretch of `R` rows of x times up to `COLUMNS` rows of w to y; `AHEAD` asks for the rows of w that come next.
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
    let below = COLUMNS as isize * product.weight.row_bytes();
    let steps = ks.len() / CHAINS;
    unsafe {
        let mut sums = [[[S::zero(); 2]; COLUMNS]; R];
        for i in 0..steps {
            let at = i * CHAINS * size;
            if AHEAD && at.is_multiple_of(LINE) {
                for w in w {
                    S::prefetch(w.wrapping_offset(below).wrapping_add(at));
                }
            }
            sums = step::<S, BF16, R>(sums, x, w, i * CHAINS);
        }
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
        for (r, sums) in sums.into_iter().enumerate() {
            for (column, sums) in columns.clone().zip(sums) {
                let mut chains = [0.0f32; CHAINS];
                for (part, sum) in chains.chunks_exact_mut(S::LANES).zip(sums) {
                    S::store(part.as_mut_ptr(), sum);
                }
                let y = product.y.0.wrapping_add((row + r) * n + column);
                let first = if ks.start == 0 { 0.0 } else { *y };
                *y = chains.iter().fold(first, |sum, chain| sum + chain);
            }
        }
    }
}

/// Continues every chain by one, at place `i`.
#[inline(always)]
unsafe fn step<S: Simd, const BF16: bool, const R: usize>(
    mut sums: [[Sums<S>; COLUMNS]; R],
    x: [*const f32; R],
    w: [*const u8; COLUMNS],
    i: usize,
) -> [[Sums<S>; COLUMNS]; R] {
    for lane in (0..CHAINS).step_by(S::LANES) {
        let (at, part) = (i + lane, lane / S::LANES);
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
