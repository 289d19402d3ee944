//! Trains a Gemma 4 of a few million parameters from scratch. README.md beside this file says how to get the text.

mod log;

use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, bail};
use burn::tensor::Tensor;
use clap::Parser;
use gemma_burn::config::GemmaConfig;
use gemma_burn::training::{Schedule, Text, Trainer, TrainingOptions};
use gemma_burn::{Dtype, device_or_best, weights};
use serde_json::{Value, json};

use log::{Log, Row};

/// Token ids as corpus.py writes them.
const BOS: u32 = 2;
/// The last learning rate as a share of the highest.
const LAST_RATE: f64 = 0.05;
const TRAINING_TEXT: &str = "train.tokens";
const HELD_OUT_TEXT: &str = "eval.tokens";
const CHECKPOINT: &str = "checkpoint";

/// Trains a small Gemma 4 from scratch; the best weights so far are always in OUT, ready for `gemma generate --model OUT`.
#[derive(Parser)]
struct Args {
    /// What corpus.py wrote: config.json, tokenizer.json, train.tokens, eval.tokens
    #[arg(long, value_name = "DIR")]
    data: PathBuf,
    /// Where model, loss.csv, report.json and checkpoint/ go
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
    /// cpu, cuda:0, vulkan, … [default: the best one present]
    #[arg(long, value_name = "NAME")]
    device: Option<String>,
    /// Steps in all
    #[arg(long, default_value_t = 2000)]
    steps: usize,
    /// End after this time even if steps are left; the learning rate falls in time
    #[arg(long, value_name = "M")]
    minutes: Option<f64>,
    /// Sequences per step
    #[arg(long, default_value_t = 32)]
    sequences: usize,
    /// Tokens per sequence
    #[arg(long, default_value_t = 256)]
    len: usize,
    /// The highest learning rate
    #[arg(long, default_value_t = 3e-3)]
    rate: f64,
    /// Steps until it is reached
    #[arg(long, default_value_t = 200)]
    warmup: usize,
    /// AdamW's decay of matrices: large, because a text this small is read several times
    #[arg(long, default_value_t = 1.0)]
    weight_decay: f64,
    /// Longest gradient that is taken as it is
    #[arg(long, default_value_t = 1.0)]
    clip: f64,
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Steps between two rows of loss.csv
    #[arg(long, default_value_t = 25)]
    log_every: usize,
    /// Steps between two looks at the held-out text, each with a checkpoint
    #[arg(long, default_value_t = 500)]
    eval_every: usize,
    /// Go on from OUT/checkpoint; what decides a run is read from there
    #[arg(long)]
    resume: bool,
}

fn main() -> anyhow::Result<()> {
    let args = Args::parse();
    if args.log_every == 0 || args.eval_every == 0 || args.sequences == 0 || args.len == 0 {
        bail!("--log-every, --eval-every, --sequences and --len must be 1 or more");
    }
    let (name, device) = device_or_best(args.device.as_deref())?;
    let config = GemmaConfig::from_dir(&args.data)?;
    let read = |file| Text::read(args.data.join(file), BOS, config.vocab_size);
    let (text, held_out) = (read(TRAINING_TEXT)?, read(HELD_OUT_TEXT)?);
    std::fs::create_dir_all(&args.out).with_context(|| args.out.display().to_string())?;
    let trainer = match args.resume {
        true => Trainer::resume(&args.out.join(CHECKPOINT), &device)?,
        false => Trainer::new(&config, options(&args), &device),
    };
    let log = Log::open(&args.out, &trainer)?;
    let mut run = Run { best: log.best, log, args: &args, trainer };
    run.train(&text, &held_out)?;
    run.report(&name, &text)
}

fn options(args: &Args) -> TrainingOptions {
    let schedule = Schedule { peak: args.rate, warmup: args.warmup, steps: args.steps, last: LAST_RATE };
    TrainingOptions {
        seed: args.seed,
        sequences: args.sequences,
        len: args.len,
        schedule,
        weight_decay: args.weight_decay,
        clip: args.clip,
    }
}

struct Run<'a> {
    args: &'a Args,
    trainer: Trainer,
    log: Log,
    /// The lowest loss on the held-out text so far.
    best: f64,
}

impl Run<'_> {
    fn train(&mut self, text: &Text, held_out: &Text) -> anyhow::Result<()> {
        let started = Instant::now();
        let steps = self.trainer.options().schedule.steps;
        let mut losses: Vec<Tensor<1>> = vec![];
        while self.trainer.steps() < steps {
            let minutes = started.elapsed().as_secs_f64() / 60.0;
            let elapsed = self.args.minutes.map_or(0.0, |limit| minutes / limit);
            let rate = self.trainer.rate(elapsed);
            losses.push(self.trainer.train_step(text, rate));
            let step = self.trainer.steps();
            let last = step == steps || elapsed >= 1.0;
            let evaluate = last || step.is_multiple_of(self.args.eval_every);
            if evaluate || step.is_multiple_of(self.args.log_every) {
                let loss = mean(std::mem::take(&mut losses));
                if !loss.is_finite() {
                    bail!(
                        "the loss is {loss} at step {step}; try a lower --rate, or --resume from the last checkpoint"
                    );
                }
                let seconds = self.log.seconds();
                let held_out = evaluate.then(|| self.look(held_out)).transpose()?;
                self.log.write(&Row { step, seconds, rate, loss, held_out })?;
            }
            if last {
                break;
            }
        }
        self.log.finish();
        Ok(())
    }

    /// Evaluates, keeps the weights if they are the best so far, and writes a checkpoint.
    fn look(&mut self, held_out: &Text) -> anyhow::Result<f64> {
        let loss = self.trainer.evaluate(held_out);
        if loss < self.best {
            self.best = loss;
            weights::save(self.trainer.model(), &self.args.data, &self.args.out, Dtype::Bf16)?;
        }
        self.trainer.save(&self.args.data, &self.args.out.join(CHECKPOINT))?;
        Ok(loss)
    }

    /// Writes report.json: what ran, how long, how well, and next to which baselines.
    fn report(&self, device: &str, text: &Text) -> anyhow::Result<()> {
        let corpus = self.args.data.join("corpus.json");
        let corpus: Value = match std::fs::read(&corpus) {
            Ok(json) => serde_json::from_slice(&json).with_context(|| corpus.display().to_string())?,
            Err(_) => Value::Null,
        };
        let options = self.trainer.options();
        let (steps, seconds) = (self.trainer.steps(), self.log.seconds());
        let tokens = (steps * options.sequences * options.len) as f64;
        let report = json!({
            "command": std::env::args().skip(1).collect::<Vec<_>>().join(" "),
            "device": device,
            "parameters": burn::module::Module::num_params(self.trainer.model()),
            "steps": steps,
            "seconds": seconds,
            "steps_per_second": steps as f64 / seconds,
            "epochs": tokens / text.predicted() as f64,
            "eval_nats_per_token": {
                "this": self.best,
                "unigram": corpus["eval_nats_per_token"]["unigram"],
                "trigram": corpus["eval_nats_per_token"]["trigram"],
            },
            "options": options,
        });
        let json = serde_json::to_string_pretty(&report)?;
        std::fs::write(self.args.out.join("report.json"), json.clone() + "\n")?;
        println!("{json}");
        Ok(())
    }
}

/// Waits for the device and averages.
fn mean(losses: Vec<Tensor<1>>) -> f64 {
    Tensor::cat(losses, 0).mean().into_scalar::<f32>() as f64
}
