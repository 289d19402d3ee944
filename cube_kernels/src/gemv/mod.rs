//! `y = W · prologue(x)` for one token, then an epilogue: the kernel that reads nearly all bytes of a decode step.
//!
//! **Fuses**, in order: the residual update and RMSNorm of the input ([`Input`]), the product with one to three weights
//! that share the input, and what happens to each output ([`Output`]). Every cube computes the norms of its input for
//! itself (a few KB from the L2 cache), so no cube waits for another; cube 0 alone stores the updated residual stream.
//!
//! Every lane keeps its part of x in registers while the planes stream rows; a row is split over [`GemvConfig::split`]
//! planes so that a lane needs few loads, and their sums meet in shared memory at the end. The first weights are requested
//! before the norms are computed, the next rows before the current sums are added.
//!
//! **Supported**: weights bf16 `[rows, K]`, contiguous, K a multiple of 8, up to three of them (two of equal height for
//! [`Output::GeluMul`]); activations, norm weights and results f32; any plane size, and devices without plane operations.
//! **Rejected**: other K, K beyond what one cube can hold in registers, buffers shorter than their shape, inputs that do
//! not fit the device's shared memory.
//!
//! **Bytes moved**: the weights once, rows·K·2; everything else is a few KB.

mod config;
mod kernel;
mod launch;
mod prologue;
mod reference;

pub use config::GemvConfig;
pub(crate) use kernel::NO_ROW;
pub use launch::{Gemv, Input, Output, Weight, gemv, partials_len};
pub use reference::gelu_tanh as gelu_tanh_reference;
pub use reference::{GemvReference, InputReference, OutputReference, gemv_reference};
