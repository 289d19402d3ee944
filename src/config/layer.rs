//! The place where each layer's facts are decided: attention kind, head sizes, window, whose keys and values it reads,
//! feed-forward width. Everything else asks the spec and never the layer's index.

use std::path::Path;

use super::text::{LayerOverride, RopeEntry, TextConfig};
use crate::{Error, Result};

/// Where a layer's keys and values live. The number is a cache slot: owning layers are numbered in order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum KvSource {
    /// The layer projects its own keys and values and stores them in this slot.
    Own(usize),
    /// The layer reads what another layer of its kind has stored in this slot.
    Shared(usize),
}

impl KvSource {
    /// The cache slot that is read.
    pub fn slot(self) -> usize {
        match self {
            Self::Own(slot) | Self::Shared(slot) => slot,
        }
    }

    /// Whether the layer reads another layer's keys and values.
    pub fn is_shared(self) -> bool {
        matches!(self, Self::Shared(_))
    }
}

/// The rotary embedding of a layer: pairs `(i, i + head_dim / 2)` turn by `position * frequency[i]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RopeSpec {
    pub theta: f64,
    /// Pairs that turn; the others keep frequency 0.
    pub turning: usize,
    /// Frequencies are divided by this.
    pub factor: f64,
}

impl RopeSpec {
    /// Angular frequency of each pair in radians per position, `[head_dim / 2]`.
    pub fn frequencies(&self, head_dim: usize) -> Vec<f32> {
        (0..head_dim / 2)
            .map(|i| match i < self.turning {
                true => (self.theta.powf(-((2 * i) as f64) / head_dim as f64) / self.factor) as f32,
                false => 0.0,
            })
            .collect()
    }
}

/// The resolved facts of one decoder layer.
#[derive(Debug, Clone, PartialEq)]
pub struct LayerSpec {
    /// Query heads.
    pub heads: usize,
    /// Key/value heads.
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Tokens a query sees, itself included; `None` for full attention.
    pub window: Option<usize>,
    pub rope: RopeSpec,
    pub kv: KvSource,
    /// Values are the raw output of `k_proj`; the layer has no `v_proj`.
    pub k_eq_v: bool,
    /// Width of the gated feed-forward.
    pub ffn: usize,
}

const SLIDING: &str = "sliding_attention";
const FULL: &str = "full_attention";
/// Full attention every so many layers where a file gives no `layer_types` (transformers' default).
const DEFAULT_PATTERN: usize = 6;

/// Resolves all layers of a checked [`TextConfig`].
pub(super) fn resolve(c: &TextConfig, window: usize, file: &Path) -> Result<Vec<LayerSpec>> {
    let count = c.num_hidden_layers;
    let full = layer_kinds(c, file)?;
    let overrides = overrides(c, file)?;
    let rope = c.rope_parameters.clone().unwrap_or_default();
    if c.num_kv_shared_layers >= count && c.num_kv_shared_layers > 0 {
        let expected = format!("fewer than `num_hidden_layers` ({count})");
        return Err(Error::config(file, "num_kv_shared_layers", c.num_kv_shared_layers, expected));
    }
    let first_shared = count - c.num_kv_shared_layers;

    let mut layers = Vec::with_capacity(count);
    for i in 0..count {
        let k_eq_v = full[i] && c.attention_k_eq_v;
        let own = overrides.get(i).cloned().unwrap_or_default();
        let head_dim = own.head_dim.unwrap_or(if full[i] { c.global_head_dim } else { c.head_dim });
        let global_kv = c.num_global_key_value_heads.filter(|_| k_eq_v);
        let kv_heads = own.num_key_value_heads.or(global_kv).unwrap_or(c.num_key_value_heads);
        let shared = i >= first_shared;
        let source = match shared {
            false => i,
            true => (0..first_shared).rev().find(|&j| full[j] == full[i]).ok_or_else(|| {
                let kind = if full[i] { FULL } else { SLIDING };
                let expected = format!("a {kind} layer before layer {first_shared}, where sharing begins");
                Error::config(file, "layer_types", format!("without one for layer {i} to read from"), expected)
            })?,
        };
        if kv_heads == 0 || !c.num_attention_heads.is_multiple_of(kv_heads) {
            let expected = format!("a divisor of `num_attention_heads` ({})", c.num_attention_heads);
            return Err(Error::config(file, format!("num_key_value_heads (layer {i})"), kv_heads, expected));
        }
        if head_dim == 0 || !head_dim.is_multiple_of(2) {
            return Err(Error::config(file, format!("head_dim (layer {i})"), head_dim, "a positive even number"));
        }
        let entry = if full[i] { &rope.full_attention } else { &rope.sliding_attention };
        layers.push(LayerSpec {
            heads: c.num_attention_heads,
            kv_heads,
            head_dim,
            window: (!full[i]).then_some(window),
            rope: rope_spec(entry, head_dim, if full[i] { FULL } else { SLIDING }, file)?,
            kv: if shared { KvSource::Shared(source) } else { KvSource::Own(i) },
            k_eq_v,
            ffn: c.intermediate_size * if shared && c.use_double_wide_mlp { 2 } else { 1 },
        });
    }
    Ok(layers)
}

