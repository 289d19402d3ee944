//! What can go wrong, by stage. Every message names the place, what was found and the way out.

use std::path::{Path, PathBuf};

/// Any failure of this library.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A file could not be read.
    #[error("{}: {source}", path.display())]
    Io { path: PathBuf, source: std::io::Error },
    /// A configuration file lacks a key or holds an impossible value.
    #[error("{}: `{key}` is {got}, expected {expected}", file.display())]
    Config { file: PathBuf, key: String, got: String, expected: String },
    /// A checkpoint is damaged, incomplete or of another model.
    #[error("{}: {reason}", file.display())]
    Weights { file: PathBuf, reason: String },
    /// The tokenizer file does not load or does not belong to the model.
    #[error("{}: {reason}", file.display())]
    Tokenizer { file: PathBuf, reason: String },
    /// A device that this build or this machine does not have.
    #[error("device `{name}`: {reason}")]
    Device { name: String, reason: String },
    /// A request that cannot be served as it stands.
    #[error("{0}")]
    Request(String),
    /// A computation produced something that is not a number.
    #[error("{0}")]
    NonFinite(String),
    /// The fused path cannot serve this model or device.
    #[error("fused path: {0}")]
    Fused(String),
    /// A file of token ids that does not fit the model.
    #[error("{}: {reason}", file.display())]
    Tokens { file: PathBuf, reason: String },
    /// A reference dump is unreadable or belongs to another model.
    #[error("{}: {reason}", file.display())]
    Reference { file: PathBuf, reason: String },
}

/// The result of anything in this library that can fail.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    pub(crate) fn io(path: &Path, source: std::io::Error) -> Self {
        Self::Io { path: path.to_owned(), source }
    }

    pub(crate) fn config(file: &Path, key: impl Into<String>, got: impl ToString, expected: impl Into<String>) -> Self {
        Self::Config { file: file.to_owned(), key: key.into(), got: got.to_string(), expected: expected.into() }
    }

    pub(crate) fn weights(file: &Path, reason: impl Into<String>) -> Self {
        Self::Weights { file: file.to_owned(), reason: reason.into() }
    }

    pub(crate) fn tokenizer(file: &Path, reason: impl Into<String>) -> Self {
        Self::Tokenizer { file: file.to_owned(), reason: reason.into() }
    }

    pub(crate) fn device(name: &str, reason: impl Into<String>) -> Self {
        Self::Device { name: name.to_owned(), reason: reason.into() }
    }

    pub(crate) fn tokens(file: &Path, reason: impl Into<String>) -> Self {
        Self::Tokens { file: file.to_owned(), reason: reason.into() }
    }

    pub(crate) fn reference(file: &Path, reason: impl Into<String>) -> Self {
        Self::Reference { file: file.to_owned(), reason: reason.into() }
    }
}

#[cfg(feature = "cube")]
impl From<cube_kernels::Rejected> for Error {
    fn from(rejected: cube_kernels::Rejected) -> Self {
        Self::Fused(rejected.to_string())
    }
}
