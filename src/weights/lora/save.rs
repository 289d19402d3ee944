//! Adapters to a folder, as PEFT reads them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use burn::module::{LoraAdapter, Param};
use burn::tensor::{DType, Tensor};
use serde_json::json;

use super::{A, B, CONFIG, ROOT, WEIGHTS};
use crate::model::Gemma;
use crate::weights::{checkpoint::Checkpoint, names, write_tensors};
use crate::{Error, Result};

/// Writes a model's adapters to a folder, in f32, for PEFT and for [`LoraOptions`](super::LoraOptions). `base` is the folder
/// of the checkpoint that the model was loaded from: modules are named as transformers names those of that checkpoint.
///
/// # Errors
/// A model without adapters or with adapters of different ranks, a folder that cannot be written.
pub fn save_lora(model: &Gemma, base: &Path, dir: &Path) -> Result<()> {
    let adapters: Vec<(String, &LoraAdapter)> =
        model.projections().into_iter().filter_map(|(name, p)| Some((name, p.weight.adapter()?))).collect();
    let kinds: BTreeSet<(usize, u64)> =
        adapters.iter().map(|(_, adapter)| (adapter.b.lazy_shape()[0], adapter.scale.to_bits())).collect();
    let (rank, scale) = match kinds.into_iter().collect::<Vec<_>>().as_slice() {
        &[(rank, scale)] => (rank, f64::from_bits(scale)),
        kinds => {
            let message = format!("the model has adapters of {} kinds, and a folder holds those of one", kinds.len());
            return Err(Error::Request(message));
        }
    };
    let prefix = names::prefix(Checkpoint::open(base)?.tensors.keys().map(String::as_str));
    let module = |name: &str| if name == "lm_head" { name.to_owned() } else { format!("{prefix}{name}") };

    let mut tensors = BTreeMap::new();
    for (name, adapter) in &adapters {
        let module = module(name);
        let data = |factor: &Param<Tensor<2>>| factor.val().cast(DType::F32).into_data();
        tensors.insert(format!("{ROOT}{module}{A}"), data(&adapter.b));
        tensors.insert(format!("{ROOT}{module}{B}"), data(&adapter.a));
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    write_tensors(&dir.join(WEIGHTS), tensors)?;

    let modules: Vec<String> = adapters.iter().map(|(name, _)| module(name)).collect();
    let config = json!({
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": base,
        "inference_mode": true,
        "r": rank,
        "lora_alpha": scale * rank as f64,
        "lora_dropout": 0.0,
        "bias": "none",
        "fan_in_fan_out": false,
        "use_rslora": false,
        "init_lora_weights": true,
        "target_modules": pattern(&modules),
    });
    let file = dir.join(CONFIG);
    let text = serde_json::to_string_pretty(&config).expect("a value is JSON") + "\n";
    std::fs::write(&file, text).map_err(|e| Error::io(&file, e))
}

/// A regular expression for exactly these kinds of module: last segments alone would also name those of a vision tower.
fn pattern(modules: &[String]) -> String {
    let is_index = |segment: &str| segment.bytes().all(|byte| byte.is_ascii_digit());
    let kinds: BTreeSet<String> = modules
        .iter()
        .map(|module| module.split('.').map(|s| if is_index(s) { r"\d+" } else { s }).collect::<Vec<_>>().join(r"\."))
        .collect();
    kinds.into_iter().collect::<Vec<_>>().join("|")
}
