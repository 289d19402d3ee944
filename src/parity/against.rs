//! Two ways to run one model against each other, without a dump.

use super::{
    Array, PromptResult, Report, Subject, Tolerance, agreement, argmax, compare_one, margin, mean_kl, summarize,
};
use crate::{Error, Result};

/// Compares `subject` with `truth` over a prompt, then over `steps` tokens that `truth` prefers, fed to both.
///
/// # Errors
/// A run that fails, or ways of which one shows no logits.
pub fn run_against(
    subject: &mut dyn Subject,
    truth: &mut dyn Subject,
    ids: &[u32],
    steps: usize,
    tolerance: &Tolerance,
) -> Result<Report> {
    let wanted = ["logits".to_owned()];
    let logits = |way: &mut dyn Subject| {
        let shown = way.prompt(ids, &wanted)?.remove(&wanted[0]);
        shown.ok_or_else(|| Error::Request("parity needs a path that shows logits".into()))
    };
    let (got, want) = (logits(subject)?, logits(truth)?);
    let (equal, sound) = agreement(&got, &want, tolerance.decided);
    let mut result = PromptResult {
        name: format!("{} tokens", ids.len()),
        tensors: vec![compare_one("prompt", "logits", &got, &want, tolerance)?],
        argmax_agreement: equal as f64 / ids.len() as f64,
        kl_mean: mean_kl(&got, &want),
        greedy_equal: 0,
        greedy_total: steps,
        pass: sound,
    };

    let mut row = want.rows().last().expect("a prompt has tokens").to_vec();
    let empty = || Array { width: want.width, values: vec![] };
    let (mut got, mut want) = (empty(), empty());
    for _ in 0..steps {
        let token = argmax(&row) as u32;
        row = truth.step(token)?;
        let other = subject.step(token)?;
        let same = argmax(&row) == argmax(&other);
        result.greedy_equal += usize::from(same);
        result.pass &= same || margin(&row) < tolerance.decided;
        got.values.extend(other);
        want.values.extend(&row);
    }
    if steps > 0 {
        result.tensors.push(compare_one("steps", "greedy_logits", &got, &want, tolerance)?);
        result.kl_mean = result.kl_mean.max(mean_kl(&got, &want));
    }
    result.pass &= result.kl_mean <= tolerance.kl_mean && result.tensors.iter().all(|t| t.pass);
    let first_divergent = result.tensors.iter().find(|t| !t.pass).map(|t| format!("{}.{}", result.name, t.name));
    let prompts = vec![result];
    let summary = summarize(&prompts);
    Ok(Report { pass: prompts[0].pass, first_divergent, not_shown: 0, prompts, summary })
}
