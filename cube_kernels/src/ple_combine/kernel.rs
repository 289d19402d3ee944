use cubecl::prelude::*;

use crate::Caps;
use crate::embed::{TokenRow, row_pair};
use crate::math::{cube_sum, hi, lanes_scratch, lo};
use crate::overlap::{after_wait, wait_for_previous};

type Two = Vector<f32, Const<2>>;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blueprint {
    pub segments: usize,
    /// Pairs of one segment.
    pub pairs: usize,
    pub planes: u32,
    pub source: TokenRow,
    pub caps: Caps,
}

impl Blueprint {
    fn units(&self) -> usize {
        (self.planes * self.caps.lanes) as usize
    }
}

/// One cube per segment.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn ple_combine_kernel(
    context: &mut [Two],
    weight: &[Two],
    parts: &Sequence<Box<[u32]>>,
    words: &[u32],
    out: &mut [Two],
    rows_per_part: u32,
    last_row: u32,
    context_scale: f32,
    row_scale: f32,
    scale: f32,
    eps: f32,
    #[comptime] b: Blueprint,
) {
    wait_for_previous(comptime!(b.caps.overlaps));
    after_wait(context, eps < 0.0f32, comptime!(b.caps.overlaps));
    let unit = UNIT_POS as usize;
    let base = CUBE_POS_X as usize * b.pairs;
    let rounds = comptime!(b.pairs.div_ceil(b.units()));
    let mut values = Array::<Two>::new(rounds);
    let mut rows = Array::<u32>::new(rounds);
    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..rounds {
        let local = unit + comptime!(j * b.units());
        let at = base + min(local, comptime!(b.pairs - 1));
        values[j] = context[at] * Two::new(context_scale);
        rows[j] = row_pair(parts, words, rows_per_part, last_row, at, comptime!(b.segments * b.pairs), b.source);
        if local < b.pairs {
            let v = values[j];
            sum = fma(v.extract(0usize), v.extract(0usize), sum);
            sum = fma(v.extract(1usize), v.extract(1usize), sum);
        }
    }
    let mut scratch = lanes_scratch(comptime!(b.planes * b.caps.lanes), b.caps);
    let mut sums = Shared::<[f32]>::new_slice(comptime!(b.planes as usize));
    let total = cube_sum(sum, &mut sums, &mut scratch, b.planes, b.caps);
    let factor = f32::inverse_sqrt(total / comptime!((2 * b.pairs) as f32) + eps);
    #[unroll]
    for j in 0..rounds {
        let local = unit + comptime!(j * b.units());
        if local < b.pairs {
            let mut row = Two::empty();
            row.insert(0usize, lo(rows[j]) * row_scale);
            row.insert(1usize, hi(rows[j]) * row_scale);
            out[base + local] = (values[j] * Two::new(factor) * weight[local] + row) * Two::new(scale);
        }
    }
}
