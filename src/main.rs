//! The `gemma` command.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    let filter = tracing_subscriber::EnvFilter::try_from_env("GEMMA_LOG").unwrap_or_else(|_| "warn".into());
    tracing_subscriber::fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
    match cli::run() {
        Ok(code) => code,
        Err(error) => {
            eprintln!("gemma: {}", one_line(&error));
            ExitCode::FAILURE
        }
    }
}

/// The error and its causes on one line.
fn one_line(error: &anyhow::Error) -> String {
    format!("{error:#}").lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
