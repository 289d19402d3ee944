//! Running other programs, and facts about this machine and this commit.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::LazyLock;

use anyhow::{Context, Result, bail};

/// The workspace's folder: as cargo says at run time, for a target folder may serve several clones.
pub fn root() -> &'static Path {
    static ROOT: LazyLock<PathBuf> = LazyLock::new(|| match std::env::var_os("CARGO_MANIFEST_DIR") {
        Some(own) => Path::new(&own).parent().expect("xtask is a folder of the workspace").into(),
        None => std::env::current_dir().expect("a current folder"),
    });
    &ROOT
}

/// A program that runs in the workspace's folder.
pub fn command(program: &str, args: &[&str]) -> Command {
    let mut command = Command::new(program);
    command.args(args).current_dir(root());
    command
}

/// The cargo that started this, without what it said about this crate: build scripts look at it, and half of the
/// dependencies would be compiled anew after a cargo that was started by hand.
pub fn cargo(args: &[&str]) -> Command {
    let mut cargo = command(&std::env::var("CARGO").unwrap_or_else(|_| "cargo".into()), args);
    let about_us = |name: &str| name.starts_with("CARGO_PKG_") || name.starts_with("CARGO_MANIFEST_");
    for (name, _) in std::env::vars_os() {
        if name.to_str().is_some_and(about_us) {
            cargo.env_remove(name);
        }
    }
    cargo
}

/// Runs to the end, its output on the terminal.
pub fn run(mut command: Command) -> Result<()> {
    let text = format!("{command:?}");
    let status = command.status().with_context(|| format!("starting {text}"))?;
    if !status.success() {
        bail!("{text} ended with {status}");
    }
    Ok(())
}

/// What a program prints on stdout, trimmed.
pub fn output(mut command: Command) -> Result<String> {
    let text = format!("{command:?}");
    let out = command.output().with_context(|| format!("starting {text}"))?;
    if !out.status.success() {
        bail!("{text} ended with {}: {}", out.status, String::from_utf8_lossy(&out.stderr).trim());
    }
    Ok(String::from_utf8_lossy(&out.stdout).trim().to_owned())
}

/// Where cargo puts what it builds.
pub fn target_dir() -> Result<PathBuf> {
    let metadata = output(cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: serde_json::Value = serde_json::from_str(&metadata)?;
    Ok(metadata["target_directory"].as_str().context("cargo metadata names no target_directory")?.into())
}

/// The features that link and run on this system: one set for tests, parity and benches, so that one compiled
/// tree of dependencies serves them all. (rocm needs its own lld to link; check only lints it.)
pub fn runnable_features() -> &'static str {
    if cfg!(target_os = "macos") { "metal,ndarray" } else { "cuda,wgpu,ndarray" }
}

/// The commit, with `-dirty` if anything but the tables differs from it.
pub fn commit() -> Result<String> {
    let commit = output(command("git", &["rev-parse", "--short=9", "HEAD"]))?;
    let changed = output(command("git", &["status", "--porcelain", "--", ".", ":!xtask/tables", ":!README.md"]))?;
    Ok(if changed.is_empty() { commit } else { format!("{commit}-dirty") })
}

/// Today, in UTC.
pub fn date() -> Result<String> {
    output(command("date", &["-u", "+%F"]))
}

/// What computes: the graphics card of a CUDA device, else the processor.
pub fn machine(device: &str) -> String {
    if device.starts_with("cuda") {
        let names = output(command("nvidia-smi", &["--query-gpu=name", "--format=csv,noheader"])).unwrap_or_default();
        return names.lines().next().unwrap_or("unknown NVIDIA GPU").to_owned();
    }
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let name = std::fs::read_to_string("/proc/cpuinfo").ok().and_then(|text| {
        let line = text.lines().find(|line| line.starts_with("model name"))?;
        Some(line.split_once(':')?.1.trim().to_owned())
    });
    let name = name.or_else(|| output(command("sysctl", &["-n", "machdep.cpu.brand_string"])).ok());
    format!("{}, {threads} threads", name.unwrap_or_else(|| std::env::consts::ARCH.into()))
}

/// Makes sure that cubecl-llvm's build script will find or can fetch its LLVM.
pub fn llvm() -> Result<()> {
    run(command("bash", &["xtask/llvm_prefix.sh"]))
}
