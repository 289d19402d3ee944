//! `gemma tokenize`: text to ids.

use std::io::Read;
use std::process::ExitCode;

use anyhow::Context;
use gemma_burn::config::GemmaConfig;
use gemma_burn::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::json;

use super::args::model_dir;

#[derive(clap::Args)]
pub struct Args {
    /// Checkpoint folder [default: the demo inside this program]
    #[arg(long, short, value_name = "DIR")]
    model: Option<std::path::PathBuf>,
    /// Read control tokens such as <|turn> as structure instead of text
    #[arg(long)]
    special: bool,
    /// Begin with <bos>, as every prompt does
    #[arg(long)]
    bos: bool,
    /// Print one JSON object with ids and tokens
    #[arg(long)]
    json: bool,
    /// The text; `-` reads it from stdin
    text: String,
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = model_dir(args.model.as_deref())?;
    let config = GemmaConfig::from_dir(&dir)?;
    let tokenizer = Tokenizer::from_dir(&dir, config.vocab_size)?;
    let mut text = args.text.clone();
    if text == "-" {
        text.clear();
        std::io::stdin().read_to_string(&mut text).context("reading the text from stdin")?;
    }
    let special = if args.special { SpecialTokens::Parse } else { SpecialTokens::AsText };
    let ids = if args.bos { tokenizer.encode_prompt(&text, special)? } else { tokenizer.encode(&text, special)? };
    if args.json {
        let tokens: Vec<_> = ids.iter().map(|&id| tokenizer.token(id)).collect();
        println!("{}", json!({ "ids": ids, "tokens": tokens }));
    } else {
        println!("{}", ids.iter().map(u32::to_string).collect::<Vec<_>>().join(" "));
    }
    Ok(ExitCode::SUCCESS)
}
