//! Checkpoint folder to model: mapped safetensors, every tensor applied or accounted for.

mod checkpoint;
mod lora;
mod mapped;
mod names;
mod report;
mod save;
mod synthetic;

use std::path::Path;
use std::sync::Arc;

use burn::module::{Module, ModuleMapper, Param, ParamId};
use burn::tensor::{DType, Device, Tensor};

pub use lora::{LoraOptions, LoraReport, save_lora};
pub use report::{Applied, LoadReport, Place};
pub use save::save;
pub(crate) use save::{read_tensors, write_tensors};
pub use synthetic::synthetic;

use crate::config::GemmaConfig;
use crate::device::{Dtype, default_dtype, has_room, is_host_memory, storage_dtype};
use crate::model::{Gemma, PerLayerTable};
use crate::{Error, Result};
use checkpoint::{Checkpoint, Entry};
use lora::Lora;
use mapped::MappedRows;

/// Mapped pages are read ahead in pieces of this size, between two reports of progress.
const POPULATE_STEP: usize = 64 << 20;

/// Where the per-layer embedding table goes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum PerLayerPlacement {
    /// On the device where everything fits with room to spare, else on the host.
    #[default]
    Auto,
    /// Memory-mapped on the host; one row per token travels to the device.
    Host,
    /// On the device, like every other weight.
    Device,
}

/// The format that matrices are held in on the device. Norm weights are always f32.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Storage {
    /// As in the file where the device's own tensor operations can read that, else widened to f32.
    #[default]
    Computable,
    /// As in the file, for kernels that unpack bf16 themselves.
    AsFile,
}

/// How to load.
#[derive(Default)]
pub struct LoadOptions<'a> {
    /// The format to compute in; the device's default where absent.
    pub dtype: Option<Dtype>,
    pub per_layer: PerLayerPlacement,
    pub storage: Storage,
    /// An adapter over the weights.
    pub lora: Option<LoraOptions<'a>>,
    /// Called with bytes done and bytes in all.
    pub progress: Option<&'a dyn Fn(u64, u64)>,
}

/// Loads a checkpoint folder onto a device.
///
/// # Errors
/// A damaged file, a tensor of the wrong shape or format, a tensor that is missing or that the model has no place for; the
/// same of an adapter.
pub fn load(dir: impl AsRef<Path>, device: &Device, options: &LoadOptions) -> Result<(Gemma, LoadReport)> {
    let config = GemmaConfig::from_dir(&dir)?;
    load_with(&config, dir.as_ref(), device, options)
}

/// As [`load`], with the configuration already read.
pub fn load_with(
    config: &GemmaConfig,
    dir: &Path,
    device: &Device,
    options: &LoadOptions,
) -> Result<(Gemma, LoadReport)> {
    let (model, report, lora) = walk(config, dir, device, options, false)?;
    let dtype = options.dtype.unwrap_or_else(|| default_dtype(device));
    let model = match lora {
        Some(lora) if report.lora.as_ref().is_some_and(|report| report.kept) => lora.attach(model),
        _ => model,
    };
    Ok((model.with_dtype(dtype.float()), report))
}

/// Says where every tensor of a checkpoint would go, without moving any.
///
/// # Errors
/// As [`load`].
pub fn account(config: &GemmaConfig, dir: &Path, device: &Device, options: &LoadOptions) -> Result<LoadReport> {
    let (_, report, _) = walk(config, dir, device, options, true)?;
    Ok(report)
}

/// Takes every parameter of a new model to its tensor in a checkpoint folder; `dry`, only accounts for it.
fn walk(
    config: &GemmaConfig,
    dir: &Path,
    device: &Device,
    options: &LoadOptions,
    dry: bool,
) -> Result<(Gemma, LoadReport, Option<Lora>)> {
    let mut model = config.init(device);
    let lora = options.lora.map(|lora| Lora::from_dir(lora.dir, &model)).transpose()?;
    let keep = options.lora.is_some_and(|lora| lora.keep);
    let mut loader = Loader::new(config, Checkpoint::open(dir)?, device, options)?;
    loader.dry = dry;
    loader.merge = lora.as_ref().filter(|_| !keep);
    loader.place_per_layer_table(&mut model)?;
    model = model.map(&mut loader);
    let (mut report, file) = loader.finish()?;
    report.ensure_complete(&file)?;
    report.lora = lora.as_ref().map(|lora| lora.report(keep));
    Ok((model, report, lora))
}

struct Loader<'a> {
    device: &'a Device,
    options: &'a LoadOptions<'a>,
    host_memory: bool,
    /// By canonical name: the name in the file and the tensor. Applied ones are taken out.
    left: std::collections::BTreeMap<String, (String, Entry)>,
    file: std::path::PathBuf,
    path: Vec<String>,
    report: LoadReport,
    failure: Option<Error>,
    /// What changes weights on their way.
    merge: Option<&'a Lora>,
    /// Only the account is wanted.
    dry: bool,
    done: u64,
    total: u64,
}

impl<'a> Loader<'a> {
    fn new(config: &GemmaConfig, checkpoint: Checkpoint, device: &'a Device, options: &'a LoadOptions) -> Result<Self> {
        let mut report = LoadReport::default();
        let mut left = std::collections::BTreeMap::new();
        for (name, entry) in checkpoint.tensors {
            let canonical = names::canonical(&name).to_owned();
            if let Some(reason) = names::skip_reason(&canonical, config) {
                report.skipped.push((name, reason));
            } else if let Some((first, _)) = left.insert(canonical.clone(), (name.clone(), entry)) {
                let reason = format!("{first} and {name} are both {canonical}; keep one of them");
                return Err(Error::weights(&checkpoint.file, reason));
            }
        }
        let total = left.values().map(|(_, entry)| entry.range.len() as u64).sum();
        Ok(Self {
            device,
            options,
            host_memory: is_host_memory(device),
            left,
            file: checkpoint.file,
            path: vec![],
            report,
            failure: None,
            merge: None,
            dry: false,
            done: 0,
            total,
        })
    }

