//! `gemma parity`: a model against a reference dump, or against the known figures of the real checkpoint.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use gemma_burn::bench::prompt;
use gemma_burn::config::GemmaConfig;
use gemma_burn::engine::ComputePath;
#[cfg(feature = "cube")]
use gemma_burn::fused::{FusedOptions, FusedStep};
use gemma_burn::parity::{
    Plain, Reference, Report, Subject, Tolerance, check_founding, run as compare, run_against, table,
};
use gemma_burn::tokenizer::Tokenizer;
use gemma_burn::weights::{LoadOptions, load};
use gemma_burn::{Device, Dtype, device};
use serde_json::json;

use super::args::{LoadBar, LoraArgs, ModelArgs, PathArgs};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Folder with reference.json and reference.safetensors
    #[arg(long, value_name = "DIR", required_unless_present_any = ["founding", "against"])]
    reference: Option<PathBuf>,
    /// Compare with the plain path in f32 on this device instead of a dump
    #[arg(long, value_name = "NAME", conflicts_with = "reference")]
    against: Option<String>,
    /// Length of the prompt and of the continuation, with --against
    #[arg(long, value_name = "N", default_value_t = 64)]
    tokens: usize,
    /// Check what is known of google/gemma-4-E2B instead of a dump
    #[arg(long, conflicts_with_all = ["reference", "against"])]
    founding: bool,
    #[command(flatten)]
    path: PathArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Longest prompt with its greedy tokens that a dump may hold on the fused path.
#[cfg(feature = "cube")]
const FUSED_CONTEXT: usize = 4096;

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = args.model.dir()?;
    let device = args.model.device.open()?;
    let dtype = args.model.device.dtype(&device)?;
    if args.founding {
        return founding(args, &dir, &device, dtype);
    }
    let bar = LoadBar::new();
    let progress = |done, total| bar.show(done, total);
    let path = args.path.path(&device)?;
    let options = LoadOptions {
        dtype: Some(dtype),
        storage: path.storage(),
        per_layer: args.path.placement(),
        lora: args.model.lora.options(),
        progress: Some(&progress),
    };
    let loaded = load(&dir, &device, &options);
    bar.clear();
    let (model, loading) = loaded?;
    LoraArgs::tell(&loading);
    let report = match path {
        ComputePath::Plain => verdict(args, &mut Plain::new(&model, &device), &Tolerance::plain(dtype), None)?,
        #[cfg(feature = "cube")]
        ComputePath::Fused { kv } => {
            let context = FUSED_CONTEXT.min(model.config().max_positions);
            let mut step = FusedStep::new(&model, &FusedOptions { context, kv, end_ids: vec![], graph: true })?;
            let against = args.against.is_some();
            let tolerance = if against { Tolerance::fused_against(kv) } else { Tolerance::fused(kv) };
            verdict(args, &mut step, &tolerance, Some(kv))?
        }
    };
    show(args, &report, path, dtype)?;
    Ok(if report.pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Compares `subject` with the dump, or with the plain path elsewhere: in f32, keeping keys and values as `subject` does.
fn verdict(args: &Args, subject: &mut dyn Subject, tolerance: &Tolerance, kv: Option<Dtype>) -> anyhow::Result<Report> {
    let Some(name) = &args.against else {
        let reference = Reference::open(args.reference.as_ref().context("--reference is missing")?)?;
        return Ok(compare(subject, &reference, tolerance)?);
    };
    let truth = device(name)?;
    let options = LoadOptions { dtype: Some(Dtype::F32), lora: args.model.lora.options(), ..LoadOptions::default() };
    let (model, _) = load(args.model.dir()?, &truth, &options)?;
    let ids = prompt(model.config(), args.tokens);
    let mut plain = Plain::kept_in(&model, &truth, kv.unwrap_or(Dtype::F32));
    Ok(run_against(subject, &mut plain, &ids, args.tokens, tolerance)?)
}

fn show(args: &Args, report: &Report, path: ComputePath, dtype: Dtype) -> anyhow::Result<()> {
    if !args.json {
        print!("{}", table(report));
        return Ok(());
    }
    let mut object = serde_json::to_value(report)?;
    let fields = object.as_object_mut().context("a report is an object")?;
    fields.insert("model".into(), json!(args.model.dir()?));
    fields.insert("device".into(), json!(args.model.device.device));
    fields.insert("dtype".into(), json!(dtype.to_string()));
    let fused = path != ComputePath::Plain;
    fields.insert("path".into(), json!(if fused { "fused" } else { "plain" }));
    fields.insert("kv_dtype".into(), json!(fused.then(|| args.path.kv_dtype.to_string())));
    println!("{object}");
    Ok(())
}

fn founding(args: &Args, dir: &std::path::Path, device: &Device, dtype: Dtype) -> anyhow::Result<ExitCode> {
    let config = GemmaConfig::from_dir(dir)?;
    let tokenizer = Tokenizer::from_dir(dir, config.vocab_size)?;
    let (model, _) =
        load(dir, device, &LoadOptions { dtype: Some(dtype), lora: args.model.lora.options(), ..Default::default() })?;
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
