//! Both file formats, the family, and what is impossible.

use std::path::Path;

use gemma_burn::Error;
use gemma_burn::config::{GemmaConfig, KvSource};
use serde_json::{Value, json};

fn text(extra: Value) -> Value {
    let mut config = json!({
        "model_type": "gemma4_text", "hidden_size": 1536, "intermediate_size": 6144, "num_hidden_layers": 35,
        "num_attention_heads": 8, "num_key_value_heads": 1, "head_dim": 256, "global_head_dim": 512,
        "layer_types": e2b_layers(), "sliding_window": 512, "num_kv_shared_layers": 20, "use_double_wide_mlp": true,
        "hidden_size_per_layer_input": 256, "vocab_size": 262144, "final_logit_softcapping": 30.0, "eos_token_id": 1
    });
    for (key, value) in extra.as_object().expect("an object") {
        config[key] = value.clone();
    }
    config
}

fn e2b_layers() -> Vec<&'static str> {
    (0..35).map(|i| if i % 5 == 4 { "full_attention" } else { "sliding_attention" }).collect()
}

fn parse(config: &Value) -> gemma_burn::Result<GemmaConfig> {
    GemmaConfig::from_json(&config.to_string(), Path::new("config.json"))
}

fn parsed(config: &Value) -> GemmaConfig {
    parse(config).expect("the config is good")
}

#[test]
fn e2b_resolves_to_its_layers() {
    let config = parsed(&text(json!({})));
    assert_eq!(config.first_shared(), 15);
    let (sliding, full) = (&config.layers[0], &config.layers[4]);
    assert_eq!((sliding.head_dim, sliding.window, sliding.rope.turning, sliding.ffn), (256, Some(512), 128, 6144));
    assert_eq!((full.head_dim, full.window, full.rope.turning, full.ffn), (512, None, 64, 6144));
    let donors: Vec<usize> = config.layers[15..].iter().map(|layer| layer.kv.slot()).collect();
    assert!(donors.iter().enumerate().all(|(i, &slot)| slot == if (15 + i) % 5 == 4 { 14 } else { 13 }));
    assert!(config.layers[15..].iter().all(|layer| layer.kv.is_shared() && layer.ffn == 12288));
    assert_eq!(config.layers[14].kv, KvSource::Own(14));
}

#[test]
fn resaved_format_resolves_as_the_original() {
    let original = parsed(&text(json!({})));
    let overrides: serde_json::Map<String, Value> =
        (0..35).filter(|i| i % 5 == 4).map(|i| (format!("{i:02}"), json!({ "head_dim": 512 }))).collect();
    let mut resaved = text(json!({ "per_layer_config": overrides }));
    resaved.as_object_mut().expect("an object").remove("global_head_dim");
    assert_eq!(parsed(&resaved), original);
}

#[test]
fn per_layer_config_wins_over_global_head_dim() {
    let config = parsed(&text(json!({ "per_layer_config": { "4": { "head_dim": 128, "num_key_value_heads": 2 } } })));
    assert_eq!((config.layers[4].head_dim, config.layers[4].kv_heads), (128, 2));
    assert_eq!((config.layers[9].head_dim, config.layers[9].kv_heads), (512, 1));
}

#[test]
fn composite_and_flat_files_resolve_alike() {
    let flat = parsed(&text(json!({})));
    let composite = parsed(&json!({ "model_type": "gemma4", "text_config": text(json!({})), "vision_config": null,
        "image_token_id": 258880, "audio_token_id": 258881 }));
    assert_eq!(composite.layers, flat.layers);
    assert_eq!((composite.placeholder_ids.as_slice(), flat.placeholder_ids.len()), ([258_880, 258_881].as_slice(), 0));
}

