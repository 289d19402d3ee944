//! The command line: one file per subcommand, arguments that several share in `args`.

mod args;
mod bench;
mod generate;
mod inspect;
pub mod logging;
mod parity;
mod perplexity;
mod tokenize;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Gemma 4 on Burn.
#[derive(Parser)]
#[command(name = "gemma", version, about, max_term_width = 100)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Continue a prompt; the text goes to stdout, everything else to stderr
    Generate(generate::Args),
    /// Print the token ids of a text
    Tokenize(tokenize::Args),
    /// Show what a checkpoint is made of and where its bytes would go
    Inspect(inspect::Args),
    /// Measure speed
    Bench(bench::Args),
    /// Compare a model with reference logits
    Parity(parity::Args),
    /// Score a text: the mean negative log likelihood of its tokens, and its exponential
    Perplexity(perplexity::Args),
}

/// Parses the command line and runs the command.
pub fn run() -> anyhow::Result<ExitCode> {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if error.use_stderr() => anyhow::bail!("{}", usage_line(&error)),
        Err(help) => {
            help.print()?;
            return Ok(ExitCode::SUCCESS);
        }
    };
    match cli.command {
        Command::Generate(args) => generate::run(&args),
        Command::Tokenize(args) => tokenize::run(&args),
        Command::Inspect(args) => inspect::run(&args),
        Command::Bench(args) => bench::run(&args),
        Command::Parity(args) => parity::run(&args),
        Command::Perplexity(args) => perplexity::run(&args),
    }
}

/// What is wrong with the command line, without the usage text around it.
fn usage_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let what: Vec<&str> = text.lines().take_while(|line| !line.starts_with("Usage:")).map(str::trim).collect();
    let what = what.join(" ");
    format!("{} (see `gemma --help`)", what.trim_start_matches("error: ").trim())
}
