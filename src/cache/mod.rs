//! The state of a conversation: keys and values of every layer that owns some, as an argument to `forward`.

mod slot;

use crate::config::GemmaConfig;
use crate::device::Dtype;
pub use slot::KvView;
use slot::Slot;

/// Keys and values of the tokens seen so far, one slot per owning layer (15 of 35 in E2B).
///
/// Full-attention slots keep every token, sliding ones a ring of the last `window`.
#[derive(Debug, Clone)]
pub struct KvCache {
    slots: Vec<Slot>,
    position: usize,
}

impl KvCache {
    /// An empty cache for models of this configuration, which keeps what the model computes. Buffers are allocated as
    /// tokens arrive.
    pub fn new(config: &GemmaConfig) -> Self {
        Self { slots: config.slots().map(|layer| Slot::new(layer.window, None)).collect(), position: 0 }
    }

    /// The same, keeping keys and values in `format` whatever the model computes in. Every step widens all of it.
    ///
    /// ```
    /// # #[cfg(feature = "flex")] {
    /// use gemma_burn::{Dtype, cache::KvCache, model::{Output, ids_tensor}, weights::{LoadOptions, load}};
    /// let device = gemma_burn::device("cpu")?;
    /// let options = LoadOptions { dtype: Some(Dtype::F32), ..Default::default() };
    /// let (model, _) = load("tests/fixtures/tiny-e2b", &device, &options)?;
    /// let mut cache = KvCache::kept_in(model.config(), Dtype::Bf16);
    /// model.forward(ids_tensor(&[2, 130, 131], &device), &mut cache, Output::Last);
    /// assert_eq!(cache.position(), 3);
    /// # }
    /// # Ok::<(), gemma_burn::Error>(())
    /// ```
    pub fn kept_in(config: &GemmaConfig, format: Dtype) -> Self {
        let format = Some(format.float());
        Self { slots: config.slots().map(|layer| Slot::new(layer.window, format)).collect(), position: 0 }
    }

    /// Tokens seen so far: the position of the next one.
    pub fn position(&self) -> usize {
        self.position
    }

    /// Forgets everything; the buffers are released.
    pub fn reset(&mut self) {
        self.slots.iter_mut().for_each(Slot::clear);
        self.position = 0;
    }

    /// A second conversation that begins with the same tokens. Buffers are shared until one of the two writes.
    pub fn fork(&self) -> Self {
        self.clone()
    }

    /// Bytes that the buffers take on the device.
    pub fn bytes(&self) -> usize {
        self.slots.iter().map(Slot::bytes).sum()
    }

    /// Keys and values of one slot as they are kept: token `p` at `p`, or at `p % window` where there is a window.
    #[cfg(feature = "cube")]
    pub(crate) fn stored(&self, slot: usize) -> Option<KvView> {
        self.slots[slot].stored(self.position)
    }

    /// Stores the step's keys and values of one layer and returns what its queries attend to.
    pub(crate) fn append(&mut self, slot: usize, new: KvView) -> KvView {
        self.slots[slot].append(self.position, new)
    }

    /// Ends a step of `tokens` new tokens, after every slot has been appended to.
    pub(crate) fn advance(&mut self, tokens: usize) {
        self.position += tokens;
    }
}

/// What keys and values cost, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KvBytes {
    /// For every token of context: full-attention layers.
    pub growing: usize,
    /// Once, when the windows are full: sliding layers.
    pub fixed: usize,
}

/// The cost of one conversation's keys and values in a format.
pub fn bytes_per_token(config: &GemmaConfig, dtype: Dtype) -> KvBytes {
    let mut bytes = KvBytes { growing: 0, fixed: 0 };
    for layer in config.slots() {
        let token = 2 * layer.kv_heads * layer.head_dim * burn::tensor::DType::from(dtype.float()).size();
        match layer.window {
            Some(window) => bytes.fixed += token * window,
            None => bytes.growing += token,
        }
    }
    bytes
}
