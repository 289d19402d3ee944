use cubecl::prelude::*;

use crate::math::{hi, lo};
use crate::overlap::wait_for_previous;
use crate::state;

/// How a row is found, at compile time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum TokenRow {
    /// Row `TOKEN` of a table.
    Table,
    /// The only row there is.
    Uploaded,
}

/// Pair `at` of the row that belongs to the token: two bf16 in one word.
#[cube]
pub(crate) fn row_pair(
    parts: &Sequence<Box<[u32]>>,
    words: &[u32],
    rows_per_part: u32,
    last_row: u32,
    at: usize,
    #[comptime] pairs: usize,
    #[comptime] source: TokenRow,
) -> u32 {
    let mut pair = 0u32;
    if comptime!(source == TokenRow::Uploaded) {
        let part = &parts[0];
        pair = part[at];
    } else {
        let token = min(words[comptime!(state::TOKEN)], last_row);
        let part_of_token = token / rows_per_part;
        let row = (token % rows_per_part) as usize;
        #[unroll]
        for p in 0..parts.len() {
            if part_of_token == comptime!(p as u32) {
                let part = &parts[p];
                pair = part[row * pairs + at];
            }
        }
    }
    pair
}

/// One unit per pair of the row.
#[cube(launch_unchecked)]
pub(super) fn embed_kernel(
    parts: &Sequence<Box<[u32]>>,
    words: &[u32],
    out: &mut [Vector<f32, Const<2>>],
    rows_per_part: u32,
    last_row: u32,
    scale: f32,
    #[comptime] pairs: usize,
    #[comptime] source: TokenRow,
    #[comptime] overlaps: bool,
) {
    wait_for_previous(overlaps);
    let at = ABSOLUTE_POS;
    if at < pairs {
        let pair = row_pair(parts, words, rows_per_part, last_row, at, pairs, source);
        let mut value = Vector::<f32, Const<2>>::empty();
        value.insert(0usize, lo(pair) * scale);
        value.insert(1usize, hi(pair) * scale);
        out[at] = value;
    }
}
