//! Agreement with reference logits: every tensor of a dump, then greedy decoding with the cache.

mod against;
mod compare;
mod founding;
#[cfg(feature = "cube")]
mod fused;
mod reference;
mod subject;
mod table;
mod tolerance;

use std::collections::BTreeMap;

use burn::tensor::{DType, Tensor};
use serde::Serialize;

pub use against::run_against;
pub use compare::{Difference, agreement, argmax, difference, kl_divergence, margin, mean_kl};
pub use founding::{FoundingCheck, check_founding};
pub use reference::{Prompt, Reference};
pub use subject::{Plain, Subject};
pub use table::table;
pub use tolerance::Tolerance;

use crate::{Error, Result};

/// Rows of equal width.
#[derive(Debug, Clone, PartialEq)]
pub struct Array {
    pub width: usize,
    pub values: Vec<f32>,
}

impl Array {
    /// The tensor's values as f32, one row per position.
    pub fn from_tensor(x: &Tensor<3>) -> Result<Self> {
        let width = x.dims()[2];
        let data = x.clone().cast(DType::F32).into_data();
        let values =
            data.try_to_vec().map_err(|e| Error::NonFinite(format!("activations could not be read: {e:?}")))?;
        Ok(Self { width, values })
    }

    /// The rows in order.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.values.chunks_exact(self.width)
    }

    fn select(&self, rows: &[usize]) -> Self {
        let values = rows.iter().flat_map(|&r| &self.values[r * self.width..(r + 1) * self.width]).copied().collect();
        Self { width: self.width, values }
    }
}

/// One compared tensor.
#[derive(Debug, Clone, Serialize)]
pub struct TensorResult {
    pub name: String,
    pub max_abs: f64,
    pub max_rel: f64,
    pub rms: f64,
    /// What it was held against, in words.
    pub limit: String,
    pub pass: bool,
}

/// One prompt.
#[derive(Debug, Clone, Serialize)]
pub struct PromptResult {
    pub name: String,
    pub tensors: Vec<TensorResult>,
    pub argmax_agreement: f64,
    pub kl_mean: f64,
    pub greedy_equal: usize,
    pub greedy_total: usize,
    pub pass: bool,
}

/// The worst of all prompts.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Summary {
    pub max_rel: f64,
    pub logits_max_abs: f64,
    pub logits_rms: f64,
    pub kl_mean: f64,
    pub argmax_agreement: f64,
    pub greedy_equal: usize,
    pub greedy_total: usize,
}

/// A whole comparison.
#[derive(Debug, Clone, Serialize)]
pub struct Report {
    pub pass: bool,
    /// `prompt.tensor` of the first tensor, in the order of the forward pass, that is out of tolerance.
    pub first_divergent: Option<String>,
    /// Tensors in the dump that this path cannot show.
    pub not_shown: usize,
    pub prompts: Vec<PromptResult>,
    pub summary: Summary,
}

/// Compares `subject` with every prompt of a dump.
///
/// # Errors
/// A dump that does not fit the model (other widths, a tensor that no path knows), or a run that fails.
pub fn run(subject: &mut dyn Subject, reference: &Reference, tolerance: &Tolerance) -> Result<Report> {
    let mut prompts = Vec::new();
    let mut not_shown = 0;
    for (name, prompt) in &reference.prompts {
        let (result, hidden) = run_prompt(subject, reference, name, prompt, tolerance)?;
        prompts.push(result);
        not_shown += hidden;
    }
    let first_divergent =
        prompts.iter().find_map(|p| p.tensors.iter().find(|t| !t.pass).map(|t| format!("{}.{}", p.name, t.name)));
    let summary = summarize(&prompts);
    Ok(Report { pass: prompts.iter().all(|p| p.pass), first_divergent, not_shown, prompts, summary })
}

const LOGITS: &str = "logits";
const GREEDY: &str = "greedy_logits";
const POSITIONS: &str = "logit_positions";

