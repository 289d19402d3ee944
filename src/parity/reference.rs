//! A reference dump: token ids and greedy continuations in reference.json, activations in reference.safetensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use memmap2::Mmap;
use safetensors::{Dtype, SafeTensors};
use serde::Deserialize;

use super::Array;
use crate::{Error, Result};

/// One prompt of a dump.
#[derive(Debug, Clone, Deserialize)]
pub struct Prompt {
    pub ids: Vec<u32>,
    /// What greedy decoding with a cache produced.
    pub greedy: Vec<u32>,
    /// Distance of the two best logits at each greedy step.
    pub greedy_margins: Vec<f32>,
}

#[derive(Deserialize)]
struct Document {
    prompts: BTreeMap<String, Prompt>,
}

/// A dump folder, read on demand.
pub struct Reference {
    pub prompts: BTreeMap<String, Prompt>,
    file: PathBuf,
    map: Mmap,
}

impl Reference {
    /// Opens `reference.json` and `reference.safetensors` of a folder.
    pub fn open(dir: &Path) -> Result<Self> {
        let json = dir.join("reference.json");
        let text = std::fs::read(&json).map_err(|e| Error::io(&json, e))?;
        let Document { prompts } = serde_json::from_slice(&text).map_err(|e| {
            Error::reference(&json, format!("not a reference dump ({e}); make one with `cargo xtask fixtures`"))
        })?;
        if let Some(name) = prompts.iter().find_map(|(name, p)| p.ids.is_empty().then_some(name)) {
            return Err(Error::reference(&json, format!("prompt {name} has no tokens")));
        }
        let file = dir.join("reference.safetensors");
        let opened = std::fs::File::open(&file).map_err(|e| Error::io(&file, e))?;
        // SAFETY: as for weights, the file must not change while it is mapped.
        let map = unsafe { Mmap::map(&opened) }.map_err(|e| Error::io(&file, e))?;
        SafeTensors::deserialize(&map).map_err(|e| Error::reference(&file, e.to_string()))?;
        Ok(Self { prompts, file, map })
    }

    /// Names of a prompt's tensors, without the prompt's own name; those of the batched run begin with `batch.`.
    pub fn tensors_of(&self, prompt: &str) -> Result<Vec<String>> {
        let file = SafeTensors::deserialize(&self.map).map_err(|e| Error::reference(&self.file, e.to_string()))?;
        let own = format!("{prompt}.");
        let batched = format!("batch.{prompt}.");
        let short = |name: &str| match name.strip_prefix(&batched) {
            Some(rest) => Some(format!("batch.{rest}")),
            None => name.strip_prefix(&own).map(str::to_owned),
        };
        let mut names: Vec<String> = file.names().into_iter().filter_map(short).collect();
        names.sort_by_key(|name| order(name));
        Ok(names)
    }

    /// A tensor of a prompt by the name that [`tensors_of`](Self::tensors_of) gives, as rows.
    pub fn tensor(&self, prompt: &str, name: &str) -> Result<Array> {
        let full = match name.strip_prefix("batch.") {
            Some(rest) => format!("batch.{prompt}.{rest}"),
            None => format!("{prompt}.{name}"),
        };
        let file = SafeTensors::deserialize(&self.map).map_err(|e| Error::reference(&self.file, e.to_string()))?;
        let view = file.tensor(&full).map_err(|e| Error::reference(&self.file, e.to_string()))?;
        if view.dtype() != Dtype::F32 {
            return Err(Error::reference(&self.file, format!("{full} is {:?}, expected F32", view.dtype())));
        }
        let values: Vec<f32> = view.data().as_chunks().0.iter().map(|quad| f32::from_le_bytes(*quad)).collect();
        let rows = view.shape().first().copied().unwrap_or(1).max(1);
        Ok(Array { width: values.len() / rows, values })
    }
}

/// Order of the forward pass, so that the first tensor that differs is the first that went wrong.
fn order(name: &str) -> (usize, usize, usize) {
    let name = name.strip_prefix("batch.").map_or((name, 0), |rest| (rest, 1));
    let (kind, layer) = name.0.split_once('.').unwrap_or((name.0, ""));
    let layer = layer.parse().unwrap_or(0);
    match kind {
        "embeds" => (0, 0, 0),
        "ple" => (0, 0, 1),
        "attn" => (1, layer, 0),
        "mlp" => (1, layer, 1),
        "hidden" => (1, layer, 2),
        "final" => (2, 0, 0),
        "logits" => (3, name.1, 0),
        _ => (4, 0, 0),
    }
}