/// Per layer: whether it attends to everything. The last layer always does.
fn layer_kinds(c: &TextConfig, file: &Path) -> Result<Vec<bool>> {
    let count = c.num_hidden_layers;
    let mut full = match &c.layer_types {
        None => (1..=count).map(|n| n.is_multiple_of(DEFAULT_PATTERN)).collect(),
        Some(types) if types.len() != count => {
            let expected = format!("{count} entries, as `num_hidden_layers` says");
            return Err(Error::config(file, "layer_types", format!("a list of {}", types.len()), expected));
        }
        Some(types) => types
            .iter()
            .enumerate()
            .map(|(i, kind)| match kind.as_str() {
                FULL => Ok(true),
                SLIDING => Ok(false),
                other => {
                    let expected = format!("\"{SLIDING}\" or \"{FULL}\"");
                    Err(Error::config(file, format!("layer_types[{i}]"), format!("\"{other}\""), expected))
                }
            })
            .collect::<Result<Vec<_>>>()?,
    };
    full[count - 1] = true;
    Ok(full)
}

/// `per_layer_config` as a list; its keys may be padded with zeros.
fn overrides(c: &TextConfig, file: &Path) -> Result<Vec<LayerOverride>> {
    let mut list = vec![LayerOverride::default(); c.num_hidden_layers];
    for (key, value) in c.per_layer_config.iter().flatten() {
        let layer = key.parse::<usize>().ok().filter(|&i| i < list.len()).ok_or_else(|| {
            let expected = format!("layer numbers below {}", c.num_hidden_layers);
            Error::config(file, "per_layer_config", format!("keyed by \"{key}\""), expected)
        })?;
        list[layer] = value.clone();
    }
    Ok(list)
}

fn rope_spec(entry: &RopeEntry, head_dim: usize, kind: &str, file: &Path) -> Result<RopeSpec> {
    let pairs = head_dim / 2;
    let key = |name: &str| format!("rope_parameters.{kind}.{name}");
    if entry.rope_theta.is_nan() || entry.rope_theta <= 0.0 {
        return Err(Error::config(file, key("rope_theta"), entry.rope_theta, "a positive number"));
    }
    match entry.rope_type.as_str() {
        "default" => Ok(RopeSpec { theta: entry.rope_theta, turning: pairs, factor: 1.0 }),
        "proportional" => {
            let part = entry.partial_rotary_factor.unwrap_or(1.0);
            if !(0.0..=1.0).contains(&part) {
                return Err(Error::config(file, key("partial_rotary_factor"), part, "a number from 0 to 1"));
            }
            let turning = (part * head_dim as f64 / 2.0).floor() as usize;
            Ok(RopeSpec { theta: entry.rope_theta, turning, factor: entry.factor.unwrap_or(1.0) })
        }
        other => {
            let expected = "\"default\" or \"proportional\"";
            Err(Error::config(file, key("rope_type"), format!("\"{other}\""), expected))
        }
    }
}
