//! From the partial results of a GEMV to the next token, without leaving the device.
//!
//! **Fuses**: the reduction of the per-cube largest values (the lowest row of equals wins), the token into the state
//! buffer, the token into a ring buffer at place `STEP % length`, `POSITION + 1`, `STEP + 1`, the error word if any logit
//! was NaN or infinite (the token is 0 then), and the halt word after an end token: from then on nothing changes.
//!
//! **Supported**: any number of partials; one cube. **Rejected**: an empty ring, an odd number of partial words, a state
//! buffer of another length than [`state::LEN`](crate::state::LEN).
//!
//! **Bytes moved**: 8 per partial.

mod kernel;
mod launch;
mod reference;

pub use launch::argmax;
pub use reference::argmax_reference;
