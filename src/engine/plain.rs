//! The plain path as a language model: token ids in, logits out.

use burn::tensor::{DType, Device};

use crate::cache::KvCache;
use crate::model::{Gemma, Output, ids_tensor};
use crate::{Error, Result};

/// Tokens per forward pass of a prompt: enough for a matrix product to pay, small enough for scores to fit.
pub const PREFILL_CHUNK: usize = 512;

/// Processes a prompt in chunks of `chunk` tokens and gives the logits behind its last token.
///
/// # Errors
/// Logits that cannot be read back.
pub fn prefill(model: &Gemma, device: &Device, cache: &mut KvCache, ids: &[u32], chunk: usize) -> Result<Vec<f32>> {
    let last = (ids.len() - 1) / chunk * chunk;
    for chunk in ids[..last].chunks(chunk) {
        model.fill(ids_tensor(chunk, device), cache);
    }
    step(model, device, cache, &ids[last..])
}

/// Feeds tokens in one pass and gives the logits behind the last.
///
/// # Errors
/// Logits that cannot be read back.
pub fn step(model: &Gemma, device: &Device, cache: &mut KvCache, ids: &[u32]) -> Result<Vec<f32>> {
    let logits = model.forward(ids_tensor(ids, device), cache, Output::Last);
    let data = logits.cast(DType::F32).into_data();
    data.try_to_vec().map_err(|e| Error::NonFinite(format!("logits could not be read: {e:?}")))
}
