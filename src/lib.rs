//! Gemma 4 on Burn.

#[cfg(not(any(feature = "flex", feature = "ndarray", feature = "cube")))]
compile_error!("gemma-burn needs at least one backend: flex (the default), ndarray, cuda, rocm, metal, vulkan, wgpu or cpu");

pub mod cache;
pub mod config;
mod device;
pub mod engine;
mod error;
#[cfg(feature = "cube")]
pub mod fused;
pub mod model;
pub mod ops;
pub mod parity;
pub mod sampler;
pub mod tokenizer;
pub mod weights;

pub use burn::tensor::Device;
pub use device::{Dtype, best_device, built as built_devices, default_dtype, device};
pub use engine::{Engine, Event, Request, Session};
pub use error::{Error, Result};
pub use model::Gemma;
