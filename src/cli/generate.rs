//! `gemma generate`: one prompt, its continuation on stdout.

use std::io::{ErrorKind, Read, Write};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use anyhow::Context;
use gemma_burn::engine::{Engine, EngineOptions, Event, Finish, FinishReason, Generation, Prompt, Request};
use gemma_burn::sampler::Sampling;
use serde_json::json;

use super::args::{LoadBar, LoraArgs, ModelArgs, PathArgs};

#[derive(clap::Args)]
pub struct Args {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    path: PathArgs,
    /// Text to continue; `-` reads it from stdin
    #[arg(long, short, value_name = "TEXT")]
    prompt: String,
    /// Read control tokens such as <|turn> in the prompt as structure instead of text
    #[arg(long)]
    special: bool,
    /// Tokens to generate at most [default: up to the end of the context]
    #[arg(long, short = 'n', value_name = "N")]
    max_tokens: Option<usize>,
    /// Longest conversation in tokens [default: 4096, or the model's if that is less]
    #[arg(long, value_name = "N")]
    context: Option<usize>,
    #[command(flatten)]
    sampling: SamplingArgs,
    /// End the output before this text (may be given several times)
    #[arg(long, value_name = "TEXT")]
    stop: Vec<String>,
    /// Print one JSON object at the end instead of streaming text
    #[arg(long)]
    json: bool,
}

/// How to choose tokens; what is not given comes from the model's generation_config.json.
#[derive(clap::Args)]
pub struct SamplingArgs {
    /// 0 always takes the best token
    #[arg(long, value_name = "T", allow_negative_numbers = true)]
    temperature: Option<f32>,
    /// Choose among the K best tokens; 0 for all
    #[arg(long, value_name = "K")]
    top_k: Option<usize>,
    /// Choose among the best tokens that together have this probability
    #[arg(long, value_name = "P", allow_negative_numbers = true)]
    top_p: Option<f32>,
    /// Drop tokens less probable than this share of the best one's probability
    #[arg(long, value_name = "M", allow_negative_numbers = true)]
    min_p: Option<f32>,
    /// Make tokens that occurred already less likely; 1 for none
    #[arg(long, value_name = "R", allow_negative_numbers = true)]
    repeat_penalty: Option<f32>,
    /// The same seed gives the same text
    #[arg(long, value_name = "S")]
    seed: Option<u64>,
}

impl SamplingArgs {
    fn over(&self, default: &Sampling) -> Sampling {
        Sampling {
            temperature: self.temperature.unwrap_or(default.temperature),
            top_k: self.top_k.unwrap_or(default.top_k),
            top_p: self.top_p.unwrap_or(default.top_p),
            min_p: self.min_p.unwrap_or(default.min_p),
            repeat_penalty: self.repeat_penalty.unwrap_or(default.repeat_penalty),
            seed: self.seed.or(default.seed),
        }
    }
}

pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let dir = args.model.dir()?;
    let prompt = read_prompt(&args.prompt)?;
    let device = args.model.device.open()?;
    let dtype = args.model.device.dtype(&device)?;
    let started = Instant::now();
    let bar = LoadBar::new();
    let progress = |done, total| bar.show(done, total);
    let options = EngineOptions {
        dtype: Some(dtype),
        context: args.context,
        path: Some(args.path.path(&device)?),
        per_layer: args.path.placement(),
        lora: args.model.lora.options(),
        progress: Some(&progress),
    };
    let engine = Engine::load_with(dir, &device, &options);
    bar.clear();
    let engine = engine?;
    LoraArgs::tell(engine.load_report());
    let load_ms = started.elapsed().as_secs_f64() * 1e3;

    let request = Request {
        prompt: if args.special { Prompt::Structured(prompt) } else { Prompt::Text(prompt) },
        max_tokens: args.max_tokens,
        sampling: Some(args.sampling.over(engine.default_sampling())),
        stop: args.stop.clone(),
    };
    let interrupted = Arc::new(AtomicBool::new(false));
    let flag = interrupted.clone();
    ctrlc::set_handler(move || flag.store(true, Ordering::Relaxed)).context("installing the Ctrl-C handler")?;
    let mut session = engine.session();
    let mut generation = session.generate(request)?;
    let outcome = drain(&mut generation, &interrupted, !args.json)?;
    let seed = generation.seed();
    if args.json {
        let object = json!({
            "text": outcome.text,
            "ids": outcome.ids,
            "finish_reason": outcome.reason,
            "seed": seed,
            "usage": outcome.finish.usage,
            "timing": {
                "load_ms": load_ms,
                "prefill_ms": outcome.finish.timing.prefill_ms,
                "first_token_ms": outcome.finish.timing.first_token_ms,
                "decode_ms": outcome.finish.timing.decode_ms,
            },
        });
        println!("{object}");
    } else {
        eprintln!("load {:.1} s | {} | {} | {}", load_ms / 1e3, outcome.finish, outcome.reason, engine.path());
    }
    Ok(ExitCode::SUCCESS)
}

struct Outcome {
    text: String,
    ids: Vec<u32>,
    reason: &'static str,
    finish: Finish,
}

/// Runs a generation to its end, to Ctrl-C, or until nobody reads its output any more.
fn drain(generation: &mut Generation, interrupted: &AtomicBool, stream: bool) -> anyhow::Result<Outcome> {
    let mut stdout = std::io::stdout().lock();
    let (mut text, mut ids) = (String::new(), vec![]);
    let mut ended = None;
    while !interrupted.load(Ordering::Relaxed) {
        let Some(event) = generation.next() else { break };
        let event = event?;
        text += event.text();
        if stream && !event.text().is_empty() {
            match stdout.write_all(event.text().as_bytes()).and_then(|()| stdout.flush()) {
                Err(error) if error.kind() == ErrorKind::BrokenPipe => break,
                written => written?,
            }
        }
        ids.push(event.id());
        if let Event::Done { finish, .. } = event {
            ended = Some(finish);
        }
    }
    if stream {
        let _ = stdout.write_all(b"\n");
    }
    let reason = match ended.as_ref().map(|finish| finish.finish_reason) {
        Some(FinishReason::Stop) => "stop",
        Some(FinishReason::Length) => "length",
        None => "cancelled",
    };
    let finish = ended.unwrap_or_else(|| generation.finish(FinishReason::Length));
    Ok(Outcome { text, ids, reason, finish })
}

fn read_prompt(prompt: &str) -> anyhow::Result<String> {
    if prompt != "-" {
        return Ok(prompt.to_owned());
    }
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("reading the prompt from stdin")?;
    Ok(text)
}
