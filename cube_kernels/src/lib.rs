//! CubeCL kernels: they know shapes and dtypes, never the model.
//!
//! Every kernel is a folder `<op>/{mod, kernel, launch, reference}`: what it fuses and moves, the device code, the checks
//! and the launch on the host, and the same arithmetic in plain Rust. Activations and accumulation are f32; weights are
//! bf16, read as packed pairs through `u32`, which every runtime can do. No launch allocates and no argument changes from
//! token to token, so a chain of launches can be captured as a graph once: what changes lives in the [`state`] buffer.

#![allow(
    rustdoc::broken_intra_doc_links,
    reason = "shapes stand in brackets, and `#[cube]` makes a module beside every function"
)]
#![allow(
    clippy::style,
    clippy::complexity,
    clippy::eq_op,
    reason = "kernel bodies are CubeCL's language: the idioms that clippy proposes do not compile to device code"
)]

pub mod argmax;
pub mod attention;
mod buffer;
mod caps;
pub mod embed;
pub mod gemv;
pub mod kv_import;
pub mod math;
pub mod overlap;
pub mod ple_combine;
pub mod state;

pub use buffer::{Buffer, Rejected};
pub use caps::Caps;
