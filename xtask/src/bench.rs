//! Runs `gemma bench --json` and keeps what it says.
//!
//! Rows of other engines, measured on the same machine, are added to the file by hand: `engine` is then their name and
//! version, `command` theirs, and `report` holds the same fields.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gemma::{self, Gemma};
use crate::shell::{commit, date, machine, output};
use crate::tables::{Keyed, markdown, store};

#[derive(clap::Args)]
pub struct Args {
    /// Store the row in xtask/tables/speed.json, for the README
    #[arg(long)]
    write: bool,
    /// Run nothing: take what `gemma bench --json ARGS` printed elsewhere at this commit
    #[arg(long, value_name = "FILE", requires = "machine")]
    report: Option<PathBuf>,
    /// What computed, if it is not this machine
    #[arg(long, value_name = "NAME")]
    machine: Option<String>,
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
    let printed = match &args.report {
        Some(file) => std::fs::read_to_string(file).with_context(|| file.display().to_string())?,
        None => {
            let words: Vec<&str> =
                ["bench", "--json"].into_iter().chain(args.bench.iter().map(String::as_str)).collect();
            output(Gemma::new(&args.gemma)?.command(&words))?
        }
    };
    let report: Value = serde_json::from_str(&printed).context("what `gemma bench --json` printed")?;
    let machine = args.machine.clone().unwrap_or_else(|| machine(report["device"].as_str().unwrap_or_default()));
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
    const HEAD: [&str; 10] = [
        "hardware",
        "engine",
        "path",
        "dtype",
        "prefill tok/s",
        "decode tok/s",
        "GB/s",
        "share of read bandwidth",
        "measured",
        "command",
    ];
    if rows.is_empty() {
        let mut line = [(); 10].map(|()| "–".to_owned());
        line[8] = "not yet run".into();
        return markdown(HEAD, &[line]);
    }
    let lines: Vec<_> = rows
        .iter()
        .map(|row| {
            let number = |key: &str| row.report[key].as_f64().map_or("–".into(), |x| format!("{x:.1}"));
            let text = |key: &str| row.report[key].as_str().unwrap_or("–").to_owned();
            let share =
                row.report["share_of_read_bandwidth"].as_f64().map_or("–".into(), |x| format!("{:.0} %", 100.0 * x));
            [
                row.machine.clone(),
                row.engine.clone(),
                text("path"),
                text("dtype"),
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
