//! Self-attention: normalized queries and keys, rotary positions, keys and values of its own or of an earlier layer.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::norm::{GemmaRmsNorm, rms_norm};
use super::projection::Projection;
use super::step::Step;
use crate::cache::{KvCache, KvView};
use crate::config::{GemmaConfig, KvSource, LayerSpec};
use crate::ops::attention;

/// Attention of one layer. A layer that shares keys and values has no `k_proj`, `v_proj` and `k_norm`.
#[derive(Module, Debug)]
pub struct GemmaAttention {
    pub q_proj: Projection,
    pub q_norm: GemmaRmsNorm,
    pub k_proj: Option<Projection>,
    pub k_norm: Option<GemmaRmsNorm>,
    /// Absent where values are the raw keys.
    pub v_proj: Option<Projection>,
    pub o_proj: Projection,
    #[module(skip)]
    spec: LayerSpec,
    #[module(skip)]
    eps: f64,
}

impl GemmaAttention {
    pub fn init(config: &GemmaConfig, spec: &LayerSpec, device: &Device) -> Self {
        let (hidden, eps) = (config.hidden_size, config.rms_norm_eps);
        let (q_width, kv_width) = (spec.heads * spec.head_dim, spec.kv_heads * spec.head_dim);
        let owns = !spec.kv.is_shared();
        // Scores are not scaled: keys of this size give them a deviation of 1 before training has said otherwise.
        let key_weight = (spec.head_dim as f64).powf(-0.5);
        Self {
            q_proj: Projection::init(hidden, q_width, device),
            q_norm: GemmaRmsNorm::init(spec.head_dim, eps, device),
            k_proj: owns.then(|| Projection::init(hidden, kv_width, device)),
            k_norm: owns.then(|| GemmaRmsNorm::init_to(key_weight, spec.head_dim, eps, device)),
            v_proj: (owns && !spec.k_eq_v).then(|| Projection::init(hidden, kv_width, device)),
            o_proj: Projection::init(q_width, hidden, device),
            spec: spec.clone(),
            eps,
        }
    }

    /// # Shapes
    /// `[B, T, E]` → `[B, T, E]`
    pub fn forward(&self, h: Tensor<3>, step: &mut Step, cache: &mut KvCache) -> Tensor<3> {
        let [b, t, _] = h.dims();
        let spec = &self.spec;
        let rope = step.rope(spec);

        let q = self.split_heads(self.q_proj.forward(h.clone())); // [B, H, T, D]
        let q = rope.rotate(self.q_norm.forward(q));
        if let KvSource::Own(slot) = spec.kv {
            let (k, v) = self.keys_values(h);
            let view = cache.append(slot, KvView { k: rope.rotate(k), v });
            step.share(slot, view);
        }
        let KvView { k, v } = step.view(spec);
        let mask = step.mask(spec.window, k.dims()[2]);
        let mixed = attention(q, k, v, mask); // [B, H, T, D]
        self.o_proj.forward(mixed.swap_dims(1, 2).reshape([b, t, spec.heads * spec.head_dim]))
    }

    /// Normalized keys, not yet rotated, and values: both `[B, K, T, D]`.
    fn keys_values(&self, h: Tensor<3>) -> (Tensor<4>, Tensor<4>) {
        let owned = "a layer that owns keys and values has their projections";
        let raw = self.split_heads(self.k_proj.as_ref().expect(owned).forward(h.clone()));
        let k = self.k_norm.as_ref().expect(owned).forward(raw.clone());
        let v = match &self.v_proj {
            Some(v_proj) => self.split_heads(v_proj.forward(h)),
            None => raw,
        };
        (k, rms_norm(v, self.eps))
    }

    /// `[B, T, heads*D]` → `[B, heads, T, D]`
    fn split_heads(&self, x: Tensor<3>) -> Tensor<4> {
        let [b, t, width] = x.dims();
        let dim = self.spec.head_dim;
        x.reshape([b, t, width / dim, dim]).swap_dims(1, 2)
    }
}
