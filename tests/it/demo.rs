//! The model inside the program: it is there without being asked for, and it has learned English.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use gemma_burn::Dtype;
use gemma_burn::config::GemmaConfig;
use gemma_burn::parity::{Plain, Reference, Tolerance, run};
use gemma_burn::tokenizer::{SpecialTokens, Tokenizer};
use gemma_burn::weights::{LoadOptions, load};
use serde_json::Value;
use tempfile::TempDir;

use crate::support::{self, cpu, fixture, uncached};

/// What a trigram model scores on all of the held-out text, in nats per token (examples/train_tiny/README.md).
const TRIGRAM: f64 = 3.457;

/// Genesis 50:1 to 6, from a chapter that training did not see.
const HELD_OUT: &str = "\
And Joseph fell upon his father's face, and wept upon him, and kissed him.
And Joseph commanded his servants the physicians to embalm his father: and the physicians embalmed Israel.
And forty days were fulfilled for him; for so are fulfilled the days of those which are embalmed: and the Egyptians mourned for him threescore and ten days.
And when the days of his mourning were past, Joseph spake unto the house of Pharaoh, saying, If now I have found grace in your eyes, speak, I pray you, in the ears of Pharaoh, saying,
My father made me swear, saying, Lo, I die: in my grave which I have digged for me in the land of Canaan, there shalt thou bury me. Now therefore let me go up, I pray thee, and bury my father, and I will come again.
And Pharaoh said, Go up, and bury thy father, according as he made thee swear.";

fn folder() -> PathBuf {
    support::root().join("demo")
}

/// The command with a cache folder of its own.
fn gemma(cache: &TempDir, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_gemma"));
    command.env("XDG_CACHE_HOME", cache.path()).env("HOME", cache.path()).env("LOCALAPPDATA", cache.path());
    let output = command.args(args).output().expect("gemma runs");
    assert!(output.status.success(), "{args:?}: {}", String::from_utf8_lossy(&output.stderr));
    output
}

#[test]
fn commands_run_without_a_model_and_say_how_to_give_one() {
    let cache = TempDir::new().expect("a folder");
    let stdout = |output: Output| String::from_utf8(output.stdout).expect("UTF-8");
    let demo = folder().display().to_string();
    let generate = ["generate", "--device", "cpu", "--temperature", "0", "-n", "24", "-p", "And the LORD said"];
    let first = gemma(&cache, &generate);
    let stderr = String::from_utf8_lossy(&first.stderr);
    assert_eq!(stderr.lines().filter(|line| line.contains("--model")).count(), 1, "{stderr}");
    assert_eq!(stdout(first), stdout(gemma(&cache, &[&generate[..], &["--model", &demo]].concat())));
    let tokenize = ["tokenize", "In the beginning"];
    assert_eq!(stdout(gemma(&cache, &tokenize)), stdout(gemma(&cache, &[tokenize[0], "--model", &demo, tokenize[1]])));
    let inspect = stdout(gemma(&cache, &["inspect", "--json", "--device", "cpu"]));
    let inspect: Value = serde_json::from_str(&inspect).expect("one object");
    assert!(inspect["summary"]["parameters"].as_u64().is_some_and(|count| count > 3_000_000), "{inspect}");
    let bench = ["bench", "--device", "cpu", "--prompt-tokens", "8", "--gen-tokens", "4", "--json"];
    assert!(stdout(gemma(&cache, &bench)).contains("decode_tokens_per_second"));
}

#[test]
fn demo_predicts_text_that_it_has_not_seen() {
    let config = GemmaConfig::from_dir(folder()).expect("a config");
    let tokenizer = Tokenizer::from_dir(&folder(), config.vocab_size).expect("a tokenizer");
    let ids = tokenizer.encode_prompt(HELD_OUT, SpecialTokens::AsText).expect("ids");
    let options = LoadOptions { dtype: Some(Dtype::F32), ..Default::default() };
    let (model, _) = load(folder(), &cpu(), &options).expect("it loads");
    let losses = uncached(&model, &ids).into_iter().zip(&ids[1..]).map(|(logits, &next)| {
        let sum: f64 = logits.iter().map(|l| f64::from(*l).exp()).sum();
        sum.ln() - f64::from(logits[next as usize])
    });
    let mean = losses.sum::<f64>() / (ids.len() - 1) as f64;
    assert!(mean < TRIGRAM, "{mean} nats per token");
}

#[test]
fn transformers_computes_the_same() {
    let options = LoadOptions { dtype: Some(Dtype::F32), ..Default::default() };
    let (model, _) = load(folder(), &cpu(), &options).expect("it loads");
    let reference = Reference::open(&fixture("demo").join("reference")).expect("the demo has a dump");
    let report = run(&mut Plain::new(&model, &cpu()), &reference, &Tolerance::F32).expect("the dump fits the model");
    assert!(report.pass, "{:?} {:?}", report.first_divergent, report.summary);
    assert_eq!(report.summary.greedy_equal, report.summary.greedy_total);
}

#[test]
fn demo_is_small_enough_for_a_repository() {
    let size = |dir: &Path| -> u64 {
        let entries = std::fs::read_dir(dir).expect("a folder").map(|entry| entry.expect("an entry").metadata());
        entries.map(|m| m.expect("metadata")).filter(|m| m.is_file()).map(|m| m.len()).sum()
    };
    assert!(size(&folder()) < 8_000_000);
}
