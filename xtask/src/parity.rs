//! Runs `gemma parity` for every fixture and device and shows one table.

use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::gemma::{self, Gemma, user_path};
use crate::shell::{commit, date, processor, run as sh};
use crate::tables::{Keyed, markdown, store};

#[derive(clap::Args)]
pub struct Args {
    /// Only this device, which must be there (may be given several times) [default: cpu, ndarray and vulkan, those present]
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// A checkpoint instead of the fixtures: compared with its folder `reference` if it has one, else with what is
    /// known of google/gemma-4-E2B
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Store the rows in xtask/tables/parity.json, for the README
    #[arg(long)]
    write: bool,
    #[command(flatten)]
    gemma: gemma::Args,
}

const FIXTURES: [&str; 3] = ["tests/fixtures/tiny-e2b", "tests/fixtures/tiny-e4b", "tests/fixtures/tiny-31b"];
pub const TABLE: &str = "parity.json";

/// One way to run the model.
#[derive(Clone)]
struct Case {
    device: String,
    dtype: &'static str,
    path: &'static str,
    kv_dtype: Option<&'static str>,
}

/// What a device is asked to run. The fused path computes in f32 on every device.
fn cases(device: &str) -> Vec<Case> {
    let ways: &[(&str, &str, Option<&str>)] = match device.split(':').next().unwrap_or_default() {
        "cpu" => &[("f32", "plain", None), ("bf16", "plain", None)],
        "ndarray" | "cubecl-cpu" => &[("f32", "plain", None)],
        "vulkan" | "wgpu" | "metal" => {
            &[("f32", "plain", None), ("f32", "fused", Some("f32")), ("f32", "fused", Some("bf16"))]
        }
        _ => &[
            ("f32", "plain", None),
            ("bf16", "plain", None),
            ("f32", "fused", Some("f32")),
            ("f32", "fused", Some("bf16")),
        ],
    };
    ways.iter().map(|&(dtype, path, kv_dtype)| Case { device: device.into(), dtype, path, kv_dtype }).collect()
}

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
    result: String,
}

impl Keyed for Row {
    fn key(&self) -> Vec<String> {
        vec![self.model.clone(), self.device.clone(), self.path()].into_iter().chain([self.dtype.clone()]).collect()
    }
}

impl Row {
    fn path(&self) -> String {
        path(&self.path, self.kv_dtype.as_deref())
    }

    /// When and of what, for a caption.
    pub fn stamp(&self) -> String {
        format!("{}, commit {}, {}", self.date, self.commit, self.machine)
    }
}

fn path(path: &str, kv_dtype: Option<&str>) -> String {
    kv_dtype.map_or(path.to_owned(), |kv| format!("{path}, {kv} cache"))
}

enum Outcome {
    Ran(Box<Row>),
    /// The device or the path does not exist in this build or on this machine.
    NotRun(String),
    /// The program ended without a comparison.
    Failed(String),
}

pub fn run(args: &Args) -> Result<()> {
    let gemma = Gemma::new(&args.gemma)?;
    let devices = if args.device.is_empty() { default_devices() } else { args.device.clone() };
    if let Some(model) = &args.model {
        let model = user_path(model)?;
        if !crate::shell::root().join(&model).join("reference").exists() {
            return founding(&gemma, &model, &args.device);
        }
        return compare(&gemma, &[model], &devices, &args.device, args.write);
    }
    let fixtures = FIXTURES.map(PathBuf::from);
    compare(&gemma, &fixtures, &devices, &args.device, args.write)
}

/// The comparison within `check`. Machines that prepared Vulkan must also run it.
pub fn check(gemma: &Gemma, require_vulkan: bool) -> Result<()> {
    let mut required = vec!["cpu".to_owned(), "ndarray".to_owned()];
    required.extend(require_vulkan.then(|| "vulkan".to_owned()));
    compare(gemma, &FIXTURES.map(PathBuf::from), &default_devices(), &required, false)
}

fn default_devices() -> Vec<String> {
    let gpu = if cfg!(target_os = "macos") { "metal" } else { "vulkan" };
    ["cpu", "ndarray", gpu].map(String::from).to_vec()
}

fn compare(gemma: &Gemma, models: &[PathBuf], devices: &[String], required: &[String], write: bool) -> Result<()> {
    let mut stored = Vec::new();
    let mut lines = Vec::new();
    let mut wrong = Vec::new();
    for case in devices.iter().flat_map(|device| cases(device)) {
        for model in models {
            let name = model.file_name().unwrap_or_default().to_string_lossy();
            let what = format!("{name} on {}, {}, {}", case.device, case.dtype, path(case.path, case.kv_dtype));
            match outcome(gemma, model, &name, &case)? {
                Outcome::Ran(row) => {
                    if row.result != "pass" {
                        wrong.push(format!("{what}: {}", row.result));
                    }
                    lines.push(cells(&row));
                    stored.push(*row);
                }
                Outcome::NotRun(why) => {
                    if required.contains(&case.device) && case.path == "plain" {
                        wrong.push(format!("{what}: not run: {why}"));
                    }
                    lines.push(empty(&name, &case, format!("not run: {why}")));
                }
                Outcome::Failed(why) => {
                    wrong.push(format!("{what}: {why}"));
                    lines.push(empty(&name, &case, format!("FAIL: {why}")));
                }
            }
        }
    }
    print!("{}", markdown(HEAD, &lines));
    if write {
        store(TABLE, stored)?;
    }
    if !wrong.is_empty() {
        bail!("parity fails\n{}", wrong.join("\n"));
    }
    Ok(())
}

