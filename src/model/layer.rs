//! One decoder layer.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::attention::GemmaAttention;
use super::init;
use super::mlp::GatedMlp;
use super::norm::GemmaRmsNorm;
use super::per_layer::PerLayerBlock;
use super::step::Step;
use super::tap::Probe;
use crate::cache::KvCache;
use crate::config::{GemmaConfig, LayerSpec};

/// Attention, gated feed-forward and per-layer input, each between two norms, around one residual stream.
#[derive(Module, Debug)]
pub struct DecoderLayer {
    pub input_layernorm: GemmaRmsNorm,
    pub self_attn: GemmaAttention,
    pub post_attention_layernorm: GemmaRmsNorm,
    pub pre_feedforward_layernorm: GemmaRmsNorm,
    pub mlp: GatedMlp,
    pub post_feedforward_layernorm: GemmaRmsNorm,
    /// The per-layer input; its fields stand beside these in a checkpoint.
    pub per_layer: Option<PerLayerBlock>,
    /// `[1]`, multiplies the whole residual stream at the end.
    pub layer_scalar: Param<Tensor<1>>,
    #[module(skip)]
    index: usize,
}

impl DecoderLayer {
    pub fn init(config: &GemmaConfig, index: usize, spec: &LayerSpec, device: &Device) -> Self {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let norm = || GemmaRmsNorm::init(hidden, eps, device);
        Self {
            input_layernorm: norm(),
            self_attn: GemmaAttention::init(config, spec, device),
            post_attention_layernorm: norm(),
            pre_feedforward_layernorm: norm(),
            mlp: GatedMlp::init(hidden, spec.ffn, device),
            post_feedforward_layernorm: norm(),
            per_layer: config.per_layer.map(|p| PerLayerBlock::init(hidden, p.dim, eps, device)),
            layer_scalar: init::constant(1, 1.0, device),
            index,
        }
    }

    /// # Shapes
    /// x `[B, T, E]`, per_layer `[B, T, P]` → `[B, T, E]`
    pub fn forward(
        &self,
        x: Tensor<3>,
        per_layer: Option<Tensor<3>>,
        step: &mut Step,
        cache: &mut KvCache,
    ) -> Tensor<3> {
        let dtype = x.dtype();
        let h = self.input_layernorm.forward(x.clone());
        let h = self.self_attn.forward(h, step, cache);
        step.tap.record(Probe::Attention(self.index), &h);
        let x = x + self.post_attention_layernorm.forward(h);

        let h = self.pre_feedforward_layernorm.forward(x.clone());
        let h = self.mlp.forward(h);
        step.tap.record(Probe::Mlp(self.index), &h);
        let mut x = x + self.post_feedforward_layernorm.forward(h);

        if let (Some(block), Some(input)) = (&self.per_layer, per_layer) {
            x = x.clone() + block.forward(x, input);
        }
        let x = x * self.layer_scalar.val().cast(dtype).unsqueeze();
        step.tap.record(Probe::Hidden(self.index), &x);
        x
    }
}
