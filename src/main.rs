//! The `gemma` command.

mod cli;

use std::process::ExitCode;

fn main() -> ExitCode {
    cli::logging::init();
    match cli::run() {
        Ok(_) if cli::logging::task_failed() => {
            eprintln!(
                "gemma: a computation on the device failed (see the log above); its results are not to be trusted"
            );
            ExitCode::FAILURE
        }
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
