//! Times the kernels inside captured graphs, each over so many copies of its weights that no cache holds them.
//!
//! `bench_kernels` prints a table at the shapes of a 35-layer, 1536-wide model and the time of one whole token;
//! `--tune=SECONDS` tries configurations of each GEMV shape for so long and prints the best ones; `--quick` is for a
//! software device.

#![allow(clippy::style, clippy::complexity, reason = "kernel bodies are CubeCL's language")]

mod device;
mod token;
mod tune;

use device::Bench;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let (mut quick, mut tune_seconds) = (false, 0.0);
    for arg in &args {
        match (arg.as_str(), arg.strip_prefix("--tune=").and_then(|s| s.parse().ok())) {
            ("--quick", _) => quick = true,
            (_, Some(seconds)) => tune_seconds = seconds,
            _ => {
                eprintln!("unknown argument {arg}; known: --tune=SECONDS --quick");
                std::process::exit(1);
            }
        }
    }
    let Some(bench) = Bench::open(quick) else {
        eprintln!("no device: build with --features cuda or vulkan");
        std::process::exit(1);
    };
    println!("{} {:?}", bench.client.name(), bench.caps);
    let best = tune::run(&bench, tune_seconds);
    token::run(&bench, &best);
}
