//! x, widened and laid out for the inner loop.

use super::simd::Simd;
use super::weight::{Stored, Values};
use std::ops::Range;

/// `len` rows in panels of at most `most`, as even as possible.
#[derive(Clone, Copy)]
pub(super) struct Split {
    len: usize,
    pub panels: usize,
}

impl Split {
    pub fn new(len: usize, most: usize) -> Self {
        Self { len, panels: len.div_ceil(most) }
    }

    /// The rows of one panel.
    pub fn rows(self, panel: usize) -> Range<usize> {
        let (each, more) = (self.len / self.panels, self.len % self.panels);
        let start = |p: usize| p * each + p.min(more);
        start(panel)..start(panel + 1)
    }
}

/// The length of a row of x with the zeros that fill its last pair of vectors.
pub(super) fn padded<S: Simd>(k: usize) -> usize {
    k.next_multiple_of(2 * S::LANES)
}

/// Writes one panel: `[pair][half][row][lane]`. Against bf16 weights the halves are the even and the odd places, in
/// which their widening leaves them.
///
/// `out` holds `rows.len() * padded(k)` values.
#[inline(always)]
pub(super) fn pack<S: Simd>(x: Values<'_>, k: usize, rows: Range<usize>, stored: Stored, out: &mut [f32]) {
    match x {
        Values::F32(x) => pack_rows::<S, _>(x, |v| v, k, rows, stored, out),
        Values::Bf16(x) => pack_rows::<S, _>(x, half::bf16::to_f32, k, rows, stored, out),
    }
}

#[inline(always)]
fn pack_rows<S: Simd, T: Copy>(
    x: &[T],
    widen: impl Fn(T) -> f32,
    k: usize,
    rows: Range<usize>,
    stored: Stored,
    out: &mut [f32],
) {
    let (lanes, count) = (S::LANES, rows.len());
    for (r, row) in rows.enumerate() {
        let row = &x[row * k..(row + 1) * k];
        for (values, out) in row.chunks(2 * lanes).zip(out.chunks_exact_mut(2 * lanes * count)) {
            let place = |i: usize| match stored {
                Stored::Bf16 => (i % 2 * count + r) * lanes + i / 2,
                Stored::F32 => (i / lanes * count + r) * lanes + i % lanes,
            };
            for (i, v) in values.iter().enumerate() {
                out[place(i)] = widen(*v);
            }
            for i in values.len()..2 * lanes {
                out[place(i)] = 0.0;
            }
        }
    }
}
