//! The one integration-test binary: a module per stage.

mod cache;
mod cli;
mod config;
mod fused;
mod generate;
mod linear;
mod lora;
mod model;
mod parity;
mod perplexity;
mod sampler;
mod support;
mod tokenizer;
mod weights;

// What the examples do, without their command lines.
#[path = "../../examples/finetune_lora/finetune.rs"]
mod finetune;
