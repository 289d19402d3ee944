//! Which tensor of a file belongs where: the names of a checkpoint as data.

use crate::config::{GemmaConfig, LayerSpec};

/// Where the text model begins in the kinds of file that exist: composite, text-only export, older composite. Longest
/// first.
const PREFIXES: [&str; 3] = ["model.language_model.", "language_model.model.", "model."];
const HEAD: &str = "lm_head.weight";
/// First segments of tensors that serve pictures and sounds.
const OTHER_MODALITIES: [&str; 5] =
    ["vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.", "multi_modal_projector."];
/// Fields of our modules that group others and have no segment of their own in a file.
const GROUPS: [&str; 1] = ["per_layer"];

/// The per-layer embedding table, which may stay on the host.
pub(super) const PER_LAYER_TABLE: &str = "embed_tokens_per_layer.weight";

/// The name of a file's tensor below the text model, which is also the path of the parameter that takes it.
pub(super) fn canonical(name: &str) -> &str {
    if name.ends_with(HEAD) && ["", "language_model."].iter().any(|p| name.strip_prefix(p) == Some(HEAD)) {
        return HEAD;
    }
    PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix)).unwrap_or(name)
}

/// How transformers begins the names of the text model's modules for a checkpoint with tensors of these names.
pub(super) fn prefix<'a>(mut names: impl Iterator<Item = &'a str>) -> &'static str {
    let [composite, older, text_only] = PREFIXES;
    if names.any(|name| name.starts_with(composite) || name.starts_with(older)) { composite } else { text_only }
}

/// The checkpoint's name for the parameter at a module path.
pub(super) fn of_path(path: &[String]) -> String {
    let named = path.iter().map(String::as_str).filter(|segment| !GROUPS.contains(segment));
    named.collect::<Vec<_>>().join(".")
}

/// The name in a file of the parameter that has this name below the text model.
pub(super) fn in_file(canonical: &str) -> String {
    if canonical == HEAD { HEAD.to_owned() } else { format!("{}{canonical}", PREFIXES[0]) }
}

/// Why a tensor is left alone, or `None` where it must be applied.
pub(super) fn skip_reason(canonical: &str, config: &GemmaConfig) -> Option<&'static str> {
    if OTHER_MODALITIES.iter().any(|prefix| canonical.starts_with(prefix)) {
        return Some("not part of the text model");
    }
    if canonical == HEAD && config.tie_word_embeddings {
        return Some("the head is tied to embed_tokens");
    }
    let (layer, rest) = canonical.strip_prefix("layers.")?.split_once('.')?;
    let spec: &LayerSpec = config.layers.get(layer.parse::<usize>().ok()?)?;
    let own = ["self_attn.k_proj.", "self_attn.v_proj.", "self_attn.k_norm."];
    if spec.kv.is_shared() && own.iter().any(|name| rest.starts_with(name)) {
        return Some("the layer reads another layer's keys and values");
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_of_every_kind_of_file_lead_to_one_name() {
        for prefix in PREFIXES {
            assert_eq!(canonical(&format!("{prefix}layers.0.layer_scalar")), "layers.0.layer_scalar");
        }
        assert_eq!(canonical("lm_head.weight"), HEAD);
        assert_eq!(canonical("language_model.lm_head.weight"), HEAD);
        assert_eq!(canonical("model.vision_tower.patch.weight"), "vision_tower.patch.weight");
    }

    #[test]
    fn groups_have_no_segment_in_a_file() {
        let path = ["layers", "3", "per_layer", "per_layer_projection", "weight"].map(str::to_owned);
        assert_eq!(of_path(&path), "layers.3.per_layer_projection.weight");
    }
}
