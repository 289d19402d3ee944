//! The comparison as text.

use std::fmt::Write;

use super::Report;

/// One line per compared tensor and prompt, and the verdict.
pub fn table(report: &Report) -> String {
    let mut out = String::new();
    let mut line = |prompt: &str, tensor: &str, abs: f64, rel: f64, rms: f64, verdict: &str| {
        let _ = writeln!(out, "{prompt:<16} {tensor:<16} {abs:>10.2e} {rel:>10.2e} {rms:>10.2e}  {verdict}");
    };
    for prompt in &report.prompts {
        for t in &prompt.tensors {
            let verdict = if t.pass { "ok".to_owned() } else { format!("FAIL ({})", t.limit) };
            line(&prompt.name, &t.name, t.max_abs, t.max_rel, t.rms, &verdict);
        }
    }
    let head = format!("{:<16} {:<16} {:>10} {:>10} {:>10}\n", "prompt", "tensor", "max|d|", "max|d|/max", "rms ratio");
    let mut out = head + &out;
    for p in &report.prompts {
        let verdict = if p.pass { "ok" } else { "FAIL" };
        let (best, kl) = (100.0 * p.argmax_agreement, p.kl_mean);
        let (equal, total) = (p.greedy_equal, p.greedy_total);
        let _ = writeln!(
            out,
            "{:<16} best token equal {best:.1} %, KL {kl:.1e}, greedy {equal}/{total}  {verdict}",
            p.name
        );
    }
    if report.not_shown > 0 {
        let _ = writeln!(out, "{} tensors of the dump are not visible on this path", report.not_shown);
    }
    match &report.first_divergent {
        Some(name) => writeln!(out, "first tensor that diverges: {name}"),
        None if report.pass => writeln!(out, "within every tolerance"),
        None => writeln!(out, "tensors agree, but best tokens or distributions do not"),
    }
    .expect("writing to a string");
    out
}
