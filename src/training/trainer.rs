//! The loop's body: one step, one evaluation.

use burn::module::{Module, ModuleMapper, Param};
use burn::tensor::{Device, FloatDType, Tensor};
use serde::{Deserialize, Serialize};

use super::loss::token_losses;
use super::optimizer::ClippedAdamW;
use super::schedule::Schedule;
use super::text::{Batch, Text};
use crate::cache::KvCache;
use crate::config::GemmaConfig;
use crate::model::Gemma;

/// What decides a run, besides the model's configuration and the text.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TrainingOptions {
    /// Of the first weights and of the places that sequences are taken from.
    pub seed: u64,
    /// Sequences per step.
    pub sequences: usize,
    /// Tokens per sequence.
    pub len: usize,
    pub schedule: Schedule,
    /// AdamW's decay of matrices.
    pub weight_decay: f64,
    /// Longest gradient that is taken as it is.
    pub clip: f64,
}

/// A model in training.
pub struct Trainer {
    pub(super) options: TrainingOptions,
    /// On the plain device.
    pub(super) model: Gemma,
    pub(super) optimizer: ClippedAdamW,
    pub(super) step: usize,
    /// The plain device.
    pub(super) device: Device,
}

impl Trainer {
    /// A model with fresh weights. The seed sets the random numbers of the whole device.
    pub fn new(config: &GemmaConfig, options: TrainingOptions, device: &Device) -> Self {
        device.seed(options.seed);
        let model = config.init(device).map(&mut Drawn);
        let optimizer = ClippedAdamW::new(options.weight_decay, options.clip);
        Self { options, model, optimizer, step: 0, device: device.clone() }
    }

    /// What decides this run.
    pub fn options(&self) -> &TrainingOptions {
        &self.options
    }

    /// Steps done.
    pub fn steps(&self) -> usize {
        self.step
    }

    /// The weights as they are now, on the plain device.
    pub fn model(&self) -> &Gemma {
        &self.model
    }

    /// The learning rate of the next step when `elapsed` (0 to 1) of the time for the run is over.
    pub fn rate(&self, elapsed: f64) -> f64 {
        self.options.schedule.rate(self.step, elapsed)
    }

    /// One step of gradient descent at a learning rate. Gives the batch's mean loss in nats per token, `[1]`; nothing
    /// waits for the device.
    pub fn train_step(&mut self, text: &Text, rate: f64) -> Tensor<1> {
        let batch = text.batch(self.options.seed, self.step, self.options.sequences, self.options.len);
        let model = self.model.clone().map(&mut Tracked);
        let loss = total_loss(&model, &batch, &self.device.clone().autodiff()) / batch.counted() as f64;
        self.model = self.optimizer.step(rate, model, loss.backward());
        self.step += 1;
        loss.inner()
    }

    /// Mean loss over a whole text in nats per token. Waits for the device.
    pub fn evaluate(&self, text: &Text) -> f64 {
        let batches = text.batches(self.options.sequences, self.options.len);
        let total: f64 =
            batches.iter().map(|batch| total_loss(&self.model, batch, &self.device).into_scalar::<f32>() as f64).sum();
        total / text.predicted() as f64
    }
}

/// The sum of the losses that count, `[1]`.
fn total_loss(model: &Gemma, batch: &Batch, device: &Device) -> Tensor<1> {
    let (inputs, targets, mask) = batch.tensors(device);
    let hidden = model.hidden(inputs, &mut KvCache::new(model.config()));
    let logits = model.logits(hidden).cast(FloatDType::F32);
    (token_losses(logits, targets) * mask).sum()
}

/// Parameters drawn now, in the order of the modules: their values follow from the device's seed.
struct Drawn;

impl ModuleMapper for Drawn {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::initialized(param.id, param.val().set_require_grad(false))
    }
}

/// Parameters on the autodiff device, whose gradients are wanted.
struct Tracked;

impl ModuleMapper for Tracked {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        Param::initialized(param.id, Tensor::from_inner(param.val()).require_grad())
    }
}
