use cubecl::client::Client;
use cubecl::prelude::*;
use half::bf16;

use super::kernel::{TokenRow, embed_kernel};
use crate::{Buffer, Caps, Rejected, state};

const KERNEL: &str = "embed";
const PAIR_BYTES: usize = 4;
const UNITS: u32 = 128;
/// Most buffers that one table may be split over.
pub const MAX_PARTS: usize = 8;

/// Where the row of the current token lies.
#[derive(Clone, Copy, Debug)]
pub enum Row<'a> {
    /// A table `[V, width]` on the device; the row is word [`state::TOKEN`] of the state buffer.
    Table {
        /// `rows_per_part · width` elements each, the last one possibly fewer.
        parts: &'a [&'a Buffer<bf16>],
        /// Whole rows in every part but the last.
        rows_per_part: usize,
    },
    /// `width / 2` words of packed bf16 that the host wrote before the step (a replayed graph reads them anew).
    Uploaded(&'a Buffer<u32>),
}

/// [`Row`], checked against a width.
pub(crate) struct RowArgs {
    pub parts: Vec<BufferArg>,
    pub rows_per_part: u32,
    pub last_row: u32,
    pub source: TokenRow,
}

impl Row<'_> {
    pub(crate) fn check(&self, width: usize, kernel: &'static str) -> Result<RowArgs, Rejected> {
        Rejected::unless(width > 0 && width.is_multiple_of(2), kernel, || {
            format!("width {width}, expected an even one")
        })?;
        match *self {
            Row::Uploaded(row) => {
                Rejected::unless(row.len() == width / 2, kernel, || {
                    format!("the uploaded row has {} words, expected {}", row.len(), width / 2)
                })?;
                Ok(RowArgs { parts: vec![row.arg()], rows_per_part: 1, last_row: 0, source: TokenRow::Uploaded })
            }
            Row::Table { parts, rows_per_part } => {
                Rejected::unless((1..=MAX_PARTS).contains(&parts.len()) && rows_per_part > 0, kernel, || {
                    format!("{} parts of {rows_per_part} rows, expected 1 to {MAX_PARTS} of at least one", parts.len())
                })?;
                let mut rows = 0;
                for (i, part) in parts.iter().enumerate() {
                    let full = part.len() == rows_per_part * width;
                    let last = i + 1 == parts.len() && part.len() <= rows_per_part * width && part.len() >= width;
                    Rejected::unless((full || last) && part.len().is_multiple_of(width), kernel, || {
                        format!("part {i} has {} elements, expected {rows_per_part} rows of {width}", part.len())
                    })?;
                    rows += part.len() / width;
                }
                Ok(RowArgs {
                    parts: parts.iter().map(|p| p.arg_of(PAIR_BYTES)).collect(),
                    rows_per_part: rows_per_part as u32,
                    last_row: rows as u32 - 1,
                    source: TokenRow::Table,
                })
            }
        }
    }
}

/// `out = row · scale`, where the row is that of the token in `state`.
///
/// # Shapes
/// Row `[width]` bf16, `out` `[width]` f32, `state` [`state::LEN`] words.
///
/// # Errors
/// [`Rejected`] for other shapes; nothing was launched.
pub fn embed(
    client: &Client,
    caps: Caps,
    row: Row,
    state: &Buffer<u32>,
    out: &Buffer<f32>,
    scale: f32,
) -> Result<(), Rejected> {
    let width = out.len();
    let args = row.check(width, KERNEL)?;
    Rejected::unless(state.len() == state::LEN, KERNEL, || {
        format!("state has {} words, expected {}", state.len(), state::LEN)
    })?;
    let units = UNITS.min(caps.max_units);
    let pairs = width / 2;
    // SAFETY: `check` compared every part with the width; a token is bounded by the last row.
    unsafe {
        embed_kernel::launch_unchecked(
            client,
            CubeCount::Static(pairs.div_ceil(units as usize) as u32, 1, 1),
            CubeDim::new_1d(units),
            args.parts.into_iter().collect(),
            state.arg(),
            out.arg_of(8),
            args.rows_per_part,
            args.last_row,
            scale,
            pairs,
            args.source,
            caps.overlaps,
        );
    }
    Ok(())
}
