//! The per-layer inputs of one token: `ple[l, p] = (rms(context[l] · context_scale)[p] · weight[p] + row[l, p] · row_scale) ·
//! scale`, for L segments of P elements.
//!
//! **Fuses**: scaling of the projected context, RMSNorm per segment, the gather of the token's row (as in
//! [`embed`](crate::embed)), sum and scale.
//!
//! **Supported**: an even P, any L; one cube per segment. **Rejected**: other shapes.
//!
//! **Bytes moved**: L·P · (4 + 2 + 4) and the weights.

mod kernel;
mod launch;
mod reference;

pub use launch::{PleCombine, ple_combine};
pub use reference::ple_combine_reference;
