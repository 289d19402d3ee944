//! A row of the parity table, as printed and as stored.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::shell::{commit, date};
use crate::tables::{Keyed, markdown};

/// A row of the table, as stored.
#[derive(Serialize, Deserialize, Clone)]
pub struct Row {
    date: String,
    commit: String,
    machine: String,
    model: String,
    pub device: String,
    dtype: String,
    path: String,
    kv_dtype: Option<String>,
    /// The largest max|Δ|/max over the compared tensors.
    worst: f64,
    logits_max_abs: f64,
    kl_mean: f64,
    argmax_agreement: f64,
    greedy_equal: u64,
    greedy_total: u64,
    pub result: String,
}

impl Keyed for Row {
    fn key(&self) -> Vec<String> {
        vec![self.model.clone(), self.device.clone(), self.path()].into_iter().chain([self.dtype.clone()]).collect()
    }
}

impl Row {
    /// What `gemma parity --json` printed.
    pub fn new(report: &Value, machine: &str) -> Result<Self> {
        let summary = &report["summary"];
        let text = |key: &'static str| report[key].as_str().with_context(|| format!("the report lacks `{key}`"));
        let number = |key: &'static str| summary[key].as_f64().with_context(|| format!("the summary lacks `{key}`"));
        let result = match report["first_divergent"].as_str() {
            _ if report["pass"] == true => "pass".to_owned(),
            Some(tensor) => format!("FAIL at {tensor}"),
            None => "FAIL".to_owned(),
        };
        Ok(Self {
            date: date()?,
            commit: commit()?,
            machine: machine.into(),
            model: Path::new(text("model")?).file_name().unwrap_or_default().to_string_lossy().into(),
            device: text("device")?.into(),
            dtype: text("dtype")?.into(),
            path: text("path")?.into(),
            kv_dtype: report["kv_dtype"].as_str().map(String::from),
            worst: number("max_rel")?,
            logits_max_abs: number("logits_max_abs")?,
            kl_mean: number("kl_mean")?,
            argmax_agreement: number("argmax_agreement")?,
            greedy_equal: number("greedy_equal")? as u64,
            greedy_total: number("greedy_total")? as u64,
            result,
        })
    }

    fn path(&self) -> String {
        path(&self.path, self.kv_dtype.as_deref())
    }

    /// When and of what, for a caption.
    pub fn stamp(&self) -> String {
        format!("{}, commit {}, {}", self.date, self.commit, self.machine)
    }
}

/// A path and, where it has a choice, the format of its cache.
pub fn path(path: &str, kv_dtype: Option<&str>) -> String {
    kv_dtype.map_or(path.to_owned(), |kv| format!("{path}, {kv} cache"))
}

pub const HEAD: [&str; 10] = [
    "model",
    "device",
    "dtype",
    "path",
    "worst tensor max\\|Δ\\|/max",
    "logits max\\|Δ\\|",
    "KL mean",
    "argmax equal",
    "greedy equal",
    "result",
];

/// One line of the table.
pub fn cells(row: &Row) -> [String; 10] {
    [
        row.model.clone(),
        row.device.clone(),
        row.dtype.clone(),
        row.path(),
        if row.path.starts_with("fused") { "–".into() } else { format!("{:.1e}", row.worst) },
        format!("{:.1e}", row.logits_max_abs),
        format!("{:.1e}", row.kl_mean),
        format!("{:.1} %", 100.0 * row.argmax_agreement),
        format!("{}/{}", row.greedy_equal, row.greedy_total),
        row.result.clone(),
    ]
}

/// The stored rows as a table, with a line for each device that nobody ran.
pub fn table(rows: &[Row]) -> String {
    let mut lines: Vec<_> = rows.iter().map(cells).collect();
    for device in ["cpu", "ndarray", "vulkan", "cuda", "rocm", "metal", "wgpu"] {
        if rows.iter().all(|row| row.device.split(':').next() != Some(device)) {
            let mut line = [(); 10].map(|()| "–".to_owned());
            line[1] = device.into();
            line[9] = "not yet run".into();
            lines.push(line);
        }
    }
    markdown(HEAD, &lines)
}

#[cfg(test)]
mod tests {
    use super::table;

    #[test]
    fn table_names_the_devices_that_nobody_ran() {
        assert_eq!(table(&[]).matches("not yet run").count(), 7);
    }
}
