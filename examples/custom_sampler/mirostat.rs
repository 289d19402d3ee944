//! A sampling rule that the library does not have: Mirostat 2 (Basu et al., 2020), which keeps the surprise of the text
//! near a target.

use gemma_burn::Result;
use gemma_burn::sampler::{Choose, Sampler, Sampling, filters};

/// Drops tokens that would surprise by more than a limit, and moves the limit after every token.
pub struct Mirostat {
    /// Surprise to aim at, in bits.
    target: f32,
    /// Share of the error that moves the limit.
    rate: f32,
    limit: f32,
    sampler: Sampler,
}

impl Mirostat {
    pub fn new(target: f32, rate: f32, seed: u64) -> Result<Self> {
        let sampling = Sampling { temperature: 1.0, seed: Some(seed), ..Sampling::greedy() };
        Ok(Self { target, rate, limit: 2.0 * target, sampler: Sampler::new(sampling)? })
    }

    /// The surprise that a token may have next, in bits.
    #[allow(dead_code, reason = "the tests look at it, the example does not")]
    pub fn limit(&self) -> f32 {
        self.limit
    }
}

/// How much each token would surprise, in bits.
pub fn surprises(logits: &[f32]) -> Vec<f32> {
    let most = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
    let log_sum = logits.iter().map(|logit| (logit - most).exp()).sum::<f32>().ln() + most;
    logits.iter().map(|logit| (log_sum - logit) / std::f32::consts::LN_2).collect()
}

impl Choose for Mirostat {
    fn choose(&mut self, logits: &[f32], history: &[u32]) -> Result<u32> {
        let surprises = surprises(logits);
        let best = filters::argmax(logits);
        let kept = |id: usize| surprises[id] <= self.limit || best == Some(id as u32);
        // The lowest finite number: the sampler takes what is not finite for a failed computation.
        let open: Vec<f32> = (0..logits.len()).map(|id| if kept(id) { logits[id] } else { f32::MIN }).collect();
        let id = self.sampler.choose(&open, history)?;
        self.limit -= self.rate * (surprises[id as usize] - self.target);
        Ok(id)
    }
}