const HEAD: [&str; 10] = [
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

fn cells(row: &Row) -> [String; 10] {
    [
        row.model.clone(),
        row.device.clone(),
        row.dtype.clone(),
        row.path(),
        format!("{:.1e}", row.worst),
        format!("{:.1e}", row.logits_max_abs),
        format!("{:.1e}", row.kl_mean),
        format!("{:.1} %", 100.0 * row.argmax_agreement),
        format!("{}/{}", row.greedy_equal, row.greedy_total),
        row.result.clone(),
    ]
}

fn empty(model: &str, case: &Case, result: String) -> [String; 10] {
    let [a, b, c, d, e] = [(); 5].map(|()| "–".to_owned());
    let path = path(case.path, case.kv_dtype);
    [model.into(), case.device.clone(), case.dtype.into(), path, a, b, c, d, e, result]
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

fn outcome(gemma: &Gemma, model: &Path, name: &str, case: &Case) -> Result<Outcome> {
    let (dir, reference) = (model.to_string_lossy(), model.join("reference"));
    let reference = reference.to_string_lossy();
    let mut args = vec!["parity", "--model", &*dir, "--reference", &*reference, "--json"];
    args.extend(["--device", case.device.as_str(), "--dtype", case.dtype, "--path", case.path]);
    if let Some(kv_dtype) = case.kv_dtype {
        args.extend(["--kv-dtype", kv_dtype]);
    }
    let out = gemma.command(&args).output()?;
    let Ok(report) = serde_json::from_slice::<Value>(&out.stdout) else {
        let stderr = String::from_utf8_lossy(&out.stderr);
        return Ok(without_report(last_line(&stderr), out.status.code()));
    };
    if out.status.success() != (report["pass"] == true) {
        return Ok(Outcome::Failed(format!("{} but it reports pass = {}", out.status, report["pass"])));
    }
    let summary = &report["summary"];
    let number = |key: &str| summary[key].as_f64().unwrap_or(f64::NAN);
    let result = match report["first_divergent"].as_str() {
        _ if report["pass"] == true => "pass".to_owned(),
        Some(tensor) => format!("FAIL at {tensor}"),
        None => "FAIL".to_owned(),
    };
    Ok(Outcome::Ran(Box::new(Row {
        date: date()?,
        commit: commit()?,
        machine: processor(),
        model: name.into(),
        device: case.device.clone(),
        dtype: case.dtype.into(),
        path: case.path.into(),
        kv_dtype: case.kv_dtype.map(String::from),
        worst: number("max_rel"),
        logits_max_abs: number("logits_max_abs"),
        kl_mean: number("kl_mean"),
        argmax_agreement: number("argmax_agreement"),
        greedy_equal: summary["greedy_equal"].as_u64().unwrap_or(0),
        greedy_total: summary["greedy_total"].as_u64().unwrap_or(0),
        result,
    })))
}

/// A missing device or path is no failure of the model; anything else is.
fn without_report(line: &str, code: Option<i32>) -> Outcome {
    let line = line.trim_start_matches("gemma: ").to_owned();
    let absent = line.starts_with("device `") || line.contains("'--path") || line.contains("'--kv-dtype");
    match (absent, code) {
        (true, Some(1)) => Outcome::NotRun(line),
        (_, Some(_)) => Outcome::Failed(line),
        (_, None) => Outcome::Failed(format!("killed by a signal; {line}")),
    }
}

fn last_line(text: &str) -> &str {
    text.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("no message")
}

fn founding(gemma: &Gemma, model: &Path, devices: &[String]) -> Result<()> {
    let model = model.to_string_lossy();
    let mut args = vec!["parity", "--founding", "--model", &*model];
    if let Some(device) = devices.first() {
        args.extend(["--device", device]);
    }
    sh(gemma.command(&args))
}

#[cfg(test)]
mod tests {
    use super::{Outcome, table, without_report};

    #[test]
    fn missing_device_is_not_run_and_anything_else_fails() {
        let not_run = |line, code| matches!(without_report(line, code), Outcome::NotRun(_));
        assert!(not_run("gemma: device `vulkan`: this machine has none", Some(1)));
        assert!(not_run("gemma: invalid value 'fused' for '--path <PATH>'", Some(1)));
        assert!(!not_run("gemma: tests/fixtures/x: no config.json", Some(1)));
        assert!(!not_run("gemma: device `cuda`: fell over", Some(101)));
        assert!(!not_run("thread 'main' panicked", None));
    }

    #[test]
    fn table_names_the_devices_that_nobody_ran() {
        assert_eq!(table(&[]).matches("not yet run").count(), 7);
    }
}
