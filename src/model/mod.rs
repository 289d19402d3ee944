//! Gemma 4 as Burn modules: ids in, logits out, on any backend. Fields bear the names that a checkpoint uses.

mod attention;
mod embedding;
mod ids;
mod init;
mod layer;
mod lora;
mod mask;
mod mlp;
mod norm;
mod per_layer;
mod projection;
mod rope;
mod step;
mod tap;

use burn::module::Module;
use burn::tensor::{Device, FloatDType, Int, Tensor};

pub use attention::GemmaAttention;
pub use embedding::ScaledEmbedding;
pub use ids::ids_tensor;
pub use layer::DecoderLayer;
pub use lora::{LORA_TARGETS, LoraConfig};
pub use mlp::{GatedMlp, gelu_tanh};
pub use norm::GemmaRmsNorm;
pub use per_layer::{HostRows, PerLayerBlock, PerLayerInputs, PerLayerTable};
pub use projection::Projection;
pub use step::Step;
pub use tap::{Probe, Tap};

use crate::cache::KvCache;
use crate::config::GemmaConfig;

/// What a forward pass is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    /// The last new token. Layers that store nothing in the cache run for it alone.
    Last,
    /// Every new token.
    All,
}

/// The Gemma 4 text model.
#[derive(Module, Debug)]
pub struct Gemma {
    pub embed_tokens: ScaledEmbedding,
    /// Per-layer embeddings; their fields stand beside these in a checkpoint.
    pub per_layer: Option<PerLayerInputs>,
    pub layers: Vec<DecoderLayer>,
    pub norm: GemmaRmsNorm,
    /// Absent where the head is tied to `embed_tokens`.
    pub lm_head: Option<Projection>,
    #[module(skip)]
    config: GemmaConfig,
    #[module(skip)]
    dtype: FloatDType,
}

impl GemmaConfig {
    /// A model whose parameters are drawn when first used, computing in f32.
    pub fn init(&self, device: &Device) -> Gemma {
        Gemma {
            embed_tokens: ScaledEmbedding::init(self.vocab_size, self.hidden_size, device),
            per_layer: self.per_layer.map(|spec| PerLayerInputs::init(self, spec, device)),
            layers: self.layers.iter().enumerate().map(|(i, spec)| DecoderLayer::init(self, i, spec, device)).collect(),
            norm: GemmaRmsNorm::init(self.hidden_size, self.rms_norm_eps, device),
            lm_head: (!self.tie_word_embeddings).then(|| Projection::init(self.hidden_size, self.vocab_size, device)),
            config: self.clone(),
            dtype: FloatDType::F32,
        }
    }
}

impl Gemma {
    /// The configuration this model was made from.
    pub fn config(&self) -> &GemmaConfig {
        &self.config
    }

    /// The format that activations are computed in; norms and softmax are f32 whatever it is.
    pub fn dtype(&self) -> FloatDType {
        self.dtype
    }

    /// The same weights, computing in another format.
    pub fn with_dtype(mut self, dtype: FloatDType) -> Self {
        self.dtype = dtype;
        self
    }

    /// Logits of the new tokens, after the soft-cap. `cache` holds the tokens before them and takes these in.
    ///
    /// # Shapes
    /// ids `[B, T]` → `[B, T, V]` for [`Output::All`], `[B, 1, V]` for [`Output::Last`]
    pub fn forward(&self, ids: Tensor<2, Int>, cache: &mut KvCache, output: Output) -> Tensor<3> {
        self.forward_tapped(ids, cache, output, &mut ())
    }

    /// As [`forward`](Self::forward), showing activations to `tap` on the way.
    pub fn forward_tapped(
        &self,
        ids: Tensor<2, Int>,
        cache: &mut KvCache,
        output: Output,
        tap: &mut dyn Tap,
    ) -> Tensor<3> {
        let hidden = self.hidden_tapped(ids, cache, output, tap);
        let logits = self.logits(hidden);
        tap.record(Probe::Logits, &logits);
        logits
    }

    /// Takes tokens into the cache without asking for anything: layers that store nothing in it do not run.
    ///
    /// # Shapes
    /// ids `[B, T]`
    pub fn fill(&self, ids: Tensor<2, Int>, cache: &mut KvCache) {
        let tokens = ids.dims()[1];
        let tap = &mut ();
        let (mut x, per_layer, mut step) = self.begin(ids, cache, tap);
        for (i, layer) in self.layers.iter().enumerate().take(self.config.first_shared()) {
            x = layer.forward(x, layer_input(&per_layer, i), &mut step, cache);
        }
        cache.advance(tokens);
    }

