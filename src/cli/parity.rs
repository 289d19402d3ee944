//! `gemma parity`: a model against a reference dump, or against the known figures of the real checkpoint.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Context;
use gemma_burn::config::GemmaConfig;
use gemma_burn::parity::{Plain, Reference, Report, Subject, Tolerance, check_founding, run as compare, table};
use gemma_burn::tokenizer::Tokenizer;
use gemma_burn::weights::{LoadOptions, load};
use gemma_burn::{Device, Dtype};
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
    /// plain: the Burn modules
    #[arg(long, value_enum, default_value_t = Path::Plain)]
    path: Path,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
enum Path {
    Plain,
}

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
    let loaded = load(dir, &device, &LoadOptions { dtype: Some(dtype), progress: Some(&progress), ..Default::default() });
    bar.clear();
    let (model, _) = loaded?;
    let subject: &mut dyn Subject = match args.path {
        Path::Plain => &mut Plain::new(&model, &device),
    };
    let report = compare(subject, &reference, &Tolerance::plain(dtype))?;
    show(args, &report, dtype)?;
    Ok(if report.pass { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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
    fields.insert("path".into(), json!("plain"));
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
