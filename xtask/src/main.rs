//! The project's chores: `cargo xtask check` is all of CI; `cargo xtask help` lists the rest.

mod bench;
mod check;
mod examples;
mod fixtures;
mod gemma;
mod parity;
mod readme;
mod rules;
mod shell;
mod tables;

use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(name = "cargo xtask", about = "The chores of gemma-burn")]
struct Cli {
    #[command(subcommand)]
    task: Task,
}

#[derive(Subcommand)]
enum Task {
    /// Everything CI asks for: rules, format, lints, docs, parity, tests
    Check(check::Args),
    /// Compare the model with the reference on every fixture and device, as one table
    Parity(parity::Args),
    /// Measure with `gemma bench`
    Bench(bench::Args),
    /// Remake the fixtures with the scripts in xtask/reference
    Fixtures(fixtures::Args),
    /// Write the README's tables and command-line help
    Readme(readme::Args),
    /// Get the LLVM that the features cuda, rocm and cpu need, where CubeCL's own download is out of reach
    Llvm,
}

fn main() -> std::process::ExitCode {
    let done = match Cli::parse().task {
        Task::Check(args) => check::run(&args),
        Task::Parity(args) => parity::run(&args),
        Task::Bench(args) => bench::run(&args),
        Task::Fixtures(args) => fixtures::run(&args),
        Task::Readme(args) => readme::run(&args),
        Task::Llvm => shell::llvm(),
    };
    match done {
        Ok(()) => std::process::ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            std::process::ExitCode::FAILURE
        }
    }
}
