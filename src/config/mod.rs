//! config.json, resolved once: every architectural number that the rest of the crate uses comes from here.

mod generation;
mod layer;
mod presets;
mod text;

use std::path::{Path, PathBuf};

use serde::de::DeserializeOwned;
use serde_json::Value;

pub use generation::*;
pub use layer::{KvSource, LayerSpec, RopeSpec};
pub use text::OneOrMany;

use crate::{Error, Result};
use text::{Composite, TextConfig};

/// Context of the plain text configs when a file does not state it (transformers' default).
const DEFAULT_MAX_POSITIONS: usize = 131_072;
const DEFAULT_WINDOW: usize = 512;
/// The same two for `gemma4_unified_text`.
const UNIFIED_MAX_POSITIONS: usize = 262_144;
const UNIFIED_WINDOW: usize = 1024;

/// Per-layer embeddings: one extra input per layer and token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PerLayerSpec {
    /// Rows of the table.
    pub vocab_size: usize,
    /// Width of one layer's input.
    pub dim: usize,
}

/// Everything about a checkpoint that its config.json decides.
#[derive(Debug, Clone, PartialEq)]
pub struct GemmaConfig {
    /// The file this came from, for messages.
    pub file: PathBuf,
    pub vocab_size: usize,
    pub hidden_size: usize,
    pub rms_norm_eps: f64,
    pub softcap: Option<f64>,
    pub tie_word_embeddings: bool,
    /// Longest context the model was made for, in tokens.
    pub max_positions: usize,
    pub per_layer: Option<PerLayerSpec>,
    pub layers: Vec<LayerSpec>,
    pub pad_token_id: u32,
    /// Ids that stand for an image, a sound or a video: embedded as padding while there is no such input.
    pub placeholder_ids: Vec<u32>,
    /// End ids named by config.json, innermost last; see [`end_ids`].
    pub eos_token_ids: Vec<u32>,
}

impl GemmaConfig {
    /// Reads `dir/config.json`, composite or flat.
    ///
    /// # Errors
    /// A missing or damaged file, a key of the wrong type, an impossible value, a mixture-of-experts or embedding model.
    pub fn from_dir(dir: impl AsRef<Path>) -> Result<Self> {
        let dir = dir.as_ref();
        if !dir.is_dir() {
            let reason = std::io::Error::new(std::io::ErrorKind::NotFound, "no such folder; give a checkpoint folder");
            return Err(Error::io(dir, reason));
        }
        let file = dir.join("config.json");
        let json = std::fs::read_to_string(&file).map_err(|e| Error::io(&file, e))?;
        Self::from_json(&json, &file)
    }

    /// Parses the text of a config.json; `file` is named in messages.
    pub fn from_json(json: &str, file: &Path) -> Result<Self> {
        let root: Value = serde_json::from_str(json).map_err(|e| Error::config(file, "the file", e, "valid JSON"))?;
        match root.get("text_config") {
            Some(inner) => Self::resolve(parse(inner, "text_config.", file)?, parse(&root, "", file)?, file),
            None => Self::resolve(parse(&root, "", file)?, Composite::default(), file),
        }
    }

    /// Cache slots that forward passes need, in slot order: the layers that own keys and values.
    pub fn slots(&self) -> impl Iterator<Item = &LayerSpec> {
        self.layers.iter().filter(|layer| !layer.kv.is_shared())
    }

    /// The first layer from which no layer stores keys or values: a prompt's earlier tokens need nothing beyond it.
    pub fn first_shared(&self) -> usize {
        self.slots().count()
    }

    /// Elements of all matrices that one token multiplies with; of embedding tables it reads single rows.
    pub fn matrix_elements_per_token(&self) -> usize {
        let (hidden, per_layer) = (self.hidden_size, self.per_layer.map_or(0, |spec| spec.dim));
        let layer = |l: &LayerSpec| {
            let owned = match (l.kv.is_shared(), l.k_eq_v) {
                (true, _) => 0,
                (false, true) => 1,
                (false, false) => 2,
            };
            hidden * l.head_dim * (2 * l.heads + owned * l.kv_heads) + 3 * hidden * l.ffn + 2 * hidden * per_layer
        };
        let layers: usize = self.layers.iter().map(layer).sum();
        layers + hidden * per_layer * self.layers.len() + hidden * self.vocab_size
    }

