//! Model to checkpoint folder, and plain tensors to a file.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use burn::module::{Module, ModuleVisitor, Param};
use burn::tensor::{DType, Tensor, TensorData};
use safetensors::{Dtype as FileDtype, tensor::TensorView};

use super::checkpoint::{Entry, SINGLE, map_file};
use super::{mapped, names};
use crate::device::Dtype;
use crate::model::Gemma;
use crate::{Error, Result};

/// What a checkpoint folder holds besides weights.
const COMPANIONS: [&str; 5] =
    ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"];

/// Writes a model as a checkpoint folder with the names of Google's own files: `model.safetensors` in `dtype`, and beside
/// it the files of `source` that are not weights. What is there already is replaced.
///
/// # Errors
/// A per-layer table that stays on the host, adapters beside the weights, and what the file system refuses.
pub fn save(model: &Gemma, source: &Path, dir: &Path, dtype: Dtype) -> Result<()> {
    let table = model.per_layer.as_ref().map(|inputs| &inputs.embed_tokens_per_layer);
    if table.is_some_and(|table| table.weight.is_none()) {
        return Err(Error::weights(
            dir,
            "the model's per-layer table is on the host; load it onto the device to save it",
        ));
    }
    if model.has_adapters() {
        return Err(Error::weights(
            dir,
            "adapters are kept beside the weights; merge them, or save them with save_lora",
        ));
    }
    std::fs::create_dir_all(dir).map_err(|e| Error::io(dir, e))?;
    for name in COMPANIONS {
        let (from, to) = (source.join(name), dir.join(name));
        if from.exists() && from != to {
            std::fs::copy(&from, &to).map_err(|e| Error::io(&from, e))?;
        }
    }
    let mut collected = Collected { dtype: dtype.float().into(), path: vec![], tensors: BTreeMap::new() };
    model.visit(&mut collected);
    write_tensors(&dir.join(SINGLE), collected.tensors)
}

/// Writes tensors in f32 and bf16 to a safetensors file.
pub(crate) fn write_tensors(file: &Path, tensors: BTreeMap<String, TensorData>) -> Result<()> {
    let views = tensors.iter().map(|(name, data)| {
        let dtype = if data.dtype() == DType::BF16 { FileDtype::BF16 } else { FileDtype::F32 };
        let view = TensorView::new(dtype, data.shape().to_vec(), data.as_bytes());
        (name, view.expect("a tensor has as many bytes as its shape says"))
    });
    // Readers of other frameworks ask for this entry.
    let metadata = HashMap::from([("format".to_owned(), "pt".to_owned())]);
    safetensors::serialize_to_file(views, Some(metadata), file).map_err(|e| Error::weights(file, e.to_string()))
}

/// Reads all tensors of a safetensors file, widened to f32.
pub(crate) fn read_tensors(file: &Path) -> Result<BTreeMap<String, TensorData>> {
    let entries = map_file(file)?;
    let read = |(name, entry): (String, Entry)| {
        let dtype = mapped::float_dtype(&name, &entry)?;
        let values: Vec<f32> = mapped::widened(&entry, dtype).try_to_vec().expect("the values are f32");
        Ok((name, TensorData::new(values, entry.shape)))
    };
    entries.into_iter().map(read).collect()
}

struct Collected {
    dtype: DType,
    path: Vec<String>,
    tensors: BTreeMap<String, TensorData>,
}

impl ModuleVisitor for Collected {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
        let data = param.val().into_data().convert_dtype(self.dtype);
        self.tensors.insert(names::in_file(&names::of_path(&self.path)), data);
    }
}