#[test]
fn large_models_take_values_from_keys_on_full_layers() {
    let config =
        parsed(&text(json!({ "attention_k_eq_v": true, "num_key_value_heads": 4, "num_global_key_value_heads": 2,
        "num_kv_shared_layers": 0, "hidden_size_per_layer_input": 0 })));
    assert!(config.per_layer.is_none());
    assert!(config.layers.iter().all(|layer| layer.k_eq_v == layer.window.is_none() && !layer.kv.is_shared()));
    assert_eq!((config.layers[0].kv_heads, config.layers[4].kv_heads), (4, 2));
    assert_eq!(config.layers[34].ffn, 6144);
}

#[test]
fn end_ids_may_be_a_number_or_a_list() {
    assert_eq!(parsed(&text(json!({}))).eos_token_ids, [1]);
    assert_eq!(parsed(&text(json!({ "eos_token_id": [1, 106] }))).eos_token_ids, [1, 106]);
    assert!(parsed(&text(json!({ "eos_token_id": null }))).eos_token_ids.is_empty());
}

#[test]
fn last_layer_is_always_full_attention() {
    let config = parsed(&text(json!({ "layer_types": vec!["sliding_attention"; 35], "num_kv_shared_layers": 0 })));
    assert_eq!(config.layers[34].window, None);
    assert!(config.layers[..34].iter().all(|layer| layer.window == Some(512)));
}

#[test]
fn impossible_values_name_file_key_got_and_expected() {
    let cases = [
        (json!({ "model_type": "llama" }), "model_type", "llama", "gemma4_text"),
        (json!({ "enable_moe_block": true }), "enable_moe_block", "true", "mixture-of-experts"),
        (json!({ "hidden_size": 0 }), "hidden_size", "0", "positive"),
        (json!({ "hidden_size": "wide" }), "hidden_size", "\"wide\"", "usize"),
        (json!({ "num_attention_heads": -8 }), "num_attention_heads", "-8", "usize"),
        (json!({ "num_key_value_heads": 3 }), "num_key_value_heads", "3", "divisor"),
        (json!({ "head_dim": 255 }), "head_dim", "255", "even"),
        (json!({ "layer_types": ["full_attention"] }), "layer_types", "list of 1", "35"),
        (
            json!({ "layer_types": vec!["cross_attention"; 35] }),
            "layer_types[0]",
            "cross_attention",
            "sliding_attention",
        ),
        (json!({ "num_kv_shared_layers": 35 }), "num_kv_shared_layers", "35", "fewer"),
        (json!({ "num_kv_shared_layers": 33 }), "layer_types", "without one", "full_attention"),
        (json!({ "rms_norm_eps": -1.0 }), "rms_norm_eps", "-1", "positive"),
        (json!({ "final_logit_softcapping": 0.0 }), "final_logit_softcapping", "0", "positive"),
        (json!({ "sliding_window": 0 }), "sliding_window", "0", "positive"),
        (json!({ "hidden_activation": "silu" }), "hidden_activation", "silu", "gelu_pytorch_tanh"),
        (json!({ "use_bidirectional_attention": "all" }), "use_bidirectional_attention", "all", "vision"),
        (json!({ "per_layer_config": { "99": {} } }), "per_layer_config", "99", "below 35"),
        (json!({ "attention_bias": true }), "attention_bias", "true", "false"),
    ];
    for (change, key, got, expected) in cases {
        let message = parse(&text(change.clone())).expect_err(&format!("{change} is impossible")).to_string();
        for part in ["config.json", key, got, expected] {
            assert!(message.contains(part), "`{message}` does not say {part}");
        }
        assert_eq!(message.lines().count(), 1, "`{message}` is not one line");
    }
}

#[test]
fn absent_keys_are_named() {
    let mut config = text(json!({}));
    config.as_object_mut().expect("an object").remove("hidden_size");
    let error = parse(&json!({ "text_config": config })).expect_err("a model has a hidden size");
    assert!(
        matches!(&error, Error::Config { key, got, .. } if key == "text_config.hidden_size" && got == "absent"),
        "{error}"
    );
    assert!(parse(&json!([])).is_err());
    assert!(GemmaConfig::from_json("{", Path::new("config.json")).is_err());
}
