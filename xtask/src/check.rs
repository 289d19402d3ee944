//! All of CI, the same for a newcomer and for the machine that guards the main branch.

use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use crate::gemma::Gemma;
use crate::shell::{cargo, llvm, run as sh, runnable_features};
use crate::{examples, parity, readme, rules};

#[derive(clap::Args)]
pub struct Args {
    /// Instead: compile every feature alone (each recompiles much of Burn)
    #[arg(long)]
    each_feature: bool,
}

/// The software GPU that `.ci/run` prepares.
const CI_GPU: &str = "wgpu";

/// Each alone must compile, so that a user may choose any of them.
const FEATURES: [&str; 8] = ["flex", "ndarray", "cuda", "rocm", "metal", "vulkan", "wgpu", "cpu"];

pub fn run(args: &Args) -> Result<()> {
    let mut steps = Steps(Vec::new());
    if args.each_feature {
        steps.run("llvm", llvm)?;
        for feature in FEATURES {
            let check = ["check", "-p", "gemma-burn", "--all-targets", "--no-default-features", "--features", feature];
            steps.run(feature, || sh(cargo(&check)))?;
        }
        steps.print();
        return Ok(());
    }

    steps.run("rules", rules::run)?;
    steps.run("format", || sh(cargo(&["fmt", "--all", "--check"])))?;
    steps.run("llvm", llvm)?;
    steps.run("clippy", || {
        sh(cargo(&["clippy", "--workspace", "--all-targets", "--all-features", "--", "-D", "warnings"]))
    })?;
    steps.run("docs", || {
        let mut docs = cargo(&["doc", "--workspace", "--no-deps", "--lib", "--all-features"]);
        docs.env("RUSTDOCFLAGS", "-D warnings");
        sh(docs)
    })?;
    let gemma = steps.run("build", || Gemma::build(runnable_features(), false))?;
    steps.run("readme", || readme::check(&gemma))?;
    steps.run("parity", || parity::check(&gemma, on_ci().then_some(CI_GPU)))?;
    steps.run("examples", examples::run)?;

    // Last, so that the output ends with cargo's own count of what passed; its time stands in those lines.
    steps.print();
    let mut tests = cargo(&["test", "--workspace", "--features", runnable_features()]);
    if on_ci() {
        // A kernel test that finds no device says so and passes; where CI prepared the device it must run.
        tests.env(rules::REQUIRE_DEVICE, CI_GPU);
    }
    sh(tests)
}

fn on_ci() -> bool {
    std::env::var("CI").is_ok_and(|ci| ci == "true")
}

/// Named steps and what each took.
struct Steps(Vec<(String, Duration)>);

impl Steps {
    fn run<T>(&mut self, name: &str, step: impl FnOnce() -> Result<T>) -> Result<T> {
        eprintln!("== {name}");
        let start = Instant::now();
        let result = step().with_context(|| format!("step `{name}`"))?;
        eprintln!("== {name}: ok, {:.1} s", start.elapsed().as_secs_f64());
        self.0.push((name.to_owned(), start.elapsed()));
        Ok(result)
    }

    fn print(&self) {
        let times: Vec<String> = self.0.iter().map(|(name, t)| format!("{name} {:.0} s", t.as_secs_f64())).collect();
        let total: Duration = self.0.iter().map(|step| step.1).sum();
        eprintln!("== so far: {} (together {:.0} s)", times.join(", "), total.as_secs_f64());
    }
}
