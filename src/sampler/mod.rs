//! From logits to the next token: greedy, or drawn with a seed that means the same everywhere.

pub mod filters;

use rand::rngs::SysRng;
use rand::{Rng, SeedableRng, TryRng};
use rand_chacha::ChaCha12Rng;

use crate::config::GenerationConfig;
use crate::{Error, Result};

/// How the next token is chosen. The default is greedy, with every filter off.
#[derive(Debug, Clone, PartialEq)]
pub struct Sampling {
    /// Divides the logits; 0 always takes the most probable token.
    pub temperature: f32,
    /// Keeps this many of the most probable tokens; 0 keeps all.
    pub top_k: usize,
    /// Keeps the most probable tokens that together reach this probability; 1 keeps all.
    pub top_p: f32,
    /// Keeps tokens at least this many times as probable as the most probable one; 0 keeps all.
    pub min_p: f32,
    /// Makes tokens of the history less likely; 1 leaves them alone.
    pub repeat_penalty: f32,
    /// Starts the random numbers; without one the operating system gives it.
    pub seed: Option<u64>,
}

impl Sampling {
    /// Always the most probable token.
    pub const fn greedy() -> Self {
        Self { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, seed: None }
    }

    /// Says which setting is outside its range, by the name of its flag.
    pub fn validate(&self) -> Result<()> {
        let refuse =
            |flag: &str, got: f32, range: &str| Err(Error::Request(format!("--{flag} is {got}, but must be {range}")));
        if !(self.temperature.is_finite() && self.temperature >= 0.0) {
            return refuse("temperature", self.temperature, "0 (greedy) or a positive number");
        }
        if !(0.0..=1.0).contains(&self.top_p) {
            return refuse("top-p", self.top_p, "between 0 and 1 (1 keeps every token)");
        }
        if !(0.0..=1.0).contains(&self.min_p) {
            return refuse("min-p", self.min_p, "between 0 and 1 (0 keeps every token)");
        }
        if !(0.01..=100.0).contains(&self.repeat_penalty) {
            return refuse("repeat-penalty", self.repeat_penalty, "between 0.01 and 100 (1 changes nothing)");
        }
        Ok(())
    }
}

impl Default for Sampling {
    fn default() -> Self {
        Self::greedy()
    }
}

impl GenerationConfig {
    /// What the checkpoint asks for when the caller asks for nothing.
    pub fn sampling(&self) -> Sampling {
        let repeat_penalty = self.repetition_penalty;
        if !self.do_sample {
            return Sampling { repeat_penalty, ..Sampling::greedy() };
        }
        let Self { temperature, top_k, top_p, min_p, .. } = *self;
        Sampling { temperature, top_k, top_p, min_p, repeat_penalty, seed: None }
    }
}

/// A way to choose the next token: a [`Sampler`], or a rule of one's own.
pub trait Choose {
    /// The token that follows `history` (prompt and output so far), from one finite logit per token of the vocabulary.
    fn choose(&mut self, logits: &[f32], history: &[u32]) -> Result<u32>;
}

impl Choose for Sampler {
    fn choose(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        self.sample(logits, history)
    }
}

/// Chooses tokens for one sequence.
///
/// ```
/// use gemma_burn::sampler::{Sampler, Sampling};
///
/// let mut sampler = Sampler::new(Sampling::greedy())?;
/// assert_eq!(sampler.sample(&[0.1, 2.5, -3.0], &[])?, 1);
/// # Ok::<(), gemma_burn::Error>(())
/// ```
#[derive(Debug, Clone)]
pub struct Sampler {
    sampling: Sampling,
    suppressed: Vec<u32>,
    seed: u64,
    rng: ChaCha12Rng,
}

