//! `gemma parity`: a model against a reference dump, or against the known figures of the real checkpoint.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use gemma_burn::config::GemmaConfig;
#[cfg(feature = "cube")]
use gemma_burn::fused::{FusedOptions, FusedStep};
use gemma_burn::parity::{Plain, Reference, Report, Tolerance, check_founding, run as compare, table};
use gemma_burn::tokenizer::Tokenizer;
use gemma_burn::weights::{LoadOptions, Storage, load};
use gemma_burn::{Device, Dtype, Gemma};
use serde_json::json;

use super::args::{LoadBar, ModelArgs};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder with reference.json and reference.safetensors
    #[arg(long, value_name = "DIR", required_unless_present = "founding")]
    reference: Option<PathBuf>,
    /// Check what is known of google/gemma-4-E2B instead of a dump
    #[arg(long, conflicts_with = "reference")]
    founding: bool,
    /// plain: the Burn modules; fused: the decode kernels
    #[arg(long, value_enum, default_value_t = Path::Plain)]
    path: Path,
    /// Format of the fused path's keys and values
    #[arg(long, default_value_t = Dtype::Bf16)]
    kv_dtype: Dtype,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Path {
    Plain,
    Fused,
}

/// Longest prompt with its greedy tokens that a dump may hold on the fused path.
const FUSED_CONTEXT: usize = 4096;

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = args.model.dir()?;
    let device = args.model.device.open()?;
    let dtype = args.model.device.dtype(&device)?;
    if args.founding {
        return founding(args, dir, &device, dtype);
    }
    let reference = Reference::open(args.reference.as_ref().context("--reference is missing")?)?;
    let bar = LoadBar::new();
    let progress = |done, total| bar.show(done, total);
    let storage = if args.path == Path::Fused { Storage::AsFile } else { Storage::Computable };
    let options = LoadOptions { dtype: Some(dtype), storage, progress: Some(&progress), ..Default::default() };
    let loaded = load(dir, &device, &options);
    bar.clear();
    let (model, _) = loaded?;
    let report = match args.path {
        Path::Plain => compare(&mut Plain::new(&model, &device), &reference, &Tolerance::plain(dtype))?,
        Path::Fused => {
            let context = FUSED_CONTEXT.min(model.config().max_positions);
            compare(&mut fused(&model, context, args.kv_dtype)?, &reference, &Tolerance::fused(args.kv_dtype))?
        }
    };
    show(args, &report, dtype)?;
    Ok(if report.pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(feature = "cube")]
fn fused(model: &Gemma, context: usize, kv: Dtype) -> anyhow::Result<FusedStep> {
    Ok(FusedStep::new(model, &FusedOptions { context, kv, graph: true })?)
}

#[cfg(not(feature = "cube"))]
fn fused(_: &Gemma, _: usize, _: Dtype) -> anyhow::Result<Plain<'static>> {
    anyhow::bail!("this build has no fused path; build with --features cuda, rocm, metal, vulkan or wgpu")
}

fn show(args: &Args, report: &Report, dtype: Dtype) -> anyhow::Result<()> {
    if !args.json {
        print!("{}", table(report));
        return Ok(());
    }
    let mut object = serde_json::to_value(report)?;
    let fields = object.as_object_mut().context("a report is an object")?;
    fields.insert("model".into(), json!(args.model.dir()?));
    fields.insert("device".into(), json!(args.model.device.device));
    fields.insert("dtype".into(), json!(dtype.to_string()));
    let path = args.path.to_possible_value().context("every path has a name")?;
    fields.insert("path".into(), json!(path.get_name()));
    let kv = (args.path == Path::Fused).then(|| args.kv_dtype.to_string());
    fields.insert("kv_dtype".into(), json!(kv));
    println!("{object}");
    Ok(())
}

fn founding(args: &Args, dir: &std::path::Path, device: &Device, dtype: Dtype) -> anyhow::Result<ExitCode> {
    let config = GemmaConfig::from_dir(dir)?;
    let tokenizer = Tokenizer::from_dir(dir, config.vocab_size)?;
    let (model, _) = load(dir, device, &LoadOptions { dtype: Some(dtype), ..Default::default() })?;
    let checks = check_founding(&model, &tokenizer, device)?;
    let pass = checks.iter().all(|check| check.pass);
    if args.json {
        println!("{}", json!({ "pass": pass, "checks": checks }));
    } else {
        for check in &checks {
            let verdict = if check.pass { "ok" } else { "FAIL" };
            println!("{verdict:<4} {}: expected {}, got {}", check.what, check.expected, check.got);
        }
    }
    Ok(if pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
