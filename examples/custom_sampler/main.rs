//! A sampling rule of one's own, plugged into the engine.
//!
//! `cargo run --example custom_sampler -- --prompt "Hello" --surprise 3`

mod mirostat;

use std::io::Write;
use std::path::PathBuf;

use clap::Parser;
use gemma_burn::{Engine, Request, device_or_best};

use mirostat::Mirostat;

/// Generate text of a given surprise
#[derive(Parser)]
struct Args {
    /// Checkpoint folder
    #[arg(long, default_value = "demo")]
    model: PathBuf,
    /// cpu, cuda:0, … [default: the best one present]
    #[arg(long)]
    device: Option<String>,
    #[arg(long, short, default_value = "Hello, world!")]
    prompt: String,
    #[arg(long, short = 'n', default_value_t = 40)]
    max_tokens: usize,
    /// Surprise to aim at, in bits per token
    #[arg(long, default_value_t = 3.0)]
    surprise: f32,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (_, device) = device_or_best(args.device.as_deref())?;
    let engine = Engine::load(&args.model, &device)?;
    let mut session = engine.session();
    let request = Request { max_tokens: Some(args.max_tokens), ..Request::from(args.prompt) };
    let rule = Mirostat::new(args.surprise, 0.1, args.seed)?;
    for event in session.generate_with(request, rule)? {
        print!("{}", event?.text());
        std::io::stdout().flush()?;
    }
    println!();
    Ok(())
}
