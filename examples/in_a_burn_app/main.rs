//! Gemma as a field of someone's own Burn module: hidden states out, a head of one's own, trained for a few steps.
//!
//! `cargo run --example in_a_burn_app`

mod classifier;

use std::path::PathBuf;

use clap::Parser;
use gemma_burn::config::GemmaConfig;
use gemma_burn::device_or_best;
use gemma_burn::tokenizer::{SpecialTokens, Tokenizer};
use gemma_burn::weights::{LoadOptions, load_with};

use classifier::{Classifier, train_step};

const QUESTION: u32 = 0;
const STATEMENT: u32 = 1;
const EXAMPLES: [(&str, u32); 4] = [
    ("Why is the sky blue?", QUESTION),
    ("Where do rivers begin?", QUESTION),
    ("The sky is blue.", STATEMENT),
    ("Rivers begin in hills.", STATEMENT),
];

/// Train a classifier on top of Gemma
#[derive(Parser)]
struct Args {
    /// Checkpoint folder
    #[arg(long, default_value = "demo")]
    model: PathBuf,
    /// cpu, cuda:0, … [default: the best one present]
    #[arg(long)]
    device: Option<String>,
    #[arg(long, default_value_t = 5)]
    steps: usize,
    #[arg(long, default_value_t = 1e-3)]
    learning_rate: f64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (_, device) = device_or_best(args.device.as_deref())?;
    let config = GemmaConfig::from_dir(&args.model)?;
    let tokenizer = Tokenizer::from_dir(&args.model, config.vocab_size)?;
    let (gemma, _) = load_with(&config, &args.model, &device, &LoadOptions::default())?;
    let examples = EXAMPLES
        .iter()
        .map(|(text, class)| Ok((tokenizer.encode_prompt(text, SpecialTokens::AsText)?, *class)))
        .collect::<gemma_burn::Result<Vec<_>>>()?;

    let mut classifier = Classifier::new(gemma, 2, &device);
    for step in 1..=args.steps {
        let before;
        (classifier, before) = train_step(classifier, &examples, args.learning_rate, &device);
        println!("step {step}  loss {before:.4}");
    }
    println!("after   loss {:.4}", classifier.loss(&examples, &device).into_scalar::<f32>());
    Ok(())
}
