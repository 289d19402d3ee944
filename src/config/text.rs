//! Mirror of `text_config` as it stands in config.json, in both formats that exist: Google's own files carry
//! `global_head_dim` and `num_global_key_value_heads`, files saved again by transformers carry `per_layer_config`.
//! Names are Hugging Face's; defaults are those of its `Gemma4TextConfig`.

use std::collections::BTreeMap;

use serde::Deserialize;

/// The text model's settings as the file states them; nothing is resolved yet.
#[derive(Debug, Clone, Deserialize)]
pub struct TextConfig {
    #[serde(default)]
    pub model_type: String,
    #[serde(default = "default::vocab_size")]
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub intermediate_size: usize,
    pub num_hidden_layers: usize,
    pub num_attention_heads: usize,
    pub num_key_value_heads: usize,
    #[serde(default = "default::head_dim")]
    pub head_dim: usize,
    #[serde(default = "default::global_head_dim")]
    pub global_head_dim: usize,
    #[serde(default)]
    pub num_global_key_value_heads: Option<usize>,
    #[serde(default)]
    pub attention_k_eq_v: bool,
    #[serde(default)]
    pub attention_bias: bool,
    #[serde(default)]
    pub layer_types: Option<Vec<String>>,
    #[serde(default)]
    pub per_layer_config: Option<BTreeMap<String, LayerOverride>>,
    #[serde(default)]
    pub sliding_window: Option<usize>,
    #[serde(default)]
    pub num_kv_shared_layers: usize,
    #[serde(default)]
    pub use_double_wide_mlp: bool,
    #[serde(default = "default::hidden_size_per_layer_input")]
    pub hidden_size_per_layer_input: Option<usize>,
    #[serde(default)]
    pub vocab_size_per_layer_input: Option<usize>,
    #[serde(default = "default::hidden_activation")]
    pub hidden_activation: String,
    #[serde(default = "default::rms_norm_eps")]
    pub rms_norm_eps: f64,
    #[serde(default)]
    pub final_logit_softcapping: Option<f64>,
    #[serde(default)]
    pub max_position_embeddings: Option<usize>,
    #[serde(default)]
    pub rope_parameters: Option<RopeParameters>,
    #[serde(default)]
    pub tie_word_embeddings: Option<bool>,
    #[serde(default)]
    pub use_bidirectional_attention: Option<String>,
    #[serde(default)]
    pub enable_moe_block: bool,
    #[serde(default)]
    pub pad_token_id: Option<u32>,
    #[serde(default)]
    pub eos_token_id: Option<OneOrMany>,
}

/// What one layer overrides; this is how transformers 5.17 and later saves the two head sizes.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct LayerOverride {
    pub head_dim: Option<usize>,
    pub num_key_value_heads: Option<usize>,
}

/// `rope_parameters`, one entry per layer type.
#[derive(Debug, Clone, Deserialize)]
pub struct RopeParameters {
    pub full_attention: RopeEntry,
    pub sliding_attention: RopeEntry,
}

/// The rotary embedding of one layer type.
#[derive(Debug, Clone, Deserialize)]
pub struct RopeEntry {
    pub rope_type: String,
    pub rope_theta: f64,
    #[serde(default)]
    pub partial_rotary_factor: Option<f64>,
    #[serde(default)]
    pub factor: Option<f64>,
}

impl Default for RopeParameters {
    fn default() -> Self {
        let entry = |rope_type: &str, rope_theta, partial_rotary_factor| RopeEntry {
            rope_type: rope_type.to_owned(),
            rope_theta,
            partial_rotary_factor,
            factor: None,
        };
        Self { full_attention: entry("proportional", 1e6, Some(0.25)), sliding_attention: entry("default", 1e4, None) }
    }
}

/// A token id, or a list of them.
#[derive(Debug, Clone, Deserialize)]
#[serde(untagged)]
pub enum OneOrMany {
    One(u32),
    Many(Vec<u32>),
}

impl OneOrMany {
    /// The ids as a list.
    pub fn into_vec(self) -> Vec<u32> {
        match self {
            Self::One(id) => vec![id],
            Self::Many(ids) => ids,
        }
    }
}

/// The part of a composite config.json that lies outside `text_config`.
#[derive(Debug, Clone, Default, Deserialize)]
pub struct Composite {
    #[serde(default)]
    pub tie_word_embeddings: Option<bool>,
    #[serde(default)]
    pub eos_token_id: Option<OneOrMany>,
    #[serde(default)]
    pub image_token_id: Option<u32>,
    #[serde(default)]
    pub audio_token_id: Option<u32>,
    #[serde(default)]
    pub video_token_id: Option<u32>,
}

/// Defaults of transformers' `Gemma4TextConfig` (5.17) for keys that a file may leave out.
mod default {
    pub fn vocab_size() -> usize {
        262_144
    }
    pub fn head_dim() -> usize {
        256
    }
    pub fn global_head_dim() -> usize {
        512
    }
    pub fn hidden_size_per_layer_input() -> Option<usize> {
        Some(256)
    }
    pub fn hidden_activation() -> String {
        "gelu_pytorch_tanh".to_owned()
    }
    pub fn rms_norm_eps() -> f64 {
        1e-6
    }
}
