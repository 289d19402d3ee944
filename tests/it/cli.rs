//! The command as a person uses it: what stands on stdout, what on stderr, and how it ends.

use std::fs;
use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;
use tempfile::TempDir;

use crate::support::fixture;

fn gemma(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_gemma")).args(args).output().expect("gemma runs")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).expect("UTF-8")
}

fn model() -> String {
    fixture("tiny-e2b").display().to_string()
}

/// Stdout of a run that must succeed.
pub fn good(args: &[&str]) -> String {
    let output = gemma(args);
    assert!(output.status.success(), "{args:?}: {}", text(&output.stderr));
    text(&output.stdout)
}

/// One line on stderr, nothing on stdout, exit code 1.
pub fn refused(args: &[&str], parts: &[&str]) {
    let output = gemma(args);
    let message = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1), "{args:?}: {message}");
    assert!(output.stdout.is_empty(), "{args:?} printed {}", text(&output.stdout));
    assert_eq!(message.lines().count(), 1, "{args:?}: `{message}` is not one line");
    for part in parts {
        assert!(message.contains(part), "{args:?}: `{message}` does not say {part}");
    }
}

fn generate(extra: &[&str]) -> Vec<String> {
    let model = model();
    let base = ["generate", "--model", &model, "--device", "cpu", "--prompt", "Hello, world!"];
    base.iter().chain(extra).map(|arg| (*arg).to_owned()).collect()
}

fn with(args: &[String]) -> Vec<&str> {
    args.iter().map(String::as_str).collect()
}

#[test]
fn generate_prints_text_on_stdout_and_times_on_stderr() {
    let output = gemma(&with(&generate(&["-n", "8", "--temperature", "0"])));
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json: Value = serde_json::from_str(&good(&with(&generate(&["-n", "8", "--temperature", "0", "--json"]))))
        .expect("one object");
    assert_eq!(text(&output.stdout), format!("{}\n", json["text"].as_str().expect("text")));
    let times = text(&output.stderr);
    assert!(["prefill", "tok/s", "first token", "decode"].iter().all(|part| times.contains(part)), "{times}");
    assert_eq!(json["finish_reason"], "length");
    assert_eq!(json["ids"].as_array().map(Vec::len), Some(8));
    assert_eq!(json["usage"]["completion_tokens"], 8);
    assert!(json["timing"]["prefill_ms"].as_f64().is_some_and(|ms| ms > 0.0));
}

#[test]
fn tokenize_prints_ids() {
    let model = model();
    let ids = good(&["tokenize", "--model", &model, "Hello"]);
    assert!(ids.split_whitespace().all(|id| id.parse::<u32>().is_ok()), "{ids}");
    let json: Value =
        serde_json::from_str(&good(&["tokenize", "--model", &model, "--json", "Hello"])).expect("one object");
    let listed: Vec<String> = json["ids"].as_array().expect("ids").iter().map(Value::to_string).collect();
    assert_eq!(listed.join(" "), ids.trim());
    assert_eq!(good(&["tokenize", "--model", &model, "--bos", "Hello"]).trim(), format!("2 {}", ids.trim()));
}

#[test]
fn inspect_accounts_for_every_parameter() {
    let json: Value = serde_json::from_str(&good(&["inspect", "--model", &model(), "--device", "cpu", "--json"]))
        .expect("one object");
    let layers = json["layers"].as_array().expect("layers");
    let in_layers: u64 = layers.iter().filter_map(|layer| layer["parameters"].as_u64()).sum();
    let all = json["summary"]["parameters"].as_u64().expect("a number");
    assert_eq!(layers.len(), 7);
    assert!(0 < in_layers && in_layers < all);
    assert!(good(&["inspect", "--model", &model(), "--device", "cpu"]).contains("of layer"));
}

#[test]
fn parity_says_whether_it_holds() {
    let reference = fixture("tiny-e2b").join("reference").display().to_string();
    let model = model();
    let args = ["parity", "--model", &model, "--reference", &reference, "--device", "cpu", "--dtype", "f32"];
    assert!(good(&args).contains("within every tolerance"));
    let json: Value = serde_json::from_str(&good(&[&args[..], &["--json"]].concat())).expect("one object");
    assert_eq!(json["pass"], true);
    let other = fixture("tiny-e4b").join("reference").display().to_string();
    let output = gemma(&["parity", "--model", &model, "--reference", &other, "--device", "cpu", "--dtype", "f32"]);
    assert_eq!(output.status.code(), Some(1));
}

/// A copy of the fixture in which one file may be changed.
fn copy() -> TempDir {
    let dir = TempDir::new().expect("a folder");
    for entry in fs::read_dir(fixture("tiny-e2b")).expect("a fixture") {
        let path = entry.expect("an entry").path();
        if path.is_file() {
            fs::copy(&path, dir.path().join(path.file_name().expect("a name"))).expect("copied");
        }
    }
    dir
}

fn refused_model(dir: &Path, parts: &[&str]) {
    let dir = dir.display().to_string();
    refused(&["generate", "--model", &dir, "--device", "cpu", "-p", "Hello", "-n", "2"], parts);
}

#[test]
fn bad_folders_get_one_line() {
    refused_model(Path::new("no/such/folder"), &["no/such/folder", "checkpoint folder"]);
    let empty = TempDir::new().expect("a folder");
    refused_model(empty.path(), &["config.json"]);
    let no_tokenizer = copy();
    fs::remove_file(no_tokenizer.path().join("tokenizer.json")).expect("removed");
    refused_model(no_tokenizer.path(), &["tokenizer.json"]);
    let no_weights = copy();
    fs::write(no_weights.path().join("model.safetensors"), b"").expect("written");
    refused_model(no_weights.path(), &["model.safetensors", "empty"]);
    let small = copy();
    let config = fs::read_to_string(small.path().join("config.json")).expect("a config");
    fs::write(small.path().join("config.json"), config.replace("640", "600")).expect("written");
    refused_model(small.path(), &["tokenizer.json", "600"]);
}

#[test]
fn bad_requests_get_one_line() {
    let model = model();
    #[cfg(not(feature = "demo"))]
    refused(&["generate", "-p", "Hello"], &["--model", "feature `demo`"]);
    refused(&["generate", "--model", &model, "--device", "cpu", "-p", ""], &["empty"]);
    refused(&["generate", "--model", &model, "--device", "abacus", "-p", "Hello"], &["abacus", "cuda"]);
    refused(&["generate", "--model", &model, "--device", "rocm", "-p", "Hello"], &["--features rocm"]);
    refused(&["generate", "--model", &model, "--device", "cpu:7", "-p", "Hello"], &["cpu:7"]);
    refused(&with(&generate(&["--context", "4"])), &["context is 4"]);
    refused(&with(&generate(&["--context", "99999"])), &["4096"]);
    refused(&with(&generate(&["--temperature", "-1"])), &["temperature"]);
    refused(&with(&generate(&["--dtype", "f8"])), &["f8", "bf16"]);
    refused(&["generate", "--max-tokens", "many"], &["many"]);
    refused(&["fly"], &["fly"]);
}
