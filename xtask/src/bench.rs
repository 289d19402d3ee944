//! Runs `gemma bench --json` and keeps what it says.
//!
//! The program prints one object with `prefill_tokens_per_second`, `decode_tokens_per_second`,
//! `decode_gb_per_second`, `share_of_read_bandwidth` and, where it knows it, `device_name`; other fields are kept too.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gemma::{self, Gemma};
use crate::shell::{commit, date, output, processor};
use crate::tables::{Keyed, markdown, store};

#[derive(clap::Args)]
pub struct Args {
    /// Store the row in xtask/tables/speed.json, for the README
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    gemma: gemma::Args,
    /// Passed on to `gemma bench`, for example: -- --synthetic e2b --device cpu
    #[arg(last = true)]
    bench: Vec<String>,
}

pub const TABLE: &str = "speed.json";

#[derive(Serialize, Deserialize)]
pub struct Row {
    date: String,
    commit: String,
    machine: String,
    /// `gemma` for this program, else the other one's name and version.
    engine: String,
    command: String,
    report: Value,
}

impl Keyed for Row {
    fn key(&self) -> Vec<String> {
        vec![self.engine.clone(), self.machine.clone(), self.command.clone()]
    }
}

pub fn run(args: &Args) -> Result<()> {
    let gemma = Gemma::new(&args.gemma)?;
    let words: Vec<&str> = ["bench", "--json"].into_iter().chain(args.bench.iter().map(String::as_str)).collect();
    let report: Value =
        serde_json::from_str(&output(gemma.command(&words))?).context("what `gemma bench --json` printed")?;
    let machine = report["device_name"].as_str().map_or_else(processor, String::from);
    let mut command = vec!["gemma".to_owned(), "bench".to_owned()];
    // A checkpoint is named by its folder: where it lies concerns nobody else.
    let model = args.bench.iter().position(|arg| arg == "--model").map(|at| at + 1);
    command.extend(args.bench.iter().enumerate().map(|(at, arg)| match Path::new(arg).file_name() {
        Some(name) if model == Some(at) => name.to_string_lossy().into_owned(),
        _ => arg.clone(),
    }));
    let row =
        Row { date: date()?, commit: commit()?, machine, engine: "gemma".into(), command: command.join(" "), report };
    print!("{}", table(std::slice::from_ref(&row)));
    if args.write {
        store(TABLE, vec![row])?;
    }
    Ok(())
}

/// The stored rows as a table.
pub fn table(rows: &[Row]) -> String {
    const HEAD: [&str; 9] = [
        "hardware",
        "engine",
        "dtype",
        "prefill tok/s",
        "decode tok/s",
        "GB/s",
        "share of read bandwidth",
        "measured",
        "command",
    ];
    if rows.is_empty() {
        let mut line = [(); 9].map(|()| "–".to_owned());
        line[7] = "not yet run".into();
        return markdown(HEAD, &[line]);
    }
    let lines: Vec<_> = rows
        .iter()
        .map(|row| {
            let number = |key: &str| row.report[key].as_f64().map_or("–".into(), |x| format!("{x:.1}"));
            let share =
                row.report["share_of_read_bandwidth"].as_f64().map_or("–".into(), |x| format!("{:.0} %", 100.0 * x));
            [
                row.machine.clone(),
                row.engine.clone(),
                row.report["dtype"].as_str().unwrap_or("–").into(),
                number("prefill_tokens_per_second"),
                number("decode_tokens_per_second"),
                number("decode_gb_per_second"),
                share,
                format!("{}, {}", row.date, row.commit),
                format!("`{}`", row.command),
            ]
        })
        .collect();
    markdown(HEAD, &lines)
}
