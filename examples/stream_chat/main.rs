//! Chats by the checkpoint's own template, streaming the replies.
//!
//! `cargo run --example stream_chat -- "Why is the sky blue?" "And at night?"`; without messages it reads one per line.

mod chat;

use std::io::Write;
use std::path::PathBuf;

use clap::Parser;
use gemma_burn::tokenizer::ChatTemplate;
use gemma_burn::{Engine, device_or_best};

use chat::Chat;

/// Chat with a model
#[derive(Parser)]
struct Args {
    /// Checkpoint folder
    #[arg(long, default_value = "demo")]
    model: PathBuf,
    /// cpu, cuda:0, … [default: the best one present]
    #[arg(long)]
    device: Option<String>,
    /// What the model is told before the chat
    #[arg(long)]
    system: Option<String>,
    /// Tokens per reply at most
    #[arg(long, short = 'n', default_value_t = 64)]
    max_tokens: usize,
    /// What to say, one message after the other
    messages: Vec<String>,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    let (_, device) = device_or_best(args.device.as_deref())?;
    let engine = Engine::load(&args.model, &device)?;
    let template = ChatTemplate::from_dir(&args.model, engine.tokenizer())?;
    let mut chat = Chat::new(&engine, template, args.system.as_deref(), args.max_tokens);
    let mut say = |text: &str| -> anyhow::Result<()> {
        chat.say(text, |piece| {
            print!("{piece}");
            let _ = std::io::stdout().flush();
        })?;
        println!();
        Ok(())
    };
    if args.messages.is_empty() {
        for line in std::io::stdin().lines() {
            say(&line?)?;
        }
    }
    args.messages.iter().try_for_each(|text| say(text))
}
