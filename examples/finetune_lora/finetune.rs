//! The training itself: sequences in, a model with trained adapters out.

use burn::module::Module;
use burn::tensor::{Device, Tensor};
use burn_optim::{AdamWConfig, GradientsAccumulator, GradientsParams};
use gemma_burn::cache::KvCache;
use gemma_burn::model::{Gemma, Output, ids_tensor};
use gemma_burn::training::token_losses;
use gemma_burn::{Error, Result};

/// How long and how fast.
pub struct Training {
    /// Steps of the optimizer.
    pub steps: usize,
    /// Sequences whose gradients are added up for one step.
    pub accumulate: usize,
    pub learning_rate: f64,
}

/// A text in pieces of `tokens` tokens, each after `<bos>`.
pub fn sequences(ids: &[u32], bos: u32, tokens: usize) -> Vec<Vec<u32>> {
    let pieces = ids.chunks(tokens).filter(|piece| piece.len() > 1);
    pieces.map(|piece| std::iter::once(bos).chain(piece.iter().copied()).collect()).collect()
}

/// The mean negative log likelihood of a sequence's tokens after the first, in nats: `[1]`.
pub fn loss(model: &Gemma, ids: &[u32], device: &Device) -> Tensor<1> {
    let inputs = ids_tensor(&ids[..ids.len() - 1], device);
    let logits = model.forward(inputs, &mut KvCache::new(model.config()), Output::All); // [1, T, V]
    token_losses(logits, ids_tensor(&ids[1..], device)).mean()
}

/// Trains whatever of the model is not frozen, and tells every step's loss before it. The first step is 1.
///
/// # Errors
/// A loss that is not finite.
pub fn finetune(
    model: Gemma,
    device: &Device,
    sequences: &[Vec<u32>],
    training: &Training,
    mut told: impl FnMut(usize, f32),
) -> Result<Gemma> {
    let device = device.clone().autodiff();
    let mut model = model.train();
    let mut optimizer = AdamWConfig::new().with_weight_decay(0.0).init();
    let mut next = sequences.iter().cycle();
    for step in 1..=training.steps {
        let mut gradients = GradientsAccumulator::new();
        let mut mean = 0.0;
        for sequence in next.by_ref().take(training.accumulate) {
            let part = loss(&model, sequence, &device) / training.accumulate as f64;
            mean += part.clone().into_scalar::<f32>();
            gradients.accumulate(&model, GradientsParams::from_grads(part.backward(), &model));
        }
        if !mean.is_finite() {
            return Err(Error::NonFinite(format!("the loss of step {step} is {mean}; lower --learning-rate")));
        }
        told(step, mean);
        model = optimizer.step(training.learning_rate, model, gradients.grads());
    }
    Ok(model.valid())
}
