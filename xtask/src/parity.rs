//! Runs `gemma parity` for every fixture and device and shows one table.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::gemma::{self, Gemma, user_path};
use crate::shell::{machine, run as sh};
use crate::tables::{markdown, store};

mod row;

use row::{HEAD, cells, path};
pub use row::{Row, table};

#[derive(clap::Args)]
pub struct Args {
    /// Only this device, which must be there (may be given several times) [default: cpu and ndarray]
    #[arg(long, value_name = "NAME")]
    device: Vec<String>,
    /// A checkpoint instead of the fixtures: compared with its folder `reference` if it has one, else with what is
    /// known of google/gemma-4-E2B
    #[arg(long, value_name = "DIR")]
    model: Option<PathBuf>,
    /// Store the rows in xtask/tables/parity.json, for the README
    #[arg(long)]
    write: bool,
    /// Run nothing: take what `gemma parity --json` printed elsewhere at this commit, one object per line
    #[arg(long, value_name = "FILE", requires = "machine", conflicts_with_all = ["device", "model"])]
    report: Option<PathBuf>,
    /// What computed, for the rows of --report
    #[arg(long, value_name = "NAME", requires = "report")]
    machine: Option<String>,
    #[command(flatten)]
    gemma: gemma::Args,
}

const FIXTURES: [&str; 4] = ["tests/fixtures/tiny-e2b", "tests/fixtures/tiny-e4b", "tests/fixtures/tiny-31b", "demo"];
/// The demo's dump stands with the fixtures: its own folder is what the program carries.
const DEMO_REFERENCE: (&str, &str) = ("demo", "tests/fixtures/demo/reference");
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
        "vulkan" | "metal" | "wgpu" => {
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

/// The folder with a model's dump.
fn reference(model: &Path) -> PathBuf {
    let (demo, dump) = DEMO_REFERENCE;
    if model == Path::new(demo) { dump.into() } else { model.join("reference") }
}

enum Outcome {
    Ran(Box<Row>),
    /// The device or the path does not exist in this build or on this machine.
    NotRun(String),
    /// The program ended without a comparison.
    Failed(String),
}

pub fn run(args: &Args) -> Result<()> {
    if let (Some(file), Some(machine)) = (&args.report, &args.machine) {
        return from_elsewhere(file, machine, args.write);
    }
    let gemma = Gemma::new(&args.gemma)?;
    let devices = if args.device.is_empty() { default_devices() } else { args.device.clone() };
    if let Some(model) = &args.model {
        let model = user_path(model)?;
        if !crate::shell::root().join(reference(&model)).exists() {
            return founding(&gemma, &model, &args.device);
        }
        return compare(&gemma, &[model], &all_cases(&devices), &args.device, args.write);
    }
    let fixtures = FIXTURES.map(PathBuf::from);
    compare(&gemma, &fixtures, &all_cases(&devices), &args.device, args.write)
}

/// The comparison within `check`: every fixture on the processor, and one through the fused path on `gpu`. That may be
/// software, which compiles its kernels for two minutes (those of the plain path for ten).
pub fn check(gemma: &Gemma, gpu: Option<&str>) -> Result<()> {
    let processor = default_devices();
    compare(gemma, &FIXTURES.map(PathBuf::from), &all_cases(&processor), &processor, false)?;
    let Some(gpu) = gpu else { return Ok(()) };
    let fused: Vec<Case> = cases(gpu).into_iter().filter(|case| case.path == "fused").collect();
    compare(gemma, &[PathBuf::from(FIXTURES[0])], &fused, &[gpu.to_owned()], false)
}

fn all_cases(devices: &[String]) -> Vec<Case> {
    devices.iter().flat_map(|device| cases(device)).collect()
}

fn default_devices() -> Vec<String> {
    ["cpu", "ndarray"].map(String::from).to_vec()
}

fn compare(gemma: &Gemma, models: &[PathBuf], cases: &[Case], required: &[String], write: bool) -> Result<()> {
    let mut stored = Vec::new();
    let mut lines = Vec::new();
    let mut wrong = Vec::new();
    for case in cases {
        for model in models {
            let name = model.file_name().unwrap_or_default().to_string_lossy();
            let what = format!("{name} on {}, {}, {}", case.device, case.dtype, path(case.path, case.kv_dtype));
            match outcome(gemma, model, case)? {
                Outcome::Ran(row) => {
                    if row.result != "pass" {
                        wrong.push(format!("{what}: {}", row.result));
                    }
                    lines.push(cells(&row));
                    stored.push(*row);
                }
                Outcome::NotRun(why) => {
                    if required.contains(&case.device) {
                        wrong.push(format!("{what}: not run: {why}"));
                    }
                    lines.push(empty(&name, case, format!("not run: {why}")));
                }
                Outcome::Failed(why) => {
                    wrong.push(format!("{what}: {why}"));
                    lines.push(empty(&name, case, format!("FAIL: {why}")));
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

fn empty(model: &str, case: &Case, result: String) -> [String; 10] {
    let [a, b, c, d, e] = [(); 5].map(|()| "–".to_owned());
    let path = path(case.path, case.kv_dtype);
    [model.into(), case.device.clone(), case.dtype.into(), path, a, b, c, d, e, result]
}

fn outcome(gemma: &Gemma, model: &Path, case: &Case) -> Result<Outcome> {
    let (dir, reference) = (model.to_string_lossy(), reference(model));
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
    Ok(Outcome::Ran(Box::new(Row::new(&report, &machine(&case.device))?)))
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

fn from_elsewhere(file: &Path, machine: &str, write: bool) -> Result<()> {
    let text = std::fs::read_to_string(file).with_context(|| file.display().to_string())?;
    let reports = serde_json::Deserializer::from_str(&text).into_iter::<Value>();
    let rows: Vec<Row> = reports.map(|report| Row::new(&report?, machine)).collect::<Result<_>>()?;
    print!("{}", markdown(HEAD, &rows.iter().map(cells).collect::<Vec<_>>()));
    if write {
        store(TABLE, rows)?;
    }
    Ok(())
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
    use super::{Outcome, without_report};

    #[test]
    fn missing_device_is_not_run_and_anything_else_fails() {
        let not_run = |line, code| matches!(without_report(line, code), Outcome::NotRun(_));
        assert!(not_run("gemma: device `vulkan`: this machine has none", Some(1)));
        assert!(not_run("gemma: invalid value 'fused' for '--path <PATH>'", Some(1)));
        assert!(!not_run("gemma: tests/fixtures/x: no config.json", Some(1)));
        assert!(!not_run("gemma: device `cuda`: fell over", Some(101)));
        assert!(!not_run("thread 'main' panicked", None));
    }
}
