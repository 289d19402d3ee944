//! What every front end consumes.

use std::fmt;

use serde::Serialize;

/// One step of a generation.
#[derive(Debug, Clone)]
pub enum Event {
    /// A token was generated. `text` is what became certain with it, and may be empty.
    Token { id: u32, text: String },
    /// The generation is over with this token. `text` is what was still held back; end tokens have none.
    Done { id: u32, text: String, finish: Finish },
}

impl Event {
    /// The token that was generated.
    pub fn id(&self) -> u32 {
        match self {
            Self::Token { id, .. } | Self::Done { id, .. } => *id,
        }
    }

    /// The piece of output that comes with this event.
    pub fn text(&self) -> &str {
        match self {
            Self::Token { text, .. } | Self::Done { text, .. } => text,
        }
    }
}

/// How a generation ended.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finish {
    pub finish_reason: FinishReason,
    pub usage: Usage,
    pub timing: Timing,
}

/// Why a generation ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum FinishReason {
    /// The model produced an end token, or a stop string appeared.
    Stop,
    /// The token limit or the context was reached.
    Length,
}

/// Tokens of a generation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct Usage {
    pub prompt_tokens: usize,
    pub completion_tokens: usize,
}

/// Times of a generation, in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct Timing {
    /// Processing the prompt.
    pub prefill_ms: f64,
    /// From the request to the first token.
    pub first_token_ms: f64,
    /// From the first token to the last.
    pub decode_ms: f64,
}

impl Finish {
    /// Prompt tokens per second.
    pub fn prefill_tokens_per_second(&self) -> f64 {
        rate(self.usage.prompt_tokens, self.timing.prefill_ms)
    }

    /// Generated tokens per second, the first one not counted: it belongs to the prompt's time.
    pub fn decode_tokens_per_second(&self) -> f64 {
        rate(self.usage.completion_tokens.saturating_sub(1), self.timing.decode_ms)
    }
}

impl fmt::Display for Finish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { usage, timing, .. } = self;
        let (prefill, decode) = (self.prefill_tokens_per_second(), self.decode_tokens_per_second());
        write!(f, "prefill {} tokens, {prefill:.1} tok/s", usage.prompt_tokens)?;
        write!(f, " | first token after {:.0} ms", timing.first_token_ms)?;
        write!(f, " | decode {} tokens, {decode:.1} tok/s", usage.completion_tokens)
    }
}

fn rate(tokens: usize, ms: f64) -> f64 {
    if ms > 0.0 { tokens as f64 * 1e3 / ms } else { 0.0 }
}