fn run_prompt(
    subject: &mut dyn Subject,
    reference: &Reference,
    name: &str,
    prompt: &Prompt,
    tolerance: &Tolerance,
) -> Result<(PromptResult, usize)> {
    let held = reference.tensors_of(name)?;
    let has = |tensor: &str| held.iter().any(|h| h == tensor);
    let shown = subject.prompt(&prompt.ids, &held)?;
    let positions: Option<Vec<usize>> = match has(POSITIONS) {
        true => Some(reference.tensor(name, POSITIONS)?.values.iter().map(|&p| p as usize).collect()),
        false => None,
    };

    let mut result = PromptResult {
        name: name.to_owned(),
        tensors: vec![],
        argmax_agreement: 1.0,
        kl_mean: 0.0,
        greedy_equal: 0,
        greedy_total: prompt.greedy.len(),
        pass: true,
    };
    let mut not_shown = 0;
    for tensor in held.iter().filter(|t| !t.ends_with(POSITIONS) && *t != GREEDY) {
        let Some(got) = shown.get(tensor.strip_prefix("batch.").unwrap_or(tensor)) else {
            not_shown += 1;
            continue;
        };
        let want = reference.tensor(name, tensor)?;
        let is_logits = tensor.ends_with(LOGITS);
        let got = match &positions {
            Some(rows) if is_logits => &got.select(rows),
            _ => got,
        };
        result.tensors.push(compare_one(name, tensor, got, &want, tolerance)?);
        if tensor == LOGITS {
            let (equal, sound) = agreement(got, &want, tolerance.decided);
            result.argmax_agreement = equal as f64 / got.rows().count() as f64;
            result.kl_mean = mean_kl(got, &want);
            result.pass &= sound && result.kl_mean <= tolerance.kl_mean;
        }
    }
    if has(GREEDY) {
        decode(subject, reference, name, prompt, tolerance, &shown, &mut result)?;
    }
    result.pass &= !result.tensors.is_empty() && result.tensors.iter().all(|t| t.pass);
    Ok((result, not_shown))
}

/// Feeds the reference's own tokens one by one through the cache and compares what follows each.
fn decode(
    subject: &mut dyn Subject,
    reference: &Reference,
    name: &str,
    prompt: &Prompt,
    tolerance: &Tolerance,
    shown: &BTreeMap<String, Array>,
    result: &mut PromptResult,
) -> Result<()> {
    let want = reference.tensor(name, GREEDY)?;
    let last = shown.get(LOGITS).and_then(|logits| logits.rows().last()).map(<[f32]>::to_vec);
    let mut row = last.ok_or_else(|| Error::Request("parity needs a path that shows logits".into()))?;
    let mut got = Array { width: row.len(), values: vec![] };
    for (i, (&token, &margin)) in prompt.greedy.iter().zip(&prompt.greedy_margins).enumerate() {
        let same = argmax(&row) == token as usize;
        result.greedy_equal += usize::from(same);
        result.pass &= same || margin < tolerance.decided;
        got.values.extend(&row);
        if i + 1 < prompt.greedy.len() {
            row = subject.step(token)?;
        }
    }
    got.values.truncate(want.values.len());
    result.tensors.push(compare_one(name, GREEDY, &got, &want, tolerance)?);
    Ok(())
}

fn compare_one(prompt: &str, tensor: &str, got: &Array, want: &Array, tolerance: &Tolerance) -> Result<TensorResult> {
    if got.width != want.width || got.values.len() != want.values.len() {
        let shape = |a: &Array| format!("{} x {}", a.values.len() / a.width.max(1), a.width);
        let message =
            format!("{prompt}.{tensor} is {} in the dump, {} here: another model's dump", shape(want), shape(got));
        return Err(Error::Request(message));
    }
    let Difference { max_abs, max_rel, rms } = difference(&got.values, &want.values);
    let rms_limit = match tensor {
        t if t.ends_with(LOGITS) => tolerance.logits_rms,
        "hidden.0" => tolerance.first_hidden_rms,
        _ => tolerance.hidden_rms,
    };
    let mut limits = vec![(rms, rms_limit, "rms")];
    match tensor.ends_with(LOGITS) {
        true => limits.extend(tolerance.logits_max_abs.map(|limit| (max_abs, limit, "max"))),
        false => limits.extend(tolerance.tensor_max_rel.map(|limit| (max_rel, limit, "max/max"))),
    }
    // Written so that NaN fails.
    let pass = limits.iter().all(|(value, limit, _)| value <= limit);
    let limit = limits.iter().map(|(_, limit, kind)| format!("{kind} {limit:.1e}")).collect::<Vec<_>>().join(", ");
    Ok(TensorResult { name: tensor.to_owned(), max_abs, max_rel, rms, limit, pass })
}

fn summarize(prompts: &[PromptResult]) -> Summary {
    let tensors = || prompts.iter().flat_map(|p| &p.tensors);
    let logits = || tensors().filter(|t| t.name.ends_with(LOGITS));
    // f64::max would hide NaN.
    let worst = |values: &mut dyn Iterator<Item = f64>| {
        values.fold(0.0, |a: f64, b| if a.is_nan() || b.is_nan() { f64::NAN } else { a.max(b) })
    };
    Summary {
        max_rel: worst(&mut tensors().filter(|t| !t.name.ends_with(LOGITS)).map(|t| t.max_rel)),
        logits_max_abs: worst(&mut logits().map(|t| t.max_abs)),
        logits_rms: worst(&mut logits().map(|t| t.rms)),
        kl_mean: worst(&mut prompts.iter().map(|p| p.kl_mean)),
        argmax_agreement: prompts.iter().map(|p| p.argmax_agreement).fold(1.0, f64::min),
        greedy_equal: prompts.iter().map(|p| p.greedy_equal).sum(),
        greedy_total: prompts.iter().map(|p| p.greedy_total).sum(),
    }
}
