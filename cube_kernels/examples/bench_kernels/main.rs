//! Times the kernels inside captured graphs, each over so many copies of its weights that no cache holds them.
//!
//! `bench_kernels` prints a table at the shapes of a 35-layer, 1536-wide model and the time of one whole token;
//! `--tune` tries many configurations per GEMV shape and prints the best of each; `--quick` is for a software device.

mod device;
mod token;
mod tune;

use device::Bench;

fn main() {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let has = |flag: &str| args.iter().any(|a| a == flag);
    if let Some(unknown) = args.iter().find(|a| !["--tune", "--quick"].contains(&a.as_str())) {
        eprintln!("unknown argument {unknown}; known: --tune --quick");
        std::process::exit(1);
    }
    let Some(bench) = Bench::open(has("--quick")) else {
        eprintln!("no device: build with --features cuda or vulkan");
        std::process::exit(1);
    };
    println!("{} {:?}", bench.client.name(), bench.caps);
    let best = tune::run(&bench, has("--tune"));
    token::run(&bench, &best);
}