impl Sampler {
    /// A sampler at the start of its random numbers; settings out of range are refused.
    pub fn new(sampling: Sampling) -> Result<Self> {
        sampling.validate()?;
        let seed = match sampling.seed {
            Some(seed) => seed,
            None => seed_from_os()?,
        };
        let mut key = [0; 32];
        key[..8].copy_from_slice(&seed.to_le_bytes());
        Ok(Self { sampling, suppressed: Vec::new(), seed, rng: ChaCha12Rng::from_seed(key) })
    }

    /// Never chooses the tokens `ids` (`suppress_tokens` of generation_config.json).
    #[must_use]
    pub fn suppressing(mut self, ids: &[u32]) -> Self {
        self.suppressed = ids.to_vec();
        self
    }

    /// The seed that repeats this sampler's choices, given or drawn.
    pub fn seed(&self) -> u64 {
        self.seed
    }

    /// The settings this sampler follows.
    pub fn sampling(&self) -> &Sampling {
        &self.sampling
    }

    /// Chooses the token that follows `history`, from one logit per token of the vocabulary.
    ///
    /// Uses one random number, or none when greedy. A logit that is not finite is an error, never a guess.
    pub fn sample(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        check_finite(logits, history.len())?;
        let penalize = self.sampling.repeat_penalty != 1.0;
        let changed = if penalize || !self.suppressed.is_empty() { Some(self.change(logits, history)?) } else { None };
        let logits = changed.as_deref().unwrap_or(logits);
        let chosen = if self.sampling.temperature == 0.0 { filters::argmax(logits) } else { self.draw(logits) };
        chosen.ok_or_else(|| {
            let (count, suppressed) = (logits.len(), self.suppressed.len());
            Error::Request(format!("no token to choose from: {count} logits, {suppressed} token ids suppressed"))
        })
    }

    fn change(&self, logits: &[f32], history: &[u32]) -> Result<Vec<f32>> {
        let mut logits = logits.to_vec();
        let vocab = logits.len();
        if self.sampling.repeat_penalty != 1.0 {
            filters::repetition_penalty(&mut logits, history, self.sampling.repeat_penalty).map_err(|id| {
                Error::Request(format!("token id {id} in the history is outside the vocabulary of {vocab} tokens"))
            })?;
        }
        filters::suppress(&mut logits, &self.suppressed);
        Ok(logits)
    }

    fn draw(&mut self, logits: &[f32]) -> Option<u32> {
        let Sampling { temperature, top_k, top_p, min_p, .. } = self.sampling;
        let kept = filters::top_k(logits, if top_k == 0 { usize::MAX } else { top_k });
        let mut candidates = filters::weigh(&kept, temperature);
        if top_p < 1.0 {
            candidates = filters::top_p(candidates, top_p);
        }
        if min_p > 0.0 {
            candidates = filters::min_p(candidates, min_p);
        }
        // The order decides which token a random number stands for.
        candidates.sort_unstable_by_key(|candidate| candidate.id);
        filters::pick(&candidates, self.unit())
    }

    /// A number from 0 up to but without 1, from 53 random bits.
    fn unit(&mut self) -> f64 {
        const STEP: f64 = 1.0 / (1u64 << 53) as f64;
        (self.rng.next_u64() >> 11) as f64 * STEP
    }
}

fn seed_from_os() -> Result<u64> {
    let bits = SysRng.try_next_u64();
    let bits = bits.map_err(|e| Error::Request(format!("the system gives no random seed ({e}): set --seed")))?;
    // 53 bits survive JSON readers that keep numbers as doubles.
    Ok(bits >> 11)
}

/// Refuses logits that no rule can choose from; `position` is for the message.
pub(crate) fn check_finite(logits: &[f32], position: usize) -> Result<()> {
    let Some(id) = logits.iter().position(|logit| !logit.is_finite()) else { return Ok(()) };
    let logit = logits[id];
    Err(Error::NonFinite(format!(
        "the logits at position {position} are not finite (token id {id} has {logit}): the computation overflowed or \
         failed; try --dtype f32 or another --device"
    )))
}
