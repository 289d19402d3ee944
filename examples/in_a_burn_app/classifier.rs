//! A module of an application that has Gemma inside.

use burn::module::Module;
use burn::nn::loss::CrossEntropyLossConfig;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Int, Tensor, TensorData};
use burn_optim::{GradientsParams, SgdConfig};
use gemma_burn::Gemma;
use gemma_burn::cache::KvCache;
use gemma_burn::model::ids_tensor;

/// Sorts texts into classes by Gemma's hidden states.
#[derive(Module, Debug)]
pub struct Classifier {
    pub gemma: Gemma,
    pub head: Linear,
}

impl Classifier {
    /// A frozen Gemma with a new head.
    pub fn new(gemma: Gemma, classes: usize, device: &Device) -> Self {
        let hidden = gemma.config().hidden_size;
        Self { gemma: gemma.freeze(), head: LinearConfig::new(hidden, classes).init(device) }
    }

    /// ids `[B, T]` → scores `[B, classes]`, from the mean of the hidden states.
    pub fn forward(&self, ids: Tensor<2, Int>) -> Tensor<2> {
        let hidden = self.gemma.hidden(ids, &mut KvCache::new(self.gemma.config())); // [B, T, E]
        self.head.forward(hidden.cast(DType::F32).mean_dim(1).squeeze_dim(1))
    }

    /// Cross entropy over labelled token sequences, which may differ in length: `[1]`.
    pub fn loss(&self, examples: &[(Vec<u32>, u32)], device: &Device) -> Tensor<1> {
        let scores = examples.iter().map(|(ids, _)| self.forward(ids_tensor(ids, device))).collect();
        let labels: Vec<i32> = examples.iter().map(|(_, class)| *class as i32).collect();
        let labels = Tensor::<1, Int>::from_data(TensorData::from(labels.as_slice()), (device, DType::I32));
        CrossEntropyLossConfig::new().init(device).forward(Tensor::cat(scores, 0), labels)
    }
}

/// One step of gradient descent; the loss before it.
pub fn train_step(
    classifier: Classifier,
    examples: &[(Vec<u32>, u32)],
    rate: f64,
    device: &Device,
) -> (Classifier, f32) {
    let classifier = classifier.train();
    let loss = classifier.loss(examples, &device.clone().autodiff());
    let before = loss.clone().into_scalar::<f32>();
    let gradients = GradientsParams::from_grads(loss.backward(), &classifier);
    let classifier = SgdConfig::new().init().step(rate, classifier, gradients);
    (classifier.valid(), before)
}
