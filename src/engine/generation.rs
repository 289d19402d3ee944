//! The token loop.

use std::collections::VecDeque;
use std::time::Instant;

use super::Session;
use super::event::{Event, Finish, FinishReason, Timing, Usage};
use super::request::ValidRequest;
use crate::engine::stop::StopStrings;
use crate::sampler::{Choose, Sampler, check_finite};
use crate::tokenizer::DecodeStream;
use crate::{Error, Result};

/// Tokens that a path may choose before the host looks at them.
const AHEAD: usize = 16;

/// A generation under way: an iterator of events. Dropping it ends it.
pub struct Generation<'a, 'e> {
    session: &'a mut Session<'e>,
    text: DecodeStream<'e>,
    stop: StopStrings,
    sampler: Sampler,
    /// What chooses in place of the sampler.
    rule: Option<Box<dyn Choose + 'a>>,
    prompt: Vec<u32>,
    max_tokens: usize,
    /// Whether the best token is always taken, so that a path may choose by itself.
    greedy: bool,
    /// Tokens that were chosen ahead.
    ready: VecDeque<u32>,
    generated: usize,
    started: Instant,
    prefill_ms: f64,
    first_token: Option<Instant>,
    over: bool,
}

impl<'a, 'e> Generation<'a, 'e> {
    pub(super) fn new(session: &'a mut Session<'e>, request: ValidRequest, rule: Option<Box<dyn Choose + 'a>>) -> Self {
        let text = session.engine.tokenizer.stream();
        Self {
            session,
            text,
            stop: request.stop,
            sampler: request.sampler,
            prompt: request.ids,
            max_tokens: request.max_tokens,
            greedy: request.greedy && rule.is_none(),
            rule,
            ready: VecDeque::new(),
            generated: 0,
            started: Instant::now(),
            prefill_ms: 0.0,
            first_token: None,
            over: false,
        }
    }

    /// The seed of the request's sampling: the given one, or the one that was drawn.
    pub fn seed(&self) -> u64 {
        self.sampler.seed()
    }

    /// The account so far, as of now.
    pub fn finish(&self, finish_reason: FinishReason) -> Finish {
        let first = self.first_token.unwrap_or_else(Instant::now);
        Finish {
            finish_reason,
            usage: Usage { prompt_tokens: self.prompt.len(), completion_tokens: self.generated },
            timing: Timing {
                prefill_ms: self.prefill_ms,
                first_token_ms: (first - self.started).as_secs_f64() * 1e3,
                decode_ms: first.elapsed().as_secs_f64() * 1e3,
            },
        }
    }

    fn advance(&mut self) -> Result<Event> {
        let id = self.next_id()?;
        self.session.push(id);
        self.generated += 1;
        self.first_token.get_or_insert_with(Instant::now);
        if self.session.engine.end_ids.contains(&id) {
            return self.done(id, String::new(), FinishReason::Stop);
        }
        let piece = self.text.push(id)?.unwrap_or_default();
        let step = self.stop.push(&piece);
        if step.stopped {
            self.over = true;
            return Ok(Event::Done { id, text: step.emit, finish: self.finish(FinishReason::Stop) });
        }
        if self.generated == self.max_tokens {
            return self.done(id, step.emit, FinishReason::Length);
        }
        Ok(Event::Token { id, text: step.emit })
    }

    fn next_id(&mut self) -> Result<u32> {
        if let Some(id) = self.ready.pop_front() {
            return Ok(id);
        }
        let logits = match self.first_token {
            None => {
                let logits = self.session.prefill(&self.prompt)?;
                self.prefill_ms = self.started.elapsed().as_secs_f64() * 1e3;
                logits
            }
            Some(_) => {
                if self.greedy
                    && let Some(ids) = self.session.run_ahead(self.ahead())?
                {
                    self.ready.extend(ids);
                    return self.next_id();
                }
                self.session.step()?
            }
        };
        let history = self.session.tokens();
        let Some(rule) = &mut self.rule else { return self.sampler.sample(&logits, history) };
        check_finite(&logits, history.len())?;
        let id = rule.choose(&logits, history)?;
        if id as usize >= logits.len() {
            let count = logits.len();
            return Err(Error::Request(format!("the sampling rule chose token id {id}, but there are {count} tokens")));
        }
        Ok(id)
    }

    /// Tokens to choose ahead: none beyond a stop string, which only the host can see.
    fn ahead(&self) -> usize {
        if self.stop.is_empty() { AHEAD.min(self.max_tokens - self.generated) } else { 1 }
    }

    /// Ends with everything that was held back.
    fn done(&mut self, id: u32, mut text: String, reason: FinishReason) -> Result<Event> {
        self.over = true;
        let rest = self.text.flush()?.unwrap_or_default();
        let step = self.stop.push(&rest);
        text += &step.emit;
        if !step.stopped {
            text += &self.stop.flush();
        }
        Ok(Event::Done { id, text, finish: self.finish(reason) })
    }
}

impl Iterator for Generation<'_, '_> {
    type Item = Result<Event>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let event = self.advance();
        self.over |= event.is_err();
        Some(event)
    }
}
