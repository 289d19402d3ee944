//! LoRA adapters as PEFT saves them: a folder with adapter_config.json and adapter_model.safetensors.

mod config;
mod factors;
mod save;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::tensor::{DType, TensorData};

pub use save::save_lora;

use self::config::AdapterConfig;
use self::factors::{Factors, read_f32};
use super::checkpoint::{Entry, map_file};
use super::names;
use crate::model::Gemma;
use crate::{Error, Result};

const CONFIG: &str = "adapter_config.json";
const WEIGHTS: &str = "adapter_model.safetensors";
/// What PEFT puts before the name of a module.
const ROOT: &str = "base_model.model.";
/// What it puts behind, for the matrix `[r, in]` and for `[out, r]`.
const A: &str = ".lora_A.weight";
const B: &str = ".lora_B.weight";

/// Which adapter to load, and how.
#[derive(Debug, Clone, Copy)]
pub struct LoraOptions<'a> {
    /// A folder that PEFT or [`save_lora`] wrote.
    pub dir: &'a Path,
    /// Keeps the adapter beside the weights, to be trained further or to compare. Otherwise it is merged: computed in f32 and
    /// rounded once to the checkpoint's format, which the fused path needs.
    pub keep: bool,
}

/// What became of an adapter.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraReport {
    pub rank: usize,
    /// What the product of B and A is multiplied by.
    pub scale: f64,
    /// Names of the adapted projections, below the text model.
    pub applied: Vec<String>,
    /// Tensors of the file, with the reason.
    pub skipped: Vec<(String, &'static str)>,
    /// Whether it is still beside the weights.
    pub kept: bool,
}

impl std::fmt::Display for LoraReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let (rank, count) = (self.rank, self.applied.len());
        let how = if self.kept { "kept beside" } else { "merged into" };
        write!(f, "rank {rank}, scale {}, {how} {count} matrices", self.scale)?;
        match self.skipped.as_slice() {
            [] => Ok(()),
            [(name, reason), rest @ ..] => write!(f, "; {} tensors skipped ({name}: {reason})", rest.len() + 1),
        }
    }
}

/// An adapter that fits a model.
#[derive(Debug)]
pub(super) struct Lora {
    config: AdapterConfig,
    /// By the name of the projection below the text model.
    factors: BTreeMap<String, Factors>,
    skipped: Vec<(String, &'static str)>,
}

impl Lora {
    /// Reads an adapter for a model, whose weights need not be there yet.
    pub(super) fn from_dir(dir: &Path, model: &Gemma) -> Result<Self> {
        let config = AdapterConfig::from_file(&dir.join(CONFIG))?;
        let file = dir.join(WEIGHTS);
        if !file.is_file() {
            let reason = format!("there is no {WEIGHTS}; give a folder that PEFT saved an adapter to");
            return Err(Error::weights(dir, reason));
        }
        let shapes: BTreeMap<_, [usize; 2]> =
            model.projections().into_iter().map(|(name, p)| (name, p.weight.lazy_shape().dims())).collect();
        let mut reading = Reading { file, config, shapes, left: map_file(&dir.join(WEIGHTS))? };
        let mut factors = BTreeMap::new();
        let mut skipped = vec![];
        while let Some(key) = reading.left.keys().next().cloned() {
            let module = reading.module(&key)?;
            let canonical = names::canonical(&module).to_owned();
            // The dot makes a module's name match as that of its weight does.
            if let Some(reason) = names::skip_reason(&format!("{canonical}."), model.config()) {
                reading.left.remove(&key);
                skipped.push((key, reason));
            } else {
                let pair = reading.pair(&module, &canonical, &key)?;
                factors.insert(canonical, pair);
            }
        }
        if factors.is_empty() {
            return Err(Error::weights(&reading.file, "no tensor of it fits the text model: nothing would be adapted"));
        }
        Ok(Self { config: reading.config, factors, skipped })
    }

    pub(super) fn report(&self, kept: bool) -> LoraReport {
        let (rank, scale) = (self.config.rank, self.config.scale);
        LoraReport { rank, scale, applied: self.factors.keys().cloned().collect(), skipped: self.skipped.clone(), kept }
    }

    /// Whether the tensor of this name is changed.
    pub(super) fn adapts(&self, name: &str) -> bool {
        self.factors(name).is_some()
    }

    /// The values of an adapted matrix, in `held`; `None` where the adapter leaves it alone.
    pub(super) fn merged(&self, name: &str, entry: &Entry, dtype: DType, held: DType) -> Option<TensorData> {
        Some(self.factors(name)?.merged(entry.bytes(), dtype, held, self.config.scale as f32))
    }

    fn factors(&self, name: &str) -> Option<&Factors> {
        self.factors.get(name.strip_suffix(".weight")?)
    }

    /// The model with the adapter beside its weights.
    pub(super) fn attach(&self, model: Gemma) -> Gemma {
        model.with_adapters(|path, _, device| {
            let path: Vec<String> = path.split('.').map(str::to_owned).collect();
            Some(self.factors(&names::of_path(&path))?.adapter(device, self.config.scale))
        })
    }
}

/// A file of adapters on its way into pairs.
struct Reading {
    file: PathBuf,
    config: AdapterConfig,
    /// `[out, in]` of every projection of the model.
    shapes: BTreeMap<String, [usize; 2]>,
    /// Tensors that have not been taken yet.
    left: BTreeMap<String, Entry>,
}

impl Reading {
    /// The module that a tensor belongs to, as PEFT names it within the base model.
    fn module(&self, key: &str) -> Result<String> {
        let module = key.strip_prefix(ROOT).and_then(|name| name.strip_suffix(A).or_else(|| name.strip_suffix(B)));
        let module = module.ok_or_else(|| {
            let reason =
                format!("unknown tensor {key}, expected {ROOT}MODULE{A} or {B}; other adapters do not load here");
            Error::weights(&self.file, reason)
        })?;
        if !self.config.targets.contain(module) {
            let reason = format!("{key} adapts a module that target_modules of {CONFIG} does not name");
            return Err(Error::weights(&self.file, reason));
        }
        Ok(module.to_owned())
    }

    /// Both factors of a module.
    fn pair(&mut self, module: &str, canonical: &str, key: &str) -> Result<Factors> {
        let Some(&[outputs, inputs]) = self.shapes.get(canonical) else {
            let reason = format!("{key} fits no projection of this model, which has no {canonical}");
            return Err(Error::weights(&self.file, reason));
        };
        let rank = self.config.rank;
        let a = self.take(&format!("{ROOT}{module}{A}"), [rank, inputs])?;
        let b = self.take(&format!("{ROOT}{module}{B}"), [outputs, rank])?;
        Ok(Factors { a, b, rank, outputs, inputs })
    }

    fn take(&mut self, key: &str, shape: [usize; 2]) -> Result<Vec<f32>> {
        let Some(entry) = self.left.remove(key) else {
            return Err(Error::weights(&self.file, format!("missing tensor {key}; the adapter is incomplete")));
        };
        if entry.shape != shape {
            let reason =
                format!("{key} has shape {:?}, expected {shape:?} by the model and `r` of {CONFIG}", entry.shape);
            return Err(Error::weights(&self.file, reason));
        }
        read_f32(&entry)
            .ok_or_else(|| Error::weights(&self.file, format!("{key} is {:?}, expected F32, BF16 or F16", entry.dtype)))
    }
}
