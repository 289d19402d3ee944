//! The `gemma` program that the other tasks run.

use std::path::PathBuf;
use std::process::Command;

use anyhow::{Result, ensure};

use crate::shell::{cargo, command, root, run, runnable_features, target_dir};

#[derive(clap::Args)]
pub struct Args {
    /// A `gemma` that is already built
    #[arg(long, value_name = "FILE")]
    binary: Option<PathBuf>,
    /// Features to build it with [default: all that link here]
    #[arg(long, value_name = "LIST", conflicts_with = "binary")]
    features: Option<String>,
    /// Build it with the release profile
    #[arg(long, conflicts_with = "binary")]
    release: bool,
}

/// The program, built.
pub struct Gemma(PathBuf);

impl Gemma {
    pub fn new(args: &Args) -> Result<Self> {
        match &args.binary {
            Some(file) => {
                ensure!(file.exists(), "{} does not exist", file.display());
                Ok(Self(std::path::absolute(file)?))
            }
            None => Self::build(args.features.as_deref().unwrap_or(runnable_features()), args.release),
        }
    }

    /// Builds tests along with it: cargo then resolves the same features of the dependencies as for `cargo test`.
    pub fn build(features: &str, release: bool) -> Result<Self> {
        let mut build = cargo(&["build", "--workspace", "--bins", "--tests", "--features", features]);
        if release {
            build.arg("--release");
        }
        run(build)?;
        let profile = if release { "release" } else { "debug" };
        Ok(Self(target_dir()?.join(profile).join(format!("gemma{}", std::env::consts::EXE_SUFFIX))))
    }

    pub fn command(&self, args: &[&str]) -> Command {
        command(&self.0.to_string_lossy(), args)
    }
}

/// A path as the user gave it, from where the user stands.
pub fn user_path(path: &std::path::Path) -> Result<PathBuf> {
    let path = std::path::absolute(path)?;
    Ok(path.strip_prefix(root()).map(PathBuf::from).unwrap_or(path))
}
