//! Perplexity of a text, by the strided windows that users of Hugging Face know.

use burn::tensor::{DType, Device, Tensor};
use serde::Serialize;

use crate::cache::KvCache;
use crate::model::{Gemma, ids_tensor};
use crate::training::token_losses;
use crate::{Error, Result};

/// Window where the caller names none, in tokens; shorter where the model's context is.
pub const DEFAULT_WINDOW: usize = 2048;

/// Tokens per forward pass: a window goes through the cache in pieces, so that no mask or score grows with its square.
const CHUNK: usize = 512;

/// Logits that exist at a time, in elements: 64 MiB in f32, 64 tokens of Gemma's vocabulary.
const LOGIT_BUDGET: usize = 16 << 20;

/// How a text is cut into windows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Windows {
    window: usize,
    stride: usize,
}

impl Windows {
    /// Windows of `window` tokens that begin `stride` tokens apart.
    ///
    /// Absent, `window` is [`DEFAULT_WINDOW`] or the model's context `max_positions` if that is less, and `stride` half a
    /// window.
    ///
    /// # Errors
    /// A window of 0 tokens or longer than the context, a stride of 0 or longer than the window.
    pub fn new(window: Option<usize>, stride: Option<usize>, max_positions: usize) -> Result<Self> {
        let window = window.unwrap_or_else(|| DEFAULT_WINDOW.min(max_positions));
        if !(1..=max_positions).contains(&window) {
            let message = format!("--window is {window}, but this model takes 1 to {max_positions} tokens");
            return Err(Error::Request(message));
        }
        let stride = stride.unwrap_or_else(|| window.div_ceil(2));
        if !(1..=window).contains(&stride) {
            let message = format!(
                "--stride is {stride}, but must be between 1 and the window of {window}: a longer one would leave tokens out"
            );
            return Err(Error::Request(message));
        }
        Ok(Self { window, stride })
    }

    /// Tokens of text that a window scores at most, each seen after `<bos>` and the window's tokens before it.
    pub fn window(self) -> usize {
        self.window
    }

    /// Tokens from one window's beginning to the next.
    pub fn stride(self) -> usize {
        self.stride
    }

    /// The windows over `len` tokens: where each begins and ends, and the first token that no window before it scored.
    fn over(self, len: usize) -> impl Iterator<Item = (usize, usize, usize)> {
        let last = len.saturating_sub(self.window).div_ceil(self.stride);
        (0..=last).map(move |i| {
            let begin = i * self.stride;
            let scored = if i == 0 { 0 } else { begin - self.stride + self.window };
            (begin, len.min(begin + self.window), scored)
        })
    }
}

/// What a text costs a model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Perplexity {
    /// Tokens scored: all of the text's, `<bos>` not among them.
    pub tokens: usize,
    /// Mean negative log likelihood, in nats per token.
    pub nll: f64,
    /// `exp(nll)`.
    pub perplexity: f64,
}

/// Scores every token of `ids` once. Each window starts with `bos` and an empty past; `progress` hears of the tokens
/// scored so far.
///
/// As in the recipe of Hugging Face, the tokens that a window shares with the one before it are context only. Logits are
/// turned into probabilities in f32, and added up in f64.
///
/// # Errors
/// No tokens, an id that the model does not know, probabilities that are not finite.
pub fn perplexity(
    model: &Gemma,
    device: &Device,
    bos: u32,
    ids: &[u32],
    windows: Windows,
    progress: &dyn Fn(usize),
) -> Result<Perplexity> {
    let known = model.config().vocab_size;
    if ids.is_empty() {
        return Err(Error::Request("the text is empty: there is no token to score".into()));
    }
    if let Some(id) = ids.iter().find(|&&id| id as usize >= known) {
        return Err(Error::Request(format!("token id {id} is out of range: the model knows 0 to {}", known - 1)));
    }
    let mut total = 0.0;
    for (begin, end, scored) in windows.over(ids.len()) {
        let inputs: Vec<u32> = std::iter::once(bos).chain(ids[begin..end - 1].iter().copied()).collect();
        let mut cache = KvCache::new(model.config());
        let context = scored - begin;
        for chunk in inputs[..context].chunks(CHUNK) {
            model.fill(ids_tensor(chunk, device), &mut cache);
        }
        let targets = &ids[scored..end];
        for (chunk, targets) in inputs[context..].chunks(CHUNK).zip(targets.chunks(CHUNK)) {
            let hidden = model.hidden(ids_tensor(chunk, device), &mut cache);
            total += negative_log_likelihood(model, hidden, targets)?;
        }
        progress(end);
    }
    if !total.is_finite() {
        let message = "the log likelihood is not finite: the computation overflowed or failed; try --dtype f32";
        return Err(Error::NonFinite(message.into()));
    }
    let nll = total / ids.len() as f64;
    Ok(Perplexity { tokens: ids.len(), nll, perplexity: nll.exp() })
}

/// The sum over the tokens of hidden states `[1, T, E]`, in nats.
fn negative_log_likelihood(model: &Gemma, hidden: Tensor<3>, targets: &[u32]) -> Result<f64> {
    let rows = (LOGIT_BUDGET / model.config().vocab_size).max(1);
    let mut total = 0.0;
    for (i, targets) in targets.chunks(rows).enumerate() {
        let logits = model.logits(hidden.clone().narrow(1, i * rows, targets.len())).cast(DType::F32);
        let losses = token_losses(logits, ids_tensor(targets, &hidden.device())).into_data();
        let losses: Vec<f32> =
            losses.try_to_vec().map_err(|e| Error::NonFinite(format!("logits could not be read: {e:?}")))?;
        total += losses.iter().map(|&loss| f64::from(loss)).sum::<f64>();
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn windows_score_every_token_once() {
        for (len, window, stride) in [(1, 4, 2), (4, 4, 2), (5, 4, 4), (9, 4, 3), (100, 7, 1), (64, 16, 16), (3, 1, 1)]
        {
            let windows = Windows::new(Some(window), Some(stride), 128).expect("they fit");
            let mut next = 0;
            for (begin, end, scored) in windows.over(len) {
                assert_eq!(scored, next, "{len} {window} {stride}");
                assert!(begin <= scored && scored < end && end - begin <= window);
                next = end;
            }
            assert_eq!(next, len);
        }
    }

    #[test]
    fn impossible_windows_are_refused() {
        let refused = |window, stride, part: &str| {
            let message = Windows::new(window, stride, 128).expect_err("impossible").to_string();
            assert!(message.contains(part), "{message}");
        };
        refused(Some(129), None, "128");
        refused(Some(0), None, "--window");
        refused(Some(8), Some(0), "--stride");
        refused(Some(8), Some(9), "8");
        assert_eq!(Windows::new(None, None, 128).expect("defaults fit"), Windows { window: 128, stride: 64 });
    }
}
