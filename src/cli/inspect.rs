//! `gemma inspect`: what a checkpoint is made of, where its bytes would go, what a token of context costs.

use std::process::ExitCode;

use gemma_burn::cache::bytes_per_token;
use gemma_burn::config::{GemmaConfig, KvSource, LayerSpec};
use gemma_burn::weights::{LoadOptions, LoadReport, Place, account};
use serde_json::{Value, json};

use super::args::{LoraArgs, ModelArgs, PathArgs};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    path: PathArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = args.model.dir()?;
    let device = args.model.device.open()?;
    let dtype = args.model.device.dtype(&device)?;
    let config = GemmaConfig::from_dir(&dir)?;
    let path = args.path.path(&device)?;
    let options = LoadOptions {
        dtype: Some(dtype),
        per_layer: args.path.placement(),
        storage: path.storage(),
        lora: args.model.lora.options(),
        ..LoadOptions::default()
    };
    let report = account(&config, &dir, &device, &options)?;
    LoraArgs::tell(&report);
    let layers: Vec<Value> = config.layers.iter().enumerate().map(|(i, spec)| layer(i, spec, &report)).collect();
    let kv = bytes_per_token(&config, dtype);
    let summary = json!({
        "parameters": report.parameters(),
        "bytes_on_device": report.bytes_at(Place::Device) + report.bytes_at(Place::DeviceWidened),
        "bytes_mapped": report.bytes_at(Place::Mapped),
        "bytes_on_host": report.bytes_at(Place::Host),
        "tensors_applied": report.applied.len(),
        "tensors_skipped": report.skipped.len(),
        "kv_bytes_per_token": kv.growing,
        "kv_bytes_windows": kv.fixed,
        "context": config.max_positions,
        "dtype": dtype.to_string(),
        "path": path.to_string(),
        "per_layer_table": if report.bytes_at(Place::Host) > 0 { "host" } else { "device" },
    });
    if args.json {
        println!("{}", json!({ "layers": layers, "summary": summary }));
        return Ok(ExitCode::SUCCESS);
    }
    println!("layer  attention      keys/values    heads  kv  dim    ffn    parameters         bytes");
    for l in &layers {
        let text = |key: &str| l[key].as_str().unwrap_or_default().to_owned();
        let attention = text("attention");
        println!(
            "{:>5}  {attention:<13}  {:<13}  {:>5}  {:>2}  {:>3}  {:>5}  {:>12}  {:>12}",
            l["layer"],
            text("keys_values"),
            l["heads"],
            l["kv_heads"],
            l["head_dim"],
            l["ffn"],
            l["parameters"],
            l["bytes"]
        );
    }
    for (key, value) in summary.as_object().into_iter().flatten() {
        println!("{key:<20} {}", value.as_str().map_or_else(|| value.to_string(), str::to_owned));
    }
    for (name, reason) in skipped_kinds(&report) {
        println!("skipped: {name}: {reason}");
    }
    Ok(ExitCode::SUCCESS)
}

fn layer(index: usize, spec: &LayerSpec, report: &LoadReport) -> Value {
    let prefix = format!("layers.{index}.");
    let own = || report.applied.iter().filter(|tensor| tensor.name.starts_with(&prefix));
    json!({
        "layer": index,
        "attention": spec.window.map_or_else(|| "full".to_owned(), |window| format!("last {window}")),
        "keys_values": match spec.kv {
            KvSource::Own(_) => "own".to_owned(),
            KvSource::Shared(slot) => format!("of layer {slot}"),
        },
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "head_dim": spec.head_dim,
        "ffn": spec.ffn,
        "parameters": own().map(|tensor| tensor.shape.iter().product::<usize>()).sum::<usize>(),
        "bytes": own().map(|tensor| tensor.bytes).sum::<usize>(),
    })
}

/// How many tensors were skipped for each reason.
fn skipped_kinds(report: &LoadReport) -> Vec<(String, &'static str)> {
    let mut kinds: Vec<(usize, &'static str)> = vec![];
    for (_, reason) in &report.skipped {
        match kinds.iter_mut().find(|(_, known)| known == reason) {
            Some((count, _)) => *count += 1,
            None => kinds.push((1, reason)),
        }
    }
    kinds.into_iter().map(|(count, reason)| (format!("{count} tensors"), reason)).collect()
}
