//! Arguments that several commands share.

use std::path::PathBuf;

use anyhow::{Context, bail};
use gemma_burn::{Device, Dtype, best_device, default_dtype, device};
use indicatif::{ProgressBar, ProgressStyle};

/// Which model, where, and how it computes.
#[derive(clap::Args)]
pub struct ModelArgs {
    /// Checkpoint folder: config.json, tokenizer.json and safetensors
    #[arg(long, short, value_name = "DIR")]
    pub model: Option<PathBuf>,
    #[command(flatten)]
    pub device: DeviceArgs,
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

impl ModelArgs {
    /// The model's folder, or how to get one.
    pub fn dir(&self) -> anyhow::Result<&PathBuf> {
        self.model.as_ref().context(
            "no model given: download google/gemma-4-E2B-it from Hugging Face and pass --model FOLDER, or try the tiny \
             random model of this repository: --model tests/fixtures/tiny-e2b",
        )
    }
}

impl DeviceArgs {
    /// Opens the device; says which one it is where none was named.
    pub fn open(&self) -> anyhow::Result<Device> {
        match &self.device {
            Some(name) => Ok(device(name)?),
            None => {
                let (name, device) = best_device()?;
                eprintln!("device: {name}");
                Ok(device)
            }
        }
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
