//! Figures that are known of the real E2B checkpoint, for whoever has it.

use burn::tensor::Device;
use serde::Deserialize;

use super::{Plain, Subject, argmax};
use crate::Result;
use crate::model::Gemma;
use crate::tokenizer::{SpecialTokens, Tokenizer};

const FIGURES: &str = include_str!("founding.json");
/// Tokens decoded to see how a continuation begins.
const GREEDY_TOKENS: usize = 4;

#[derive(Deserialize)]
struct Figures {
    model: String,
    top5: Vec<Ids>,
    encodings: Vec<Ids>,
    greedy: Vec<Greedy>,
}

#[derive(Deserialize)]
struct Ids {
    text: String,
    ids: Vec<u32>,
}

#[derive(Deserialize)]
struct Greedy {
    text: String,
    begins: String,
}

/// One known figure and what was found in its place.
#[derive(Debug, Clone, serde::Serialize)]
pub struct FoundingCheck {
    pub what: String,
    pub expected: String,
    pub got: String,
    pub pass: bool,
}

impl FoundingCheck {
    fn new(what: String, expected: String, got: String, pass: bool) -> Self {
        Self { what, expected, got, pass }
    }
}

/// Compares a model and its tokenizer with the known figures of `google/gemma-4-E2B`.
///
/// # Errors
/// A run that fails; figures that differ are in the result.
pub fn check_founding(model: &Gemma, tokenizer: &Tokenizer, device: &Device) -> Result<Vec<FoundingCheck>> {
    let figures: Figures = serde_json::from_str(FIGURES).expect("the figures are part of this crate");
    let mut checks = Vec::new();
    for Ids { text, ids } in &figures.encodings {
        let got = tokenizer.encode(text, SpecialTokens::AsText)?;
        let pass = got == *ids;
        checks.push(FoundingCheck::new(format!("ids of {text:?}"), format!("{ids:?}"), format!("{got:?}"), pass));
    }
    let mut subject = Plain::new(model, device);
    for Ids { text, ids } in &figures.top5 {
        let prompt = tokenizer.encode(text, SpecialTokens::AsText)?;
        let logits = last_logits(&mut subject, &prompt)?;
        let mut order: Vec<u32> = (0..logits.len() as u32).collect();
        order.sort_by(|&a, &b| logits[b as usize].total_cmp(&logits[a as usize]));
        order.truncate(ids.len());
        let what = format!("{}: best ids after {text:?} without <bos>", figures.model);
        let pass = order == *ids;
        checks.push(FoundingCheck::new(what, format!("{ids:?}"), format!("{order:?}"), pass));
    }
    for Greedy { text, begins } in &figures.greedy {
        let prompt = tokenizer.encode_prompt(text, SpecialTokens::AsText)?;
        let mut next = argmax(&last_logits(&mut subject, &prompt)?) as u32;
        let mut ids = vec![next];
        while ids.len() < GREEDY_TOKENS {
            next = argmax(&subject.step(next)?) as u32;
            ids.push(next);
        }
        let got = tokenizer.decode(&ids, false)?;
        let pass = got.starts_with(begins.as_str());
        checks.push(FoundingCheck::new(
            format!("greedy after {text:?}"),
            format!("{begins:?}…"),
            format!("{got:?}"),
            pass,
        ));
    }
    Ok(checks)
}

fn last_logits(subject: &mut Plain, prompt: &[u32]) -> Result<Vec<f32>> {
    let shown = subject.prompt(prompt, &["logits".to_owned()])?;
    let logits = shown.get("logits").expect("the plain path shows logits");
    Ok(logits.rows().last().expect("a prompt has tokens").to_vec())
}
