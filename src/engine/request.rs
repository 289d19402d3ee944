//! A request, and the same request once it has been found possible.

use crate::engine::stop::StopStrings;
use crate::sampler::{Sampler, Sampling};
use crate::tokenizer::{SpecialTokens, Tokenizer};
use crate::{Error, Result};

/// What a caller asks for.
#[derive(Debug, Clone)]
pub struct Request {
    pub prompt: Prompt,
    /// Tokens to generate at most; up to the end of the context where absent.
    pub max_tokens: Option<usize>,
    /// How to choose tokens; as generation_config.json says where absent.
    pub sampling: Option<Sampling>,
    /// Texts that end the output. They are not part of it.
    pub stop: Vec<String>,
}

/// The text or the tokens to continue.
#[derive(Debug, Clone)]
pub enum Prompt {
    /// Plain text: what looks like a control token is text.
    Text(String),
    /// Text in which control tokens are structure, such as a rendered chat.
    Structured(String),
    /// Token ids, taken as they are.
    Ids(Vec<u32>),
}

impl Request {
    /// A request for a prompt, with everything else at its default.
    pub fn new(prompt: Prompt) -> Self {
        Self { prompt, max_tokens: None, sampling: None, stop: vec![] }
    }
}

impl From<&str> for Request {
    fn from(text: &str) -> Self {
        Self::new(Prompt::Text(text.to_owned()))
    }
}

impl From<String> for Request {
    fn from(text: String) -> Self {
        Self::new(Prompt::Text(text))
    }
}

/// A request that fits the model and the context that is left.
pub(super) struct ValidRequest {
    /// At least one token, each known to the model.
    pub(super) ids: Vec<u32>,
    /// At least 1, and no more than the context has room for.
    pub(super) max_tokens: usize,
    pub(super) sampler: Sampler,
    /// Whether sampling always takes the best of the unchanged logits.
    pub(super) greedy: bool,
    pub(super) stop: StopStrings,
}

/// What a request is held against.
pub(super) struct Limits<'a> {
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) vocab_size: usize,
    pub(super) context: usize,
    pub(super) max_positions: usize,
    /// Tokens that the session holds already.
    pub(super) used: usize,
    pub(super) default_sampling: &'a Sampling,
    pub(super) suppress: &'a [u32],
}

impl ValidRequest {
    pub(super) fn new(request: Request, limits: &Limits) -> Result<Self> {
        let ids = encode(request.prompt, limits)?;
        if ids.is_empty() {
            return Err(Error::Request("the prompt is empty; give some text".into()));
        }
        if let Some(id) = ids.iter().find(|&&id| id as usize >= limits.vocab_size) {
            let known = limits.vocab_size;
            return Err(Error::Request(format!("token id {id} is out of range: the model knows 0 to {}", known - 1)));
        }
        let room = limits.context.saturating_sub(limits.used + ids.len());
        if room == 0 {
            let (count, used, context, most) = (ids.len(), limits.used, limits.context, limits.max_positions);
            let message = format!(
                "the prompt has {count} tokens ({used} are in the session already) and needs room for one more, but the \
                 context is {context}; shorten it or raise --context (this model goes to {most})"
            );
            return Err(Error::Request(message));
        }
        let max_tokens = request.max_tokens.unwrap_or(room);
        if max_tokens == 0 {
            return Err(Error::Request("--max-tokens is 0; ask for at least one".into()));
        }
        let sampling = request.sampling.unwrap_or_else(|| limits.default_sampling.clone());
        Ok(Self {
            ids,
            max_tokens: max_tokens.min(room),
            greedy: sampling.temperature == 0.0 && sampling.repeat_penalty == 1.0 && limits.suppress.is_empty(),
            sampler: Sampler::new(sampling)?.suppressing(limits.suppress),
            stop: StopStrings::new(request.stop)?,
        })
    }
}

fn encode(prompt: Prompt, limits: &Limits) -> Result<Vec<u32>> {
    let (text, special) = match prompt {
        Prompt::Ids(ids) => return Ok(ids),
        Prompt::Text(text) => (text, SpecialTokens::AsText),
        Prompt::Structured(text) => (text, SpecialTokens::Parse),
    };
    match (text.is_empty(), limits.used) {
        (true, _) => Ok(vec![]),
        (false, 0) => limits.tokenizer.encode_prompt(&text, special),
        (false, _) => limits.tokenizer.encode(&text, special),
    }
}