    /// Input embeddings, as the first layer receives them: rows of the table times `sqrt(E)`.
    ///
    /// # Shapes
    /// ids `[B, T]` → `[B, T, E]` in [`dtype`](Self::dtype)
    pub fn embed(&self, ids: Tensor<2, Int>) -> Tensor<3> {
        self.embed_tokens.forward(self.without_placeholders(ids), self.dtype)
    }

    /// Hidden states of all new tokens after the final norm, for a head of one's own; an empty `cache` makes it a plain
    /// function of the ids.
    ///
    /// # Shapes
    /// ids `[B, T]` → `[B, T, E]`
    pub fn hidden(&self, ids: Tensor<2, Int>, cache: &mut KvCache) -> Tensor<3> {
        self.hidden_tapped(ids, cache, Output::All, &mut ())
    }

    /// The language-model head: hidden states after the final norm to soft-capped logits.
    ///
    /// # Shapes
    /// `[B, T, E]` → `[B, T, V]`
    pub fn logits(&self, hidden: Tensor<3>) -> Tensor<3> {
        let logits = match &self.lm_head {
            Some(head) => head.forward(hidden),
            None => crate::ops::linear(hidden, self.embed_tokens.weight.val()),
        };
        match self.config.softcap {
            Some(cap) => mlp::tanh(logits / cap) * cap,
            None => logits,
        }
    }

    fn hidden_tapped(&self, ids: Tensor<2, Int>, cache: &mut KvCache, output: Output, tap: &mut dyn Tap) -> Tensor<3> {
        let tokens = ids.dims()[1];
        let (mut x, mut per_layer, mut step) = self.begin(ids, cache, tap);
        for (i, layer) in self.layers.iter().enumerate() {
            if i == self.config.first_shared() && output == Output::Last {
                x = last_token(x);
                per_layer = per_layer.map(last_token);
                step.keep_last();
            }
            x = layer.forward(x, layer_input(&per_layer, i), &mut step, cache);
        }
        cache.advance(tokens);
        if output == Output::Last {
            x = last_token(x);
        }
        let x = self.norm.forward(x);
        tap.record(Probe::Final, &x);
        x
    }

    /// Embeddings `[B, T, E]`, per-layer inputs `[B, T, L, P]`, and what the layers share.
    fn begin<'a>(
        &self,
        ids: Tensor<2, Int>,
        cache: &KvCache,
        tap: &'a mut dyn Tap,
    ) -> (Tensor<3>, Option<Tensor<4>>, Step<'a>) {
        let ids = self.without_placeholders(ids);
        let step = Step::new(&self.config, cache.position(), ids.dims()[1], self.dtype, ids.device(), tap);
        let x = self.embed_tokens.forward(ids.clone(), self.dtype);
        step.tap.record(Probe::Embeds, &x);
        let per_layer = self.per_layer.as_ref().map(|inputs| inputs.forward(ids, x.clone()));
        if let Some(inputs) = &per_layer {
            step.tap.record(Probe::PerLayer, &inputs.clone().flatten(2, 3));
        }
        (x, per_layer, step)
    }

    /// Ids that stand for images and sounds become padding: there is no such input to put in their place.
    fn without_placeholders(&self, ids: Tensor<2, Int>) -> Tensor<2, Int> {
        self.config.placeholder_ids.iter().fold(ids, |ids, &placeholder| {
            let hit = ids.clone().equal_elem(placeholder);
            ids.mask_fill(hit, self.config.pad_token_id)
        })
    }
}

/// One layer's part of the per-layer inputs: `[B, T, L, P]` → `[B, T, P]`
fn layer_input(per_layer: &Option<Tensor<4>>, layer: usize) -> Option<Tensor<3>> {
    per_layer.clone().map(|inputs| inputs.narrow(2, layer, 1).squeeze_dim(2))
}

/// The last of the new tokens: `[B, T, ..]` → `[B, 1, ..]`
fn last_token<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    let t = x.dims()[1];
    if t == 1 { x } else { x.narrow(1, t - 1, 1) }
}
