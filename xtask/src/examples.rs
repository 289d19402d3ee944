//! Runs the examples on the CPU, so that what they say in their first lines stays true.

use anyhow::{Context, Result};

use crate::shell::{cargo, command, run as sh, runnable_features, target_dir};

/// Examples with arguments that keep them short. `OUT` stands for a folder that is removed afterwards.
const EXAMPLES: [(&str, &[&str]); 4] = [
    ("in_a_burn_app", &["--steps", "2"]),
    ("custom_sampler", &["-n", "8"]),
    ("stream_chat", &["-n", "8", "Why is the sky blue?", "And at night?"]),
    ("finetune_lora", &["--file", "LICENSE-MIT", "--steps", "2", "--out", "OUT"]),
];

pub fn run() -> Result<()> {
    // Tests are built along for the reason that `Gemma::build` gives.
    let what = ["build", "--workspace", "--bins", "--tests", "--examples", "--features", runnable_features()];
    sh(cargo(&what))?;
    let built = target_dir()?.join("debug/examples");
    let out = std::env::temp_dir().join(format!("gemma-examples-{}", std::process::id()));
    let out_name = out.to_string_lossy();
    for (name, args) in EXAMPLES {
        let args = args.iter().map(|&arg| if arg == "OUT" { out_name.as_ref() } else { arg });
        let args: Vec<&str> = ["--device", "cpu"].into_iter().chain(args).collect();
        sh(command(&built.join(name).to_string_lossy(), &args)).with_context(|| format!("example {name}"))?;
    }
    std::fs::remove_dir_all(&out).with_context(|| format!("finetune_lora left no {}", out.display()))
}
