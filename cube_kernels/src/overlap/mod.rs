//! Launches that begin before the one ahead of them has ended.
//!
//! A kernel of a graph starts about a microsecond after the last has drained the device. Where the device can (see
//! [`Caps::overlaps`](crate::Caps::overlaps)), the edges of a captured graph become *programmatic* ones instead
//! ([`relax_edges`]): a launch starts as soon as every cube of the one ahead has called [`release_next`] or ended, asks for
//! what does not depend on it (weights, norms, old keys and values), and waits for the rest.
//!
//! The contract of every kernel in this crate: before [`wait_for_previous`] it reads only what was written at least two
//! launches ago, and writes nothing; what the launch ahead wrote passes through [`after_wait`]. It releases its successor
//! only after its own wait, so that two launches ago is done.

use cubecl::prelude::*;

#[cfg(feature = "cuda")]
mod cuda;
mod instructions;

#[cfg(feature = "cuda")]
pub use cuda::relax_edges;
use instructions::{release, wait};

/// Waits until the launch ahead has ended and its results are visible.
#[cube]
pub(crate) fn wait_for_previous(#[comptime] overlaps: bool) {
    if comptime!(overlaps) {
        wait();
    }
}

/// Lets the next launch start once every cube has come here or ended.
#[cube]
pub(crate) fn release_next(#[comptime] overlaps: bool) {
    if comptime!(overlaps) {
        if UNIT_POS == 0 {
            release();
        }
    }
}

/// Keeps loads of `data`, which the launch ahead wrote, behind [`wait_for_previous`].
///
/// A compiler moves loads of memory that the kernel only reads wherever it likes, across the wait too. So this writes, if
/// `never`: what the caller knows to be false and the compiler does not.
#[cube]
pub(crate) fn after_wait<E: CubePrimitive>(data: &mut [E], never: bool, #[comptime] overlaps: bool) {
    if comptime!(overlaps) {
        if never {
            let last = data[data.len() - 1];
            data[0] = last;
        }
    }
}
