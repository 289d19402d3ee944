//! A run on disk: weights in f32, the optimizer's moments, the step.

use std::collections::BTreeMap;
use std::path::Path;

use burn::tensor::{Device, TensorData};
use serde::{Deserialize, Serialize};

use super::optimizer::ClippedAdamW;
use super::trainer::{Trainer, TrainingOptions};
use crate::device::Dtype;
use crate::weights::{LoadOptions, PerLayerPlacement, load, read_tensors, save, write_tensors};
use crate::{Error, Result};

const STATE: &str = "training.json";
const OPTIMIZER: &str = "optimizer.safetensors";

#[derive(Serialize, Deserialize)]
struct State {
    step: usize,
    options: TrainingOptions,
}

impl Trainer {
    /// Writes all that [`resume`](Self::resume) needs into a folder, which appears complete or not at all. `source` is the
    /// folder with the model's config.json and tokenizer.
    ///
    /// # Errors
    /// What the file system refuses.
    pub fn save(&self, source: &Path, dir: &Path) -> Result<()> {
        let fresh = dir.with_extension("new");
        if fresh.exists() {
            std::fs::remove_dir_all(&fresh).map_err(|e| Error::io(&fresh, e))?;
        }
        save(&self.model, source, &fresh, Dtype::F32)?;
        write_tensors(&fresh.join(OPTIMIZER), self.optimizer.state())?;
        let state = State { step: self.step, options: self.options.clone() };
        let (file, json) = (fresh.join(STATE), serde_json::to_string_pretty(&state).expect("plain data"));
        std::fs::write(&file, json).map_err(|e| Error::io(&file, e))?;
        if dir.exists() {
            std::fs::remove_dir_all(dir).map_err(|e| Error::io(dir, e))?;
        }
        std::fs::rename(&fresh, dir).map_err(|e| Error::io(dir, e))
    }

    /// Takes up a run that [`save`](Self::save) wrote.
    ///
    /// # Errors
    /// A folder that it did not write, or a damaged one.
    pub fn resume(dir: &Path, device: &Device) -> Result<Self> {
        let file = dir.join(STATE);
        let json = std::fs::read(&file).map_err(|e| Error::io(&file, e))?;
        let State { step, options } = serde_json::from_slice(&json)
            .map_err(|e| Error::weights(&file, format!("not the state of a training run: {e}")))?;
        let plain = LoadOptions { dtype: Some(Dtype::F32), per_layer: PerLayerPlacement::Device, ..Default::default() };
        let (model, _) = load(dir, device, &plain)?;
        let file = dir.join(OPTIMIZER);
        let moments: BTreeMap<String, TensorData> = read_tensors(&file)?;
        let optimizer = ClippedAdamW::new(options.weight_decay, options.clip)
            .with_state(moments, step, device)
            .ok_or_else(|| Error::weights(&file, "a moment is missing; take an earlier checkpoint"))?;
        Ok(Self { options, model, optimizer, step, device: device.clone() })
    }
}
