use cubecl::client::Client;
use cubecl::prelude::*;

use super::kernel::argmax_kernel;
use crate::{Buffer, Caps, Rejected, state};

const KERNEL: &str = "argmax";
const MOST_UNITS: u32 = 1024;

/// Reduces `partials` (from [`Output::Argmax`](crate::gemv::Output::Argmax)) to the token and advances `state` and `ring`.
///
/// # Shapes
/// `partials` two words per cube of the GEMV, `state` [`state::LEN`] words, `ring` any length: it keeps the last `len`
/// tokens, `ends` the tokens that halt the sequence.
///
/// # Errors
/// [`Rejected`] for other shapes; nothing was launched.
pub fn argmax(
    client: &Client,
    caps: Caps,
    partials: &Buffer<u32>,
    state: &Buffer<u32>,
    ring: &Buffer<u32>,
    ends: &Buffer<u32>,
) -> Result<(), Rejected> {
    Rejected::unless(!partials.is_empty() && partials.len().is_multiple_of(2), KERNEL, || {
        format!("partials have {} words, expected an even number above 0", partials.len())
    })?;
    Rejected::unless(state.len() == state::LEN, KERNEL, || {
        format!("state has {} words, expected {}", state.len(), state::LEN)
    })?;
    Rejected::unless(!ends.is_empty(), KERNEL, || "there are no end tokens; give one that never occurs".into())?;
    Rejected::unless(!ring.is_empty(), KERNEL, || "the ring is empty".into())?;
    let wanted = (partials.len() / 2).next_power_of_two() as u32;
    let units = wanted.min(MOST_UNITS).min(1 << caps.max_units.ilog2());
    // SAFETY: the kernel indexes by the bound lengths alone, and `state` was checked.
    unsafe {
        argmax_kernel::launch_unchecked(
            client,
            CubeCount::Static(1, 1, 1),
            CubeDim::new_1d(units),
            partials.arg(),
            state.arg(),
            ring.arg(),
            ends.arg(),
            units,
            caps.overlaps,
        );
    }
    Ok(())
}
