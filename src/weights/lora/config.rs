//! adapter_config.json: what is needed of it, and what must not be in it.

use std::path::Path;

use fancy_regex::Regex;
use serde_json::{Map, Value};

use crate::{Error, Result};

/// Keys that say nothing about what the adapter computes, or that [`AdapterConfig::from_file`] reads. Which layers are
/// adapted is told by the tensors.
const KNOWN: [&str; 21] = [
    "auto_mapping",
    "base_model_name_or_path",
    "bias",
    "exclude_modules",
    "inference_mode",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "megatron_core",
    "peft_type",
    "peft_version",
    "qalora_group_size",
    "r",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
    "use_rslora",
    "ensure_weight_tying",
];
/// Ways to begin a training that leave the base weights as they are. The others put a part of them into the adapter.
const NEUTRAL_INITS: [&str; 2] = ["gaussian", "orthogonal"];

#[derive(Debug)]
pub(super) struct AdapterConfig {
    /// `r`
    pub(super) rank: usize,
    /// `lora_alpha / r`, or `lora_alpha / sqrt(r)` with `use_rslora`.
    pub(super) scale: f64,
    pub(super) targets: Targets,
}

/// `target_modules`: which modules PEFT adapts.
#[derive(Debug)]
pub(super) enum Targets {
    /// Last segments of a module's name.
    Names(Vec<String>),
    /// Matches the whole name of a module.
    Pattern(Regex),
    /// `all-linear`
    All,
}

impl Targets {
    /// Whether the module of this name is among them.
    pub(super) fn contain(&self, module: &str) -> bool {
        match self {
            Self::Names(names) => names
                .iter()
                .any(|name| module.strip_suffix(name).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))),
            Self::Pattern(pattern) => pattern.is_match(module).unwrap_or(false),
            Self::All => true,
        }
    }
}

impl AdapterConfig {
    /// Reads the file and refuses whatever would make the adapter something else than `scale * B A`.
    pub(super) fn from_file(file: &Path) -> Result<Self> {
        let json = std::fs::read(file).map_err(|e| Error::io(file, e))?;
        let keys: Map<String, Value> = serde_json::from_slice(&json)
            .map_err(|e| Error::weights(file, format!("not the configuration of an adapter: {e}")))?;
        let refuse = |key: &str, got: &Value, expected: &str| Err(Error::config(file, key, got, expected));
        let get = |key: &str| keys.get(key).unwrap_or(&Value::Null);

        if get("peft_type") != "LORA" {
            return refuse("peft_type", get("peft_type"), "\"LORA\"; other adapters do not load here");
        }
        if !is_off(get("bias")) && get("bias") != "none" {
            return refuse("bias", get("bias"), "\"none\": Gemma's projections have no bias");
        }
        let init = get("init_lora_weights");
        if !(init.is_boolean() || init.is_null() || NEUTRAL_INITS.iter().any(|neutral| init == neutral)) {
            return refuse(
                "init_lora_weights",
                init,
                "true: others change the base weights; convert the adapter with PEFT",
            );
        }
        if let Some((key, got)) = keys.iter().find(|(key, value)| !KNOWN.contains(&key.as_str()) && !is_off(value)) {
            return refuse(key, got, "nothing: adapters that use it do not load here; merge it with PEFT instead");
        }
        let Some(rank) = get("r").as_u64().filter(|&rank| rank > 0) else {
            return refuse("r", get("r"), "the rank, 1 or more");
        };
        let Some(alpha) = get("lora_alpha").as_f64().filter(|alpha| alpha.is_finite()) else {
            return refuse("lora_alpha", get("lora_alpha"), "a number");
        };
        let Some(targets) = targets(get("target_modules")) else {
            return refuse("target_modules", get("target_modules"), "names of modules, or a regular expression");
        };
        let divisor = if get("use_rslora") == true { (rank as f64).sqrt() } else { rank as f64 };
        Ok(Self { rank: rank as usize, scale: alpha / divisor, targets })
    }
}

fn targets(value: &Value) -> Option<Targets> {
    match value {
        Value::String(all) if all == "all-linear" => Some(Targets::All),
        Value::String(pattern) => Regex::new(&format!("^(?:{pattern})$")).ok().map(Targets::Pattern),
        Value::Array(names) => {
            let names: Option<Vec<_>> = names.iter().map(|name| name.as_str().map(str::to_owned)).collect();
            names.filter(|names| !names.is_empty()).map(Targets::Names)
        }
        _ => None,
    }
}

/// Whether a setting is switched off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null | Value::Bool(false) => true,
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn names_match_whole_segments_and_patterns_whole_names() {
        let module = "model.layers.11.self_attn.q_proj";
        let contains = |value: Value| targets(&value).expect("targets").contain(module);
        assert!(contains(json!(["k_proj", "q_proj"])));
        assert!(contains(json!(["self_attn.q_proj"])));
        assert!(!contains(json!(["proj", "k_proj"])));
        assert!(contains(json!(r".*layers\.\d+\.self_attn\.(q|v)_proj")));
        assert!(contains(json!(r"(?!.*vision).*_proj")));
        assert!(!contains(json!("q_proj")));
        assert!(!contains(json!("model.layers.1")));
        assert!(contains(json!("all-linear")));
        assert!(targets(&json!([])).is_none() && targets(&json!("(")).is_none());
    }
}
