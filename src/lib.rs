//! Gemma 4 on Burn: one model for every Burn backend, with CubeCL kernels for decoding at the speed of the memory.
//!
//! ```
//! # #[cfg(all(feature = "flex", feature = "demo"))]
//! # fn main() -> gemma_burn::Result<()> {
//! use gemma_burn::{Engine, Request, demo, device};
//!
//! // The small model inside this library. Put a folder with google/gemma-4-E2B-it in its place.
//! let engine = Engine::load(demo::dir()?, &device("cpu")?)?;
//! let mut session = engine.session();
//! let request = Request { max_tokens: Some(8), ..Request::from("And it came to pass") };
//! for event in session.generate(request)? {
//!     print!("{}", event?.text());
//! }
//! assert!(session.tokens().len() > 8);
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "flex", feature = "demo")))]
//! # fn main() {}
//! ```
//!
//! # How it fits together
//!
//! ```text
//! config.json ──► config ──► model ──► engine ──► command line
//! *.safetensors ► weights ──┘ ▲  ▲       ▲ ▲
//! tokenizer.json ► tokenizer ─┼──┼───────┘ │
//!                     cache ──┘  └─ fused ─┘ sampler
//! ```
//!
//! * [`config`] reads config.json once and resolves every architectural number: the layer pattern, head sizes, windows,
//!   whose keys and values a layer reads. Nothing else asks for a layer's index.
//! * [`weights`] maps safetensors into a model. Every tensor is applied or skipped for a stated reason; bf16 stays bf16.
//! * [`model`] is Gemma 4 as ordinary Burn modules: the *plain path*. It runs on every backend, can be trained, and is what
//!   everything else is compared with. Fields bear the names of the checkpoint.
//! * [`cache`] holds the keys and values of one conversation, as an argument to `forward`.
//! * [`ops`] are the operations for which Burn's own do not serve: products with bf16 weights on the CPU, attention in
//!   chunks.
#![cfg_attr(
    feature = "cube",
    doc = "* [`fused`] is the decode step as a chain of CubeCL kernels on the same weights, captured as a graph."
)]
//! * [`tokenizer`], [`sampler`] and [`engine`] make text of it: requests in, events out.
//! * [`training`] makes weights: the plain path under Burn's autodiff, AdamW, checkpoints.
#![cfg_attr(feature = "demo", doc = "* [`demo`] is a small trained model inside this library.")]
//! * [`parity`] compares any of it with reference logits, [`perplexity`] scores a text, [`mod@bench`] measures speed.
//!
//! # In a program of one's own
//!
//! A model is an ordinary Burn module: hidden states `[B, T, E]` for a head of one's own, logits `[B, T, V]`, gradients.
//!
//! ```
//! # #[cfg(all(feature = "flex", feature = "demo"))]
//! # fn main() -> gemma_burn::Result<()> {
//! use gemma_burn::cache::KvCache;
//! use gemma_burn::model::ids_tensor;
//! use gemma_burn::weights::{LoadOptions, load};
//! use gemma_burn::{demo, device};
//!
//! let device = device("cpu")?;
//! let (model, report) = load(demo::dir()?, &device, &LoadOptions::default())?;
//! let hidden = model.hidden(ids_tensor(&[2, 130, 131], &device), &mut KvCache::new(model.config()));
//! assert_eq!(hidden.dims(), [1, 3, model.config().hidden_size]);
//! assert!(report.missing.is_empty());
//! # Ok(())
//! # }
//! # #[cfg(not(all(feature = "flex", feature = "demo")))]
//! # fn main() {}
//! ```
//!
//! The folder `examples` has whole programs: `in_a_burn_app`, `custom_sampler`, `stream_chat`, `finetune_lora`,
//! `train_tiny`.

#[cfg(not(any(feature = "flex", feature = "ndarray", feature = "cube")))]
compile_error!(
    "gemma-burn needs at least one backend: flex (the default), ndarray, cuda, rocm, metal, vulkan, wgpu or cpu"
);

pub mod bench;
pub mod cache;
pub mod config;
#[cfg(feature = "demo")]
pub mod demo;
mod device;
pub mod engine;
mod error;
#[cfg(feature = "cube")]
pub mod fused;
pub mod model;
pub mod ops;
pub mod parity;
pub mod perplexity;
pub mod sampler;
pub mod tokenizer;
pub mod training;
pub mod weights;

pub use burn::tensor::Device;
pub use device::{Dtype, best_device, built as built_devices, default_dtype, device, device_or_best};
pub use engine::{Engine, Event, Request, Session};
pub use error::{Error, Result};
pub use model::Gemma;
