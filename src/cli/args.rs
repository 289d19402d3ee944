//! Arguments that several commands share.

use std::path::{Path, PathBuf};
#[cfg(feature = "demo")]
use std::sync::Once;

#[cfg(not(feature = "demo"))]
use anyhow::Context;
use anyhow::bail;
use gemma_burn::engine::ComputePath;
use gemma_burn::weights::{LoadReport, LoraOptions, PerLayerPlacement};
use gemma_burn::{Device, Dtype, default_dtype, device_or_best};
use indicatif::{ProgressBar, ProgressStyle};

/// Which model, where, and how it computes.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Checkpoint folder: config.json, tokenizer.json and safetensors [default: the demo inside this program]
    #[arg(long, short, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub lora: LoraArgs,
    #[command(flatten)]
    pub device: DeviceArgs,
}

/// An adapter over the model.
#[derive(clap::Args)]
pub struct LoraArgs {
    /// LoRA adapter folder as PEFT saves it: adapter_config.json and adapter_model.safetensors
    #[arg(long, value_name = "DIR")]
    pub lora: Option<PathBuf>,
    /// Keep the adapter beside the weights instead of merging it into them (plain path only)
    #[arg(long, requires = "lora")]
    pub lora_keep: bool,
}

impl LoraArgs {
    pub fn options(&self) -> Option<LoraOptions<'_>> {
        self.lora.as_ref().map(|dir| LoraOptions { dir, keep: self.lora_keep })
    }

    /// Says on stderr what became of the adapter.
    pub fn tell(report: &LoadReport) {
        if let Some(lora) = &report.lora {
            eprintln!("lora: {lora}");
        }
    }
}

/// Where to compute, and in which format.
#[derive(clap::Args)]
pub struct DeviceArgs {
    /// cpu, cuda:0, vulkan, … [default: the best one present]
    #[arg(long, value_name = "NAME")]
    pub device: Option<String>,
    /// f32 or bf16 [default: what suits the device]
    #[arg(long)]
    pub dtype: Option<Dtype>,
}

/// Which way tokens are computed, and where the parts of it lie.
#[derive(clap::Args)]
pub struct PathArgs {
    /// plain: the Burn modules; fused: the decode kernels [default: fused where CubeCL runs, else plain]
    #[arg(long, value_enum)]
    pub path: Option<PathName>,
    /// Format of the fused path's keys and values
    #[arg(long, default_value_t = Dtype::Bf16)]
    pub kv_dtype: Dtype,
    /// Where the per-layer embedding table goes
    #[arg(long, value_enum, default_value_t = PlePlace::Auto)]
    pub ple: PlePlace,
}

/// A path by name.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PathName {
    Plain,
    Fused,
}

/// A place for the per-layer embedding table.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum PlePlace {
    /// On the device if everything fits, else on the host
    Auto,
    /// Memory-mapped; one row per token travels to the device
    Host,
    Device,
}

impl PathArgs {
    /// The path on `device`.
    pub fn path(&self, device: &Device) -> anyhow::Result<ComputePath> {
        match self.path {
            Some(PathName::Plain) => Ok(ComputePath::Plain),
            #[cfg(feature = "cube")]
            Some(PathName::Fused) => Ok(ComputePath::Fused { kv: self.kv_dtype }),
            #[cfg(not(feature = "cube"))]
            Some(PathName::Fused) => {
                bail!("this build has no fused path; build with --features cuda, rocm, metal, vulkan or wgpu")
            }
            None => Ok(match ComputePath::best(device) {
                ComputePath::Plain => ComputePath::Plain,
                #[cfg(feature = "cube")]
                ComputePath::Fused { .. } => ComputePath::Fused { kv: self.kv_dtype },
            }),
        }
    }

    pub fn placement(&self) -> PerLayerPlacement {
        match self.ple {
            PlePlace::Auto => PerLayerPlacement::Auto,
            PlePlace::Host => PerLayerPlacement::Host,
            PlePlace::Device => PerLayerPlacement::Device,
        }
    }
}

impl ModelArgs {
    /// As [`model_dir`].
    pub fn dir(&self) -> anyhow::Result<PathBuf> {
        model_dir(self.model.as_deref())
    }
}

/// The model's folder: the one that was given, or the demo's, with a line on stderr that says so.
#[cfg(feature = "demo")]
pub fn model_dir(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    static SAID: Once = Once::new();
    match given {
        Some(dir) => Ok(dir.to_owned()),
        None => {
            SAID.call_once(|| {
                eprintln!(
                    "model: the small demo inside this program; for a real one download google/gemma-4-E2B-it from \
                     Hugging Face and pass --model FOLDER"
                );
            });
            Ok(gemma_burn::demo::dir()?)
        }
    }
}

/// The model's folder, or how to get one.
#[cfg(not(feature = "demo"))]
pub fn model_dir(given: Option<&Path>) -> anyhow::Result<PathBuf> {
    given.map(Path::to_owned).context(
        "no model given: download google/gemma-4-E2B-it from Hugging Face and pass --model FOLDER, or build with the \
         feature `demo`",
    )
}

impl DeviceArgs {
    /// Opens the device; says which one it is where none was named.
    pub fn open(&self) -> anyhow::Result<Device> {
        let (name, device) = device_or_best(self.device.as_deref())?;
        if self.device.is_none() {
            eprintln!("device: {name}");
        }
        Ok(device)
    }

    /// The format to compute in on `device`.
    pub fn dtype(&self, device: &Device) -> anyhow::Result<Dtype> {
        let dtype = self.dtype.unwrap_or_else(|| default_dtype(device));
        if dtype == Dtype::Bf16 && !device.supports_dtype(dtype.float()) {
            bail!("this device does not compute in bf16; use --dtype f32");
        }
        Ok(dtype)
    }
}

/// A bar on stderr for long loads; quick ones never show it.
pub struct LoadBar(ProgressBar);

impl LoadBar {
    pub fn new() -> Self {
        let style = ProgressStyle::with_template("loading {bar:40} {bytes}/{total_bytes} {binary_bytes_per_sec}");
        Self(ProgressBar::no_length().with_style(style.expect("the template is valid")))
    }

    /// Shows bytes done of bytes in all.
    pub fn show(&self, done: u64, total: u64) {
        self.0.set_length(total);
        self.0.set_position(done);
    }

    /// Removes the bar.
    pub fn clear(&self) {
        self.0.finish_and_clear();
    }
}
