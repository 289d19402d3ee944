use cubecl::client::Client;
use cubecl::prelude::*;

use super::kernel::{Blueprint, ple_combine_kernel};
use crate::embed::Row;
use crate::{Buffer, Caps, Rejected, state};

const KERNEL: &str = "ple_combine";
const TWO_BYTES: usize = 8;
const MOST_PLANES: u32 = 4;

/// One launch; see the [module's documentation](super).
#[derive(Clone, Copy, Debug)]
pub struct PleCombine<'a> {
    /// `[L · P]`, the raw product of the per-layer projection with the embedded token.
    pub context: &'a Buffer<f32>,
    /// `[P]`, weights of the norm.
    pub weight: &'a Buffer<f32>,
    /// The token's row, `[L · P]`.
    pub row: Row<'a>,
    /// The state buffer.
    pub state: &'a Buffer<u32>,
    /// `[L · P]`.
    pub out: &'a Buffer<f32>,
    /// Factor of the context before its norm.
    pub context_scale: f32,
    /// Factor of the row.
    pub row_scale: f32,
    /// Factor of the sum.
    pub scale: f32,
    /// Added to the mean square.
    pub eps: f32,
}

/// Launches `op`.
///
/// # Errors
/// [`Rejected`] for shapes that disagree; nothing was launched.
pub fn ple_combine(client: &Client, caps: Caps, op: &PleCombine) -> Result<(), Rejected> {
    let (all, width) = (op.context.len(), op.weight.len());
    Rejected::unless(width > 0 && width.is_multiple_of(2) && all > 0 && all.is_multiple_of(width), KERNEL, || {
        format!("context of {all} elements in segments of {width}: expected whole segments of an even width")
    })?;
    Rejected::unless(op.out.len() == all, KERNEL, || format!("out has {} elements, expected {all}", op.out.len()))?;
    Rejected::unless(op.state.len() == state::LEN, KERNEL, || {
        format!("state has {} words, expected {}", op.state.len(), state::LEN)
    })?;
    let row = op.row.check(all, KERNEL)?;
    let pairs = width / 2;
    let planes = (pairs as u32).div_ceil(caps.lanes).min(MOST_PLANES).min(caps.max_planes());
    let blueprint = Blueprint { segments: all / width, pairs, planes, source: row.source, caps };
    // SAFETY: every buffer was compared with the shape that the kernel indexes.
    unsafe {
        ple_combine_kernel::launch_unchecked(
            client,
            CubeCount::Static((all / width) as u32, 1, 1),
            CubeDim::new_2d(caps.lanes, planes),
            op.context.arg_of(TWO_BYTES),
            op.weight.arg_of(TWO_BYTES),
            row.parts.into_iter().collect(),
            op.state.arg(),
            op.out.arg_of(TWO_BYTES),
            row.rows_per_part,
            row.last_row,
            op.context_scale,
            op.row_scale,
            op.scale,
            op.eps,
            blueprint,
        );
    }
    Ok(())
}
