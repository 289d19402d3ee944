//! What became of every tensor in a checkpoint.

use std::path::Path;

use super::LoraReport;
use crate::{Error, Result};

/// Names listed in full in one message.
const SHOWN: usize = 4;

/// Where a tensor's values are after loading.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Place {
    /// In memory of the device, copied as they are.
    Device,
    /// In memory of the device, widened to f32.
    DeviceWidened,
    /// The mapped file itself.
    Mapped,
    /// The mapped file on the host, while the model is on a device.
    Host,
}

/// A tensor that was applied.
#[derive(Debug, Clone)]
pub struct Applied {
    /// Name below the text model.
    pub name: String,
    pub shape: Vec<usize>,
    /// Bytes where it is now.
    pub bytes: usize,
    pub place: Place,
}

/// The account of a load: every tensor of the checkpoint and every parameter of the model occurs once.
#[derive(Debug, Clone, Default)]
pub struct LoadReport {
    pub applied: Vec<Applied>,
    /// Names in the file, with the reason.
    pub skipped: Vec<(String, &'static str)>,
    /// Parameters that no tensor of the checkpoint fills.
    pub missing: Vec<String>,
    /// Tensors that fit no parameter and no skip rule, by their names in the file.
    pub unknown: Vec<String>,
    /// The adapter over the weights.
    pub lora: Option<LoraReport>,
}

impl LoadReport {
    /// Bytes of the applied tensors at a place.
    pub fn bytes_at(&self, place: Place) -> usize {
        self.applied.iter().filter(|tensor| tensor.place == place).map(|tensor| tensor.bytes).sum()
    }

    /// Parameters in the applied tensors.
    pub fn parameters(&self) -> usize {
        self.applied.iter().map(|tensor| tensor.shape.iter().product::<usize>()).sum()
    }

    pub(super) fn ensure_complete(&self, file: &Path) -> Result<()> {
        if !self.missing.is_empty() {
            let reason = format!("missing {}; the checkpoint is incomplete or of another model", list(&self.missing));
            return Err(Error::weights(file, reason));
        }
        if !self.unknown.is_empty() {
            let reason = format!("unknown {}; this model has no place for it", list(&self.unknown));
            return Err(Error::weights(file, reason));
        }
        Ok(())
    }
}

fn list(names: &[String]) -> String {
    let shown = names[..names.len().min(SHOWN)].join(", ");
    let noun = if names.len() == 1 { "tensor" } else { "tensors" };
    match names.len().saturating_sub(SHOWN) {
        0 => format!("{noun} {shown}"),
        more => format!("{noun} {shown} and {more} more"),
    }
}
