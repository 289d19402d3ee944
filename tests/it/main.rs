//! The one integration-test binary: a module per stage.

mod cache;
mod cli;
mod config;
#[cfg(feature = "demo")]
mod demo;
mod fused;
mod generate;
mod linear;
mod model;
mod parity;
mod sampler;
mod support;
mod tokenizer;
mod training;
mod weights;
