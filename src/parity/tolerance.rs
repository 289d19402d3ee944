//! How close is close enough, by what was computed in which format.

use crate::device::Dtype;

/// Limits on one comparison; absent ones are only reported.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Every tensor: largest difference by the reference's largest value.
    pub tensor_max_rel: Option<f64>,
    /// Every hidden state: RMS of the difference by that of the reference.
    pub hidden_rms: f64,
    /// Output of the first layer, likewise: before errors add up.
    pub first_hidden_rms: f64,
    pub logits_max_abs: Option<f64>,
    pub logits_rms: f64,
    pub kl_mean: f64,
    /// The best token must agree where the reference prefers it by at least this.
    pub decided: f32,
}

impl Tolerance {
    /// Everything computed in f32 from weights widened from bf16.
    pub const F32: Self = Self {
        tensor_max_rel: Some(5e-5),
        hidden_rms: 5e-5,
        first_hidden_rms: 5e-5,
        logits_max_abs: Some(1e-3),
        logits_rms: 2e-5,
        kl_mean: 1e-6,
        decided: 0.0,
    };

    /// Activations in bf16, against the f32 dump.
    pub const BF16: Self = Self {
        tensor_max_rel: None,
        hidden_rms: 6e-2,
        first_hidden_rms: 1.6e-2,
        logits_max_abs: None,
        logits_rms: 5e-2,
        kl_mean: 1.5e-2,
        decided: 0.5,
    };

    /// Activations in f32, keys and values kept in bf16. Measured on random weights: RMS 8e-3 (tiny 31B) to 1.6e-2 (E2B),
    /// KL 1.3e-3.
    pub const BF16_KV: Self = Self {
        tensor_max_rel: None,
        hidden_rms: 2.5e-2,
        first_hidden_rms: 5e-3,
        logits_max_abs: None,
        logits_rms: 2.5e-2,
        kl_mean: 4e-3,
        decided: 0.5,
    };

    /// Keys and values kept in bf16 on both sides: what is left are those that round to another neighbour.
    pub const SAME_KV: Self = Self { hidden_rms: 5e-3, logits_rms: 5e-3, kl_mean: 4e-4, ..Self::BF16_KV };

    /// For the fused path keeping keys and values in `kv`.
    pub fn fused(kv: Dtype) -> Self {
        match kv {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::BF16_KV,
        }
    }

    /// For the fused path against a plain one that keeps keys and values in the same format.
    pub fn fused_against(kv: Dtype) -> Self {
        match kv {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::SAME_KV,
        }
    }

    /// For the plain path computing in `dtype`.
    pub fn plain(dtype: Dtype) -> Self {
        match dtype {
            Dtype::F32 => Self::F32,
            Dtype::Bf16 => Self::BF16,
        }
    }
}
