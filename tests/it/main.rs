//! The one integration-test binary: a module per stage.

mod cache;
mod chat;
mod cli;
mod config;
#[cfg(feature = "cube")]
mod cubecl_devices;
#[cfg(feature = "demo")]
mod demo;
#[cfg(feature = "cube")]
mod fused;
mod generate;
mod library;
mod linear;
mod lora;
mod model;
mod parity;
mod perplexity;
mod sampler;
mod support;
mod tokenizer;
mod training;
mod weights;

// What the examples do, without their command lines.
#[path = "../../examples/stream_chat/chat.rs"]
mod chat_example;
#[path = "../../examples/in_a_burn_app/classifier.rs"]
mod classifier;
#[path = "../../examples/finetune_lora/finetune.rs"]
mod finetune;
#[path = "../../examples/custom_sampler/mirostat.rs"]
mod mirostat;
