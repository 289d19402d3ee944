//! Trains a LoRA adapter on a text and saves it as PEFT reads it.
//!
//! `cargo run --example finetune_lora -- --file README.md --out adapter`, then
//! `gemma generate --lora adapter …`, or `PeftModel.from_pretrained(model, "adapter")` in Python.

mod finetune;

use std::path::PathBuf;

use anyhow::{Context, ensure};
use clap::Parser;
use gemma_burn::config::GemmaConfig;
use gemma_burn::model::LoraConfig;
use gemma_burn::tokenizer::{SpecialTokens, Tokenizer};
use gemma_burn::weights::{LoadOptions, load_with, save_lora};
use gemma_burn::{Dtype, device_or_best};

use finetune::{Training, finetune, sequences};

/// Train a LoRA adapter on a text
#[derive(Parser)]
struct Args {
    /// Checkpoint folder
    #[arg(long, default_value = "demo")]
    model: PathBuf,
    /// Text to train on
    #[arg(long)]
    file: PathBuf,
    /// Folder for the adapter
    #[arg(long)]
    out: PathBuf,
    #[arg(long, default_value_t = 8)]
    rank: usize,
    /// Names of the projections to adapt [default: all of attention and feed-forward]
    #[arg(long)]
    target: Vec<String>,
    /// Steps of the optimizer
    #[arg(long, default_value_t = 20)]
    steps: usize,
    /// Sequences per step, one after the other
    #[arg(long, default_value_t = 4)]
    accumulate: usize,
    /// Tokens per sequence
    #[arg(long, default_value_t = 64)]
    tokens: usize,
    #[arg(long, default_value_t = 2e-3)]
    learning_rate: f64,
    /// cpu, cuda:0, … [default: the best one present]
    #[arg(long)]
    device: Option<String>,
    /// Of the first values of A
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    ensure!(args.rank > 0 && args.accumulate > 0 && args.tokens > 1, "--rank, --accumulate: at least 1; --tokens: 2");
    let (_, device) = device_or_best(args.device.as_deref())?;
    let config = GemmaConfig::from_dir(&args.model)?;
    let tokenizer = Tokenizer::from_dir(&args.model, config.vocab_size)?;
    let text = std::fs::read_to_string(&args.file).with_context(|| args.file.display().to_string())?;
    let ids = tokenizer.encode(&text, SpecialTokens::AsText)?;
    let sequences = sequences(&ids, tokenizer.bos_id(), args.tokens);
    ensure!(!sequences.is_empty(), "{} is too short: give it at least two tokens", args.file.display());

    let (base, _) =
        load_with(&config, &args.model, &device, &LoadOptions { dtype: Some(Dtype::F32), ..Default::default() })?;
    device.seed(args.seed);
    let mut lora = LoraConfig::new(args.rank);
    if !args.target.is_empty() {
        lora.targets = args.target;
    }
    let model = lora.init(base);
    ensure!(model.has_adapters(), "no projection of this model has a name given with --target");
    let training = Training { steps: args.steps, accumulate: args.accumulate, learning_rate: args.learning_rate };
    let model =
        finetune(model, &device, &sequences, &training, |step, loss| println!("step {step:>4}  loss {loss:.4}"))?;
    save_lora(&model, &args.model, &args.out)?;
    println!("saved {}", args.out.display());
    Ok(())
}