    fn resolve(c: TextConfig, outer: Composite, file: &Path) -> Result<Self> {
        let unified = match c.model_type.as_str() {
            "gemma4_text" => false,
            "gemma4_unified_text" => true,
            other => {
                let expected = "\"gemma4_text\" or \"gemma4_unified_text\" (only Gemma 4 runs here)";
                return Err(Error::config(file, "model_type", format!("\"{other}\""), expected));
            }
        };
        refuse_unsupported(&c, file)?;
        for (key, value) in [
            ("vocab_size", c.vocab_size),
            ("hidden_size", c.hidden_size),
            ("intermediate_size", c.intermediate_size),
            ("num_hidden_layers", c.num_hidden_layers),
            ("num_attention_heads", c.num_attention_heads),
            ("num_key_value_heads", c.num_key_value_heads),
            ("sliding_window", c.sliding_window.unwrap_or(1)),
            ("max_position_embeddings", c.max_position_embeddings.unwrap_or(1)),
        ] {
            if value == 0 {
                return Err(Error::config(file, key, 0, "a positive number"));
            }
        }
        if c.rms_norm_eps.is_nan() || c.rms_norm_eps <= 0.0 {
            return Err(Error::config(file, "rms_norm_eps", c.rms_norm_eps, "a positive number"));
        }
        if let Some(cap) = c.final_logit_softcapping.filter(|cap| cap.is_nan() || *cap <= 0.0) {
            return Err(Error::config(file, "final_logit_softcapping", cap, "a positive number or null"));
        }
        let window = c.sliding_window.unwrap_or(if unified { UNIFIED_WINDOW } else { DEFAULT_WINDOW });
        let default_positions = if unified { UNIFIED_MAX_POSITIONS } else { DEFAULT_MAX_POSITIONS };
        let per_layer_dim = c.hidden_size_per_layer_input.filter(|&dim| dim > 0 && !unified);
        let eos = c.eos_token_id.clone().or(outer.eos_token_id).map(OneOrMany::into_vec);
        let placeholders = [outer.image_token_id, outer.audio_token_id, outer.video_token_id];
        Ok(Self {
            file: file.to_owned(),
            layers: layer::resolve(&c, window, file)?,
            vocab_size: c.vocab_size,
            hidden_size: c.hidden_size,
            rms_norm_eps: c.rms_norm_eps,
            softcap: c.final_logit_softcapping,
            tie_word_embeddings: c.tie_word_embeddings.or(outer.tie_word_embeddings).unwrap_or(true),
            max_positions: c.max_position_embeddings.unwrap_or(default_positions),
            per_layer: per_layer_dim
                .map(|dim| PerLayerSpec { vocab_size: c.vocab_size_per_layer_input.unwrap_or(c.vocab_size), dim }),
            pad_token_id: c.pad_token_id.unwrap_or(0),
            placeholder_ids: placeholders.into_iter().flatten().collect(),
            eos_token_ids: eos.unwrap_or_default(),
        })
    }
}

fn refuse_unsupported(c: &TextConfig, file: &Path) -> Result<()> {
    if c.enable_moe_block {
        let expected =
            "false: mixture-of-experts models (26B-A4B) do not run here yet; use a dense one (E2B, E4B, 12B, 31B)";
        return Err(Error::config(file, "enable_moe_block", true, expected));
    }
    if c.attention_bias {
        return Err(Error::config(file, "attention_bias", true, "false, as in every Gemma 4 checkpoint"));
    }
    if c.hidden_activation != "gelu_pytorch_tanh" {
        let got = format!("\"{}\"", c.hidden_activation);
        return Err(Error::config(file, "hidden_activation", got, "\"gelu_pytorch_tanh\""));
    }
    match c.use_bidirectional_attention.as_deref() {
        // Text stays causal in "vision" models: only tokens of one image see each other.
        None | Some("vision") => Ok(()),
        Some(other) => {
            let expected = "null or \"vision\": embedding models do not run here";
            Err(Error::config(file, "use_bidirectional_attention", format!("\"{other}\""), expected))
        }
    }
}

/// Deserializes one JSON object; a failure names the key's path below `prefix`.
fn parse<T: DeserializeOwned>(value: &Value, prefix: &str, file: &Path) -> Result<T> {
    serde_path_to_error::deserialize(value).map_err(|e| {
        let path = e.path().to_string();
        let message = e.into_inner().to_string();
        if let Some(key) = message.strip_prefix("missing field `").and_then(|rest| rest.strip_suffix('`')) {
            return Error::config(file, format!("{prefix}{key}"), "absent", "a value");
        }
        let (got, expected) = message.split_once(", expected ").unwrap_or((message.as_str(), "another type"));
        let got = got.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
        Error::config(file, format!("{prefix}{path}"), got, expected)
    })
}
