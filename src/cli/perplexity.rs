//! `gemma perplexity`: how well a model predicts a text.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, bail};
use gemma_burn::config::GemmaConfig;
use gemma_burn::perplexity::{Windows, perplexity};
use gemma_burn::tokenizer::{SpecialTokens, Tokenizer};
use gemma_burn::weights::{LoadOptions, load_with};
use indicatif::{ProgressBar, ProgressStyle};
use serde_json::json;

use super::args::{LoadBar, LoraArgs, ModelArgs};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    /// Text to score, in UTF-8
    #[arg(long, short, value_name = "FILE")]
    file: PathBuf,
    /// Tokens that a window scores at most, after <bos> [default: 2048, or the model's context if that is less]
    #[arg(long, value_name = "N")]
    window: Option<usize>,
    /// Tokens from one window to the next; what both see is scored once [default: half a window]
    #[arg(long, value_name = "N")]
    stride: Option<usize>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = args.model.dir()?;
    let text = read(&args.file)?;
    let device = args.model.device.open()?;
    let dtype = args.model.device.dtype(&device)?;
    let config = GemmaConfig::from_dir(&dir)?;
    let windows = Windows::new(args.window, args.stride, config.max_positions)?;
    let tokenizer = Tokenizer::from_dir(&dir, config.vocab_size)?;
    let ids = tokenizer.encode(&text, SpecialTokens::AsText)?;

    let bar = LoadBar::new();
    let progress = |done, total| bar.show(done, total);
    let options = LoadOptions {
        dtype: Some(dtype),
        lora: args.model.lora.options(),
        progress: Some(&progress),
        ..LoadOptions::default()
    };
    let loaded = load_with(&config, &dir, &device, &options);
    bar.clear();
    let (model, loading) = loaded?;
    LoraArgs::tell(&loading);

    let style = ProgressStyle::with_template("scoring {bar:40} {pos}/{len} tokens, {eta} left");
    let bar = ProgressBar::new(ids.len() as u64).with_style(style.expect("the template is valid"));
    let progress = |done| bar.set_position(done as u64);
    let scored = perplexity(&model, &device, tokenizer.bos_id(), &ids, windows, &progress);
    bar.finish_and_clear();
    let scored = scored?;
    if args.json {
        let mut object = serde_json::to_value(scored)?;
        object["window"] = json!(windows.window());
        object["stride"] = json!(windows.stride());
        object["dtype"] = json!(dtype.to_string());
        println!("{object}");
    } else {
        println!("tokens      {}", scored.tokens);
        println!("nll         {:.4} nats per token", scored.nll);
        println!("perplexity  {:.4}", scored.perplexity);
    }
    Ok(ExitCode::SUCCESS)
}

fn read(file: &Path) -> anyhow::Result<String> {
    let bytes = std::fs::read(file).with_context(|| format!("{}: give a text file with --file", file.display()))?;
    if bytes.is_empty() {
        bail!("{}: the file is empty; there is nothing to score", file.display());
    }
    String::from_utf8(bytes).map_err(|e| {
        let at = e.utf8_error().valid_up_to();
        anyhow::anyhow!("{}: not UTF-8 from byte {at} on; convert it to UTF-8 first", file.display())
    })
}
