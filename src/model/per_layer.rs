//! Per-layer embeddings: every layer gets an input of its own, looked up by token and mixed with the token's context.

use std::sync::Arc;

use burn::module::{Module, Param};
use burn::tensor::{DType, Device, FloatDType, Int, Tensor};

use super::embedding;
use super::init;
use super::mlp::gelu_tanh;
use super::norm::GemmaRmsNorm;
use super::projection::Projection;
use crate::config::{GemmaConfig, PerLayerSpec};

/// Rows of a table that stays outside the device, such as a memory-mapped file.
pub trait HostRows: std::fmt::Debug + Send + Sync {
    /// Appends row `id`, widened to f32.
    fn read(&self, id: u32, into: &mut Vec<f32>);
    /// Appends row `id` as bf16 pairs packed in u32, low half first.
    fn read_packed(&self, id: u32, into: &mut Vec<u32>);
    /// Bytes of the table.
    fn bytes(&self) -> usize;
}

/// The table `[V, L*P]`: a parameter on the device, or rows on the host of which one per token is read.
#[derive(Module, Debug)]
pub struct PerLayerTable {
    pub weight: Option<Param<Tensor<2>>>,
    #[module(skip)]
    host: Option<Arc<dyn HostRows>>,
}

impl PerLayerTable {
    fn init(rows: usize, width: usize, deviation: f64, device: &Device) -> Self {
        Self { weight: Some(init::normal([rows, width], deviation, device)), host: None }
    }

    /// A table that is read from the host, one row per token.
    pub fn on_host(rows: Arc<dyn HostRows>) -> Self {
        Self { weight: None, host: Some(rows) }
    }

    /// The rows on the host, where they are there.
    pub fn host(&self) -> Option<&Arc<dyn HostRows>> {
        self.host.as_ref()
    }

    /// ids `[B, T]` → `[B*T, L*P]`, not scaled.
    fn rows(&self, ids: Tensor<2, Int>, width: usize, dtype: FloatDType) -> Tensor<2> {
        let [b, t] = ids.dims();
        if let Some(weight) = &self.weight {
            return weight.val().select(0, ids.reshape([b * t])).cast(dtype);
        }
        let host = self.host.as_ref().expect("a table is on the device or on the host");
        let device = ids.device();
        let mut values = Vec::with_capacity(b * t * width);
        for id in ids.into_data().iter::<u32>() {
            host.read(id, &mut values);
        }
        Tensor::<2>::from_data(burn::tensor::TensorData::new(values, [b * t, width]), (&device, DType::F32)).cast(dtype)
    }
}

/// Makes the inputs of all layers from token ids and embeddings.
#[derive(Module, Debug)]
pub struct PerLayerInputs {
    pub embed_tokens_per_layer: PerLayerTable,
    pub per_layer_model_projection: Projection,
    pub per_layer_projection_norm: GemmaRmsNorm,
    #[module(skip)]
    spec: PerLayerSpec,
    #[module(skip)]
    layers: usize,
}

impl PerLayerInputs {
    pub fn init(config: &GemmaConfig, spec: PerLayerSpec, device: &Device) -> Self {
        let layers = config.layers.len();
        let width = layers * spec.dim;
        let deviation = 1.0 / (spec.dim as f64).sqrt();
        Self {
            embed_tokens_per_layer: PerLayerTable::init(spec.vocab_size, width, deviation, device),
            per_layer_model_projection: Projection::init(config.hidden_size, width, device),
            per_layer_projection_norm: GemmaRmsNorm::init(spec.dim, config.rms_norm_eps, device),
            spec,
            layers,
        }
    }

    /// # Shapes
    /// ids `[B, T]`, embeds `[B, T, E]` (scaled) → `[B, T, L, P]`
    pub fn forward(&self, ids: Tensor<2, Int>, embeds: Tensor<3>) -> Tensor<4> {
        let [b, t, hidden] = embeds.dims();
        let dtype: FloatDType = embeds.dtype().into();
        let shape = [b, t, self.layers, self.spec.dim];
        let scale = embedding::scale(self.spec.dim, dtype);
        let token = self.embed_tokens_per_layer.rows(ids, self.layers * self.spec.dim, dtype) * scale;
        let context = self.per_layer_model_projection.forward(embeds) * (hidden as f64).powf(-0.5);
        let context = self.per_layer_projection_norm.forward(context.reshape(shape));
        (context + token.reshape(shape)) * std::f64::consts::FRAC_1_SQRT_2
    }
}

/// What one layer does with its input.
#[derive(Module, Debug)]
pub struct PerLayerBlock {
    pub per_layer_input_gate: Projection,
    pub per_layer_projection: Projection,
    pub post_per_layer_input_norm: GemmaRmsNorm,
}

impl PerLayerBlock {
    pub fn init(hidden: usize, dim: usize, eps: f64, device: &Device) -> Self {
        Self {
            per_layer_input_gate: Projection::init(hidden, dim, device),
            per_layer_projection: Projection::init(dim, hidden, device),
            post_per_layer_input_norm: GemmaRmsNorm::init(hidden, eps, device),
        }
    }

    /// # Shapes
    /// x `[B, T, E]`, input `[B, T, P]` → `[B, T, E]`, to be added to the residual stream
    pub fn forward(&self, x: Tensor<3>, input: Tensor<3>) -> Tensor<3> {
        let gate = gelu_tanh(self.per_layer_input_gate.forward(x)); // [B, T, P]
        self.post_per_layer_input_norm.forward(self.per_layer_projection.forward(gate * input))
    }
}
