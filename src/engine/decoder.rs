//! One conversation's place in the model, on either path.

use burn::tensor::Device;

use super::plain::{PREFILL_CHUNK, prefill, step};
use super::{ComputePath, Engine};
use crate::Result;
use crate::cache::KvCache;
#[cfg(feature = "cube")]
use crate::fused::{FusedOptions, FusedStep};
use crate::model::Gemma;

/// Prompts of at least this many tokens are processed by the plain path in chunks, where the device computes in bf16;
/// shorter ones go through the fused step token by token. On an H200, E2B's shape, 32, 128 and 512 tokens take 16, 59 and
/// 236 ms that way, and 86, 67 and 108 ms in chunks.
#[cfg(feature = "cube")]
const CHUNKED_PREFILL_FROM: usize = 160;

/// Keys and values with the way to add to them.
pub(super) enum Decoder {
    Plain(KvCache),
    #[cfg(feature = "cube")]
    Fused(Box<FusedStep>),
}

impl Decoder {
    pub(super) fn new(engine: &Engine) -> Result<Self> {
        let model = &engine.model;
        match engine.path {
            ComputePath::Plain => Ok(Self::Plain(KvCache::new(model.config()))),
            #[cfg(feature = "cube")]
            ComputePath::Fused { kv } => {
                let (context, end_ids) = (engine.context, engine.end_ids.clone());
                let step = FusedStep::new(model, &FusedOptions { context, kv, end_ids, graph: true })?;
                Ok(Self::Fused(Box::new(step)))
            }
        }
    }

    /// Tokens taken in so far.
    pub(super) fn position(&self) -> usize {
        match self {
            Self::Plain(cache) => cache.position(),
            #[cfg(feature = "cube")]
            Self::Fused(step) => step.position(),
        }
    }

    /// Takes in tokens and gives the logits behind the last.
    pub(super) fn feed(&mut self, model: &Gemma, device: &Device, ids: &[u32]) -> Result<Vec<f32>> {
        match self {
            Self::Plain(cache) if ids.len() == 1 => step(model, device, cache, ids),
            Self::Plain(cache) => prefill(model, device, cache, ids, PREFILL_CHUNK),
            #[cfg(feature = "cube")]
            Self::Fused(fused) => {
                let Some((last, earlier)) = ids.split_last() else { return fused.read_logits_blocking() };
                let chunked = fused.position() == 0
                    && ids.len() >= CHUNKED_PREFILL_FROM
                    && device.supports_dtype(burn::tensor::FloatDType::BF16);
                if chunked {
                    fused.import(&store(model, device, earlier))?;
                    fused.step(*last)?;
                } else {
                    fused.prefill(ids)?;
                }
                fused.read_logits_blocking()
            }
        }
    }

    /// Feeds the newest token and decodes up to `count` tokens greedily, where that needs no host; `None` where it does.
    pub(super) fn run_ahead(
        &mut self,
        #[allow(unused)] id: u32,
        #[allow(unused)] count: usize,
    ) -> Result<Option<Vec<u32>>> {
        match self {
            Self::Plain(_) => Ok(None),
            #[cfg(feature = "cube")]
            Self::Fused(fused) if !fused.runs_ahead() => {
                fused.step(id)?;
                fused.read_tokens_blocking().map(Some)
            }
            #[cfg(feature = "cube")]
            Self::Fused(fused) => {
                fused.step(id)?;
                fused.run_ahead(count - 1)?;
                fused.read_tokens_blocking().map(Some)
            }
        }
    }
}

/// Fills a cache of the plain path with a prompt's tokens.
#[cfg(feature = "cube")]
fn store(model: &Gemma, device: &Device, ids: &[u32]) -> KvCache {
    let mut cache = KvCache::new(model.config());
    for chunk in ids.chunks(PREFILL_CHUNK) {
        model.fill(crate::model::ids_tensor(chunk, device), &mut cache);
    }
    cache
}