    /// Puts the table on the host before the parameters are walked, where it is to stay there. Where tensors are mapped
    /// files anyway, the table is a parameter like any other.
    fn place_per_layer_table(&mut self, model: &mut Gemma) -> Result<()> {
        let Some(inputs) = &mut model.per_layer else { return Ok(()) };
        let table = self.left.get(names::PER_LAYER_TABLE).map_or(0, |(_, entry)| entry.range.len());
        let on_device = match self.options.per_layer {
            _ if self.host_memory => true,
            PerLayerPlacement::Device => true,
            PerLayerPlacement::Host => false,
            PerLayerPlacement::Auto => has_room(self.device, table, self.total as usize),
        };
        if on_device {
            return Ok(());
        }
        let weight = inputs.embed_tokens_per_layer.weight.as_ref().expect("a new table is a parameter");
        let shape: [usize; 2] = weight.lazy_shape().dims();
        let Some(entry) = self.take(names::PER_LAYER_TABLE, &shape)? else { return Ok(()) };
        let dtype = mapped::float_dtype(names::PER_LAYER_TABLE, &entry)?;
        self.note(names::PER_LAYER_TABLE, &entry, entry.range.len(), Place::Host);
        inputs.embed_tokens_per_layer = PerLayerTable::on_host(Arc::new(MappedRows::new(&entry, dtype)));
        Ok(())
    }

    /// The tensor for a parameter, checked against its shape; `None` is noted as missing.
    fn take(&mut self, name: &str, shape: &[usize]) -> Result<Option<Entry>> {
        let Some((file_name, entry)) = self.left.remove(name) else {
            self.report.missing.push(name.to_owned());
            return Ok(None);
        };
        if entry.shape != shape {
            let reason = format!("{file_name} has shape {:?}, expected {shape:?} by config.json", entry.shape);
            return Err(Error::weights(&entry.shard.path, reason));
        }
        Ok(Some(entry))
    }

    fn read<const D: usize>(&mut self, name: &str, shape: [usize; D]) -> Result<Option<Tensor<D>>> {
        let Some(entry) = self.take(name, &shape)? else { return Ok(None) };
        let dtype = mapped::float_dtype(name, &entry)?;
        let widen = match self.options.storage {
            _ if D == 1 => true,
            Storage::AsFile => false,
            Storage::Computable => storage_dtype(self.device) == DType::F32,
        };
        let (place, held) = match widen && dtype != DType::F32 {
            true => (Place::DeviceWidened, DType::F32),
            false if self.host_memory && !self.merge.is_some_and(|lora| lora.adapts(name)) => (Place::Mapped, dtype),
            false => (Place::Device, dtype),
        };
        self.note(name, &entry, shape.iter().product::<usize>() * held.size(), place);
        if self.dry {
            return Ok(None);
        }
        let merged = self.merge.and_then(|lora| lora.merged(name, &entry, dtype, held));
        let data = match (merged, place) {
            (Some(merged), _) => merged,
            (None, Place::DeviceWidened) => mapped::widened(&entry, dtype),
            (None, _) => mapped::shared(&entry, dtype),
        };
        if place == Place::Mapped && name != names::PER_LAYER_TABLE {
            self.populate(&entry);
        }
        self.done += entry.range.len() as u64;
        self.tell(self.done);
        // By way of one dimension, because some devices pad the rows of a matrix and the kernels read it without gaps.
        let flat = Tensor::<1>::from_data(data, (self.device, held));
        Ok(Some(flat.reshape(shape)))
    }

    /// Reads a mapped tensor's pages, so that the first token does not wait for the disk.
    fn populate(&self, entry: &Entry) {
        #[cfg(target_os = "linux")]
        for start in entry.range.clone().step_by(POPULATE_STEP) {
            let len = POPULATE_STEP.min(entry.range.end - start);
            // Kernels before 5.14 refuse; then the first token reads the pages instead.
            let _ = entry.shard.map.advise_range(memmap2::Advice::PopulateRead, start, len);
            self.tell(self.done + (start + len - entry.range.start) as u64);
        }
    }

    fn note(&mut self, name: &str, entry: &Entry, bytes: usize, place: Place) {
        self.report.applied.push(Applied { name: name.to_owned(), shape: entry.shape.clone(), bytes, place });
    }

    fn tell(&self, done: u64) {
        if let Some(progress) = self.options.progress {
            progress(done, self.total);
        }
    }

    fn finish(mut self) -> Result<(LoadReport, std::path::PathBuf)> {
        if let Some(error) = self.failure {
            return Err(error);
        }
        self.report.unknown = self.left.into_values().map(|(name, _)| name).collect();
        Ok((self.report, self.file))
    }
}

impl ModuleMapper for Loader<'_> {
    fn enter_module(&mut self, name: &str, _: &str) {
        self.path.push(name.to_owned());
    }

    fn exit_module(&mut self, _: &str, _: &str) {
        self.path.pop();
    }

    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        if self.failure.is_some() {
            return param;
        }
        let shape: [usize; D] = param.lazy_shape().dims();
        match self.read(&names::of_path(&self.path), shape) {
            Ok(Some(tensor)) => Param::initialized(ParamId::new(), tensor),
            Ok(None) => param,
            Err(error) => {
                self.failure = Some(error);
                param
            }
        }
    }
}
