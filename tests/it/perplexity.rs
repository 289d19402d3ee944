//! Perplexity: the numbers of transformers, and what cannot be scored.

use std::fs;

use gemma_burn::Error;
use gemma_burn::perplexity::{Windows, perplexity};
use gemma_burn::tokenizer::{SpecialTokens, Tokenizer};
use serde_json::Value;
use tempfile::TempDir;

use crate::cli::{good, refused};
use crate::support::{cpu, fixture, model};

/// Of the negative log likelihood; 0.1 % of the perplexity is 1e-3 nats.
const TOLERANCE: f64 = 1e-4;

fn reference() -> Value {
    let file = fixture("perplexity.json");
    serde_json::from_slice(&fs::read(file).expect("the fixture")).expect("JSON")
}

#[test]
fn strided_windows_give_what_transformers_gives() {
    let reference = reference();
    let text = reference["text"].as_str().expect("a text");
    for case in reference["cases"].as_array().expect("cases") {
        let name = case["model"].as_str().expect("a model");
        let model = model(name);
        let tokenizer = Tokenizer::from_dir(&fixture(name), model.config().vocab_size).expect("a tokenizer");
        let ids = tokenizer.encode(text, SpecialTokens::AsText).expect("ids");
        let count = |key: &str| case[key].as_u64().map(|n| n as usize);
        let windows = Windows::new(count("window"), count("stride"), model.config().max_positions).expect("they fit");
        let seen = std::cell::Cell::new(0);
        let got =
            perplexity(&model, &cpu(), tokenizer.bos_id(), &ids, windows, &|done| seen.set(done)).expect("scored");
        assert_eq!((Some(got.tokens), seen.get()), (count("tokens"), ids.len()), "{case}");
        let want = case["nll"].as_f64().expect("a number");
        assert!((got.nll - want).abs() < TOLERANCE, "{case}: {}", got.nll);
        let want = case["perplexity"].as_f64().expect("a number");
        assert!((got.perplexity / want - 1.0).abs() < 1e-3, "{case}: {}", got.perplexity);
    }
}

#[test]
fn the_command_reports_the_same_numbers() {
    let reference = reference();
    let case = &reference["cases"][0];
    let dir = TempDir::new().expect("a folder");
    let file = dir.path().join("text.txt");
    fs::write(&file, reference["text"].as_str().expect("a text")).expect("written");
    let (model, file) = (fixture("tiny-e2b").display().to_string(), file.display().to_string());
    let base = ["perplexity", "--model", &model, "--file", &file, "--device", "cpu", "--window", "32"];
    let json: Value = serde_json::from_str(&good(&[&base[..], &["--json"]].concat())).expect("one object");
    assert_eq!(
        (&json["tokens"], &json["stride"], &json["window"]),
        (&case["tokens"], &case["stride"], &case["window"])
    );
    let (got, want) = (json["nll"].as_f64().expect("a number"), case["nll"].as_f64().expect("a number"));
    assert!((got - want).abs() < TOLERANCE, "{got} {want}");
    assert!(good(&base).contains(&format!("{want:.2}")), "the mean stands in the text as well");
}

#[test]
fn what_cannot_be_scored_gets_one_line() {
    let dir = TempDir::new().expect("a folder");
    let write = |name: &str, bytes: &[u8]| {
        let file = dir.path().join(name);
        fs::write(&file, bytes).expect("written");
        file.display().to_string()
    };
    let (text, empty, latin) = (write("text", b"Hello"), write("empty", b""), write("latin", b"caf\xe9 au lait"));
    let model = fixture("tiny-e2b").display().to_string();
    let run = |file: &str, extra: &[&str], parts: &[&str]| {
        let base = ["perplexity", "--model", &model, "--device", "cpu", "--file", file];
        refused(&[&base[..], extra].concat(), parts);
    };
    run("no/such/file", &[], &["no/such/file", "--file"]);
    run(&empty, &[], &[&empty, "empty"]);
    run(&latin, &[], &["UTF-8", "byte 3"]);
    run(&text, &["--window", "4097"], &["4097", "4096"]);
    run(&text, &["--window", "0"], &["--window"]);
    run(&text, &["--stride", "0"], &["--stride"]);
    run(&text, &["--window", "8", "--stride", "9"], &["--stride", "9", "8"]);
}

#[test]
fn tokens_that_the_model_does_not_know_are_refused() {
    let model = model("tiny-e2b");
    let windows = Windows::new(None, None, model.config().max_positions).expect("defaults fit");
    for ids in [&[][..], &[2, 640]] {
        let error = perplexity(&model, &cpu(), 2, ids, windows, &|_| ()).expect_err("impossible");
        assert!(matches!(error, Error::Request(_)), "{error}");
    }
}
