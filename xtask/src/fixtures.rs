//! Remakes tests/fixtures and the demo's dump with the Python scripts in xtask/reference.

use std::path::Path;

use anyhow::{Result, bail};

use crate::shell::{command, output, root, run as sh};

#[derive(clap::Args)]
pub struct Args {
    /// Write nothing; fail if what the scripts make now is different
    #[arg(long)]
    check: bool,
    /// A Python that has xtask/reference/requirements.txt
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: String,
}

const FOLDER: &str = "tests/fixtures";
/// Profile of checkpoint.py, which is also the folder's name, and the number of files its weights are split into.
const FIXTURES: [(&str, &str); 3] = [("tiny-e2b", "1"), ("tiny-e4b", "2"), ("tiny-31b", "1")];
/// Logits of every prompt, every tensor of two, and of the longest what shows a wrong window: small, yet enough to
/// name the first step that goes wrong.
const DUMP: [&str; 12] = [
    "--new-tokens",
    "24",
    "--prompts",
    "hello",
    "chat",
    "one",
    "window",
    "three_windows",
    "--taps",
    "hello",
    "window",
    "three_windows:hidden,attn",
];

/// The trained model: what transformers makes of it, in few prompts.
const DEMO: [&str; 2] = ["demo", "tests/fixtures/demo/reference"];
const DEMO_DUMP: [&str; 7] = ["--new-tokens", "24", "--prompts", "hello", "window_plus_1", "--taps", "hello"];

pub fn run(args: &Args) -> Result<()> {
    let have = command(&args.python, &["-c", "import numpy, peft, tokenizers, torch, transformers"]);
    if let Err(error) = output(have) {
        bail!(
            "{error}\n{0} lacks what the scripts need: {0} -m pip install -r xtask/reference/requirements.txt",
            args.python
        );
    }
    let made = std::env::temp_dir().join(format!("gemma-fixtures-{}", std::process::id()));
    let result = remake(args, &if args.check { made.clone() } else { root().join(FOLDER) });
    if made.exists() {
        std::fs::remove_dir_all(made)?;
    }
    result
}

fn remake(args: &Args, into: &Path) -> Result<()> {
    let script = |name: &str, rest: &[&str]| {
        let script = format!("xtask/reference/{name}.py");
        sh(command(&args.python, &[&[script.as_str()], rest].concat()))
    };
    let check: &[&str] = if args.check { &["--check"] } else { &[] };
    for (profile, shards) in FIXTURES {
        let checkpoint = into.join(profile);
        script("checkpoint", &[profile, &checkpoint.to_string_lossy(), "--shards", shards])?;
        let stored = root().join(FOLDER).join(profile);
        let reference = stored.join("reference");
        let mut dump = vec![checkpoint.to_string_lossy(), reference.to_string_lossy()];
        dump.extend(DUMP.iter().chain(check).map(|arg| (*arg).into()));
        if args.check {
            same_files(&checkpoint, &stored)?;
        }
        script("dump", &dump.iter().map(AsRef::as_ref).collect::<Vec<_>>())?;
    }
    script("dump", &[&DEMO, &DEMO_DUMP[..], check].concat())?;
    let cases = into.join("tokenizer_cases.json");
    script("tokenizer_cases", &[&into.join("tiny-e2b/tokenizer.json").to_string_lossy(), &cases.to_string_lossy()])?;
    for (name, stored) in [("perplexity", "perplexity.json"), ("lora", "lora")] {
        let stored = root().join(FOLDER).join(stored);
        script(name, &[&[stored.to_string_lossy().as_ref()], check].concat())?;
    }
    if args.check {
        same_files(into, &root().join(FOLDER))?;
        println!("{FOLDER} is what the scripts make");
    }
    Ok(())
}

/// Compares the files directly in `made` with those of the same names in `stored`.
fn same_files(made: &Path, stored: &Path) -> Result<()> {
    for entry in std::fs::read_dir(made)? {
        let entry = entry?;
        let other = stored.join(entry.file_name());
        if entry.file_type()?.is_file() && std::fs::read(&other).ok() != Some(std::fs::read(entry.path())?) {
            bail!("{} is not what the scripts make; run `cargo xtask fixtures`", other.display());
        }
    }
    Ok(())
}
