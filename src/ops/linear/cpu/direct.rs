//! The route for one to four rows of x: w is transposed and widened in registers and never stored again.

use super::product::{Product, add};
use super::simd::Simd;
use super::tile::{Ahead, LINE, STEP, STRETCH};
use std::ops::Range;

/// One vector of columns of y from `column` on, for `R` rows of x.
///
/// # Safety
/// [`Simd`]'s conditions; the weight is dense and has all these rows; `product.m` is `R`.
#[inline(always)]
pub(super) unsafe fn direct<S: Simd, const BF16: bool, const R: usize>(
    product: &Product<'_>,
    column: usize,
    task: &Range<usize>,
) {
    let weight = &product.weight;
    let [_, k] = weight.shape;
    let whole = k / STRETCH;
    // One chain of multiply-adds waits for itself, and two keep the units busy enough. More would read faster from the
    // cache, but what they need and what is asked for ahead no longer fit in L1 together.
    let groups = whole.div_ceil(2);
    for group in 0..groups {
        let stretches = whole * group / groups..whole * (group + 1) / groups;
        let from = stretches.start * STRETCH;
        let next = if group + 1 < groups {
            Some((column, stretches.end * STRETCH))
        } else {
            (column + 2 * S::LANES <= task.end).then_some((column + S::LANES, 0))
        };
        let ahead = next.map(|(row, from)| Ahead { at: weight.at(row, from), stride: weight.row_bytes() });
        unsafe {
            match stretches.len() {
                1 => group_of::<S, BF16, R, 1>(product, column, from, ahead),
                _ => group_of::<S, BF16, R, 2>(product, column, from, ahead),
            }
        }
    }
    if whole * STRETCH < k {
        unsafe { last::<S, BF16, R>(product, column, whole * STRETCH) }
    }
}

/// `P` stretches, one or two, from `from` on, side by side.
#[inline(always)]
unsafe fn group_of<S: Simd, const BF16: bool, const R: usize, const P: usize>(
    product: &Product<'_>,
    column: usize,
    from: usize,
    ahead: Option<Ahead>,
) {
    let [n, k] = product.weight.shape;
    let size = if BF16 { 2 } else { 4 };
    let stride = product.weight.row_bytes();
    let lines = STRETCH * size / LINE;
    let w = product.weight.at(column, from);
    let x = product.x[from..].as_ptr();
    unsafe {
        let mut sums = [[S::zero(); R]; 2];
        for i in 0..lines {
            for part in 0..LINE / STEP {
                if let Some(ahead) = ahead {
                    ahead.prefetch::<S>(S::LANES, P * lines, i * (LINE / STEP) + part, lines * (LINE / STEP));
                }
                let w = w.wrapping_add(i * LINE + part * STEP);
                let x = x.wrapping_add((i * LINE + part * STEP) / size);
                // A step of each chain in turn, for the processor looks only a few hundred instructions ahead.
                sums[0] = advance::<S, BF16, R>(w, stride, x, k, sums[0]);
                if P > 1 {
                    let (w, x) = (w.wrapping_add(STRETCH * size), x.wrapping_add(STRETCH));
                    sums[1] = advance::<S, BF16, R>(w, stride, x, k, sums[1]);
                }
            }
        }
        for r in 0..R {
            for (p, sums) in sums.iter().take(P).enumerate() {
                add::<S>(product.y.0.wrapping_add(r * n + column), sums[r], from + p == 0);
            }
        }
    }
}

/// The end of K that is no whole stretch.
#[inline(always)]
unsafe fn last<S: Simd, const BF16: bool, const R: usize>(product: &Product<'_>, column: usize, from: usize) {
    let [n, k] = product.weight.shape;
    let step = if BF16 { STEP / 2 } else { STEP / 4 };
    let steps = (k - from) / step;
    unsafe {
        let mut sums = [S::zero(); R];
        for i in 0..steps {
            let w = product.weight.at(column, from + i * step);
            let x = product.x[from + i * step..].as_ptr();
            sums = advance::<S, BF16, R>(w, product.weight.row_bytes(), x, k, sums);
        }
        for at in from + steps * step..k {
            // As many as the widest vector has lanes.
            let mut values = [0.0f32; 16];
            for (c, value) in values.iter_mut().take(S::LANES).enumerate() {
                *value = product.weight.get(column + c, at);
            }
            let w = S::load(values.as_ptr());
            for (r, sum) in sums.iter_mut().enumerate() {
                *sum = S::fma(w, S::splat(&product.x[r * k + at]), *sum);
            }
        }
        for (r, sum) in sums.into_iter().enumerate() {
            add::<S>(product.y.0.wrapping_add(r * n + column), sum, from == 0);
        }
    }
}

/// Continues the sums with sixteen bytes of each of `LANES` rows of w.
#[inline(always)]
unsafe fn advance<S: Simd, const BF16: bool, const R: usize>(
    w: *const u8,
    stride: isize,
    x: *const f32,
    k: usize,
    mut sums: [S::V; R],
) -> [S::V; R] {
    unsafe {
        let mut x = x;
        for v in S::transposed(w, stride) {
            if BF16 {
                let (even, odd) = S::widen(v);
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(even, S::splat(x.wrapping_add(r * k)), *sum);
                    *sum = S::fma(odd, S::splat(x.wrapping_add(r * k + 1)), *sum);
                }
                x = x.wrapping_add(2);
            } else {
                for (r, sum) in sums.iter_mut().enumerate() {
                    *sum = S::fma(v, S::splat(x.wrapping_add(r * k)), *sum);
                }
                x = x.wrapping_add(1);
            }
        }
    }
    sums
}
