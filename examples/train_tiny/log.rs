//! Progress on the terminal and the loss curve as a file.

use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use anyhow::Context;
use gemma_burn::training::Trainer;
use indicatif::{ProgressBar, ProgressStyle};

const COLUMNS: &str = "step,seconds,rate,train_loss,eval_loss";

/// One line of the curve.
pub struct Row {
    pub step: usize,
    /// As [`Log::seconds`] when the step was done.
    pub seconds: f64,
    pub rate: f64,
    /// Mean over the steps since the last row.
    pub loss: f64,
    pub held_out: Option<f64>,
}

/// Where rows go. A resumed run appends, and its clock goes on.
pub struct Log {
    bar: ProgressBar,
    file: File,
    started: Instant,
    /// Seconds of the runs before this one.
    before: f64,
    /// The lowest loss on the held-out text in the runs before this one.
    pub best: f64,
}

impl Log {
    pub fn open(out: &Path, trainer: &Trainer) -> anyhow::Result<Self> {
        let path = out.join("loss.csv");
        let done = trainer.steps();
        let kept = match done {
            0 => vec![],
            _ => rows_up_to(&std::fs::read_to_string(&path).unwrap_or_default(), done),
        };
        let before = kept.last().and_then(|row| row.split(',').nth(1)?.parse().ok()).unwrap_or(0.0);
        let evaluated = kept.iter().filter_map(|row| row.split(',').nth(4)?.parse().ok());
        let best = evaluated.fold(f64::INFINITY, f64::min);
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).open(&path).context("loss.csv")?;
        for line in std::iter::once(COLUMNS).chain(kept.iter().map(String::as_str)) {
            writeln!(file, "{line}")?;
        }
        let style = "{bar:30} {pos}/{len} {per_sec} {elapsed_precise}<{eta_precise} {msg}";
        let bar = ProgressBar::new(trainer.options().schedule.steps as u64)
            .with_style(ProgressStyle::with_template(style)?)
            .with_position(done as u64);
        Ok(Self { bar, file, started: Instant::now(), before, best })
    }

    /// Seconds spent on training, runs before this one included.
    pub fn seconds(&self) -> f64 {
        self.before + self.started.elapsed().as_secs_f64()
    }

    pub fn write(&mut self, row: &Row) -> anyhow::Result<()> {
        let Row { step, seconds, rate, loss, held_out } = row;
        let eval = held_out.map(|loss| format!("{loss:.4}")).unwrap_or_default();
        writeln!(self.file, "{step},{seconds:.1},{rate:.3e},{loss:.4},{eval}")?;
        self.bar.set_position(*step as u64);
        self.bar.set_message(format!("loss {loss:.3}"));
        if held_out.is_some() {
            // The bar is silent where there is no terminal.
            let line = format!("step {step}: training {loss:.4}, held out {eval}, {seconds:.0} s");
            self.bar.suspend(|| eprintln!("{line}"));
        }
        Ok(())
    }

    pub fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

/// The rows of a curve that belong to the first `steps` steps.
fn rows_up_to(csv: &str, steps: usize) -> Vec<String> {
    let rows = csv.lines().skip(1).map(str::to_owned);
    rows.take_while(|row| row.split(',').next().and_then(|step| step.parse().ok()).is_some_and(|s: usize| s <= steps))
        .collect()
}
