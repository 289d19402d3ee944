//! Tensors whose values are a mapped file.

use std::sync::Arc;

use burn::tensor::{AllocationProperty, Bytes, DType, TensorData};
use half::bf16;
use safetensors::Dtype as FileDtype;

use super::checkpoint::{Entry, Shard};
use crate::model::HostRows;
use crate::{Error, Result};

/// Keeps a range of a shard alive as the owner of shared bytes.
struct MappedRange(Entry);

impl AsRef<[u8]> for MappedRange {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The tensor's format, if it is one that weights come in.
pub(super) fn float_dtype(name: &str, entry: &Entry) -> Result<DType> {
    match entry.dtype {
        FileDtype::BF16 => Ok(DType::BF16),
        FileDtype::F32 => Ok(DType::F32),
        other => {
            let reason = format!("{name} is {other:?}, expected BF16 or F32; quantized checkpoints do not load here");
            Err(Error::weights(&entry.shard.path, reason))
        }
    }
}

/// The values as they stand in the file, `[elements]`, without a copy where alignment allows.
pub(super) fn shared(entry: &Entry, dtype: DType) -> TensorData {
    let aligned = (entry.bytes().as_ptr() as usize).is_multiple_of(dtype.size());
    let bytes = match aligned {
        true => Bytes::from_shared(bytes::Bytes::from_owner(MappedRange(entry.clone())), AllocationProperty::File),
        false => Bytes::from_bytes_vec(entry.bytes().to_vec()),
    };
    TensorData::from_bytes(bytes, [elements(entry)], dtype)
}

/// The values widened to f32, `[elements]`.
pub(super) fn widened(entry: &Entry, dtype: DType) -> TensorData {
    let mut values = Vec::with_capacity(elements(entry));
    widen(entry.bytes(), dtype, &mut values);
    TensorData::new(values, [elements(entry)])
}

fn elements(entry: &Entry) -> usize {
    entry.shape.iter().product()
}

/// Appends packed values, widened to f32.
pub(super) fn widen(bytes: &[u8], dtype: DType, into: &mut Vec<f32>) {
    match dtype {
        DType::BF16 => into.extend(bytes.as_chunks().0.iter().map(|pair| bf16::from_le_bytes(*pair).to_f32())),
        _ => into.extend(bytes.as_chunks().0.iter().map(|quad| f32::from_le_bytes(*quad))),
    }
}

/// A two-dimensional table that is read row by row where it lies.
#[derive(Debug)]
pub(super) struct MappedRows {
    shard: Arc<Shard>,
    start: usize,
    dtype: DType,
    rows: usize,
    row_bytes: usize,
}

impl MappedRows {
    /// `entry` must have two dimensions.
    pub(super) fn new(entry: &Entry, dtype: DType) -> Self {
        let (rows, row_bytes) = (entry.shape[0], entry.shape[1] * dtype.size());
        Self { shard: entry.shard.clone(), start: entry.range.start, dtype, rows, row_bytes }
    }

    fn row(&self, id: u32) -> &[u8] {
        let start = self.start + id as usize * self.row_bytes;
        &self.shard.map[start..start + self.row_bytes]
    }
}

impl HostRows for MappedRows {
    fn read(&self, id: u32, into: &mut Vec<f32>) {
        widen(self.row(id), self.dtype, into);
    }

    fn read_packed(&self, id: u32, into: &mut Vec<u32>) {
        match self.dtype {
            DType::BF16 => into.extend(self.row(id).as_chunks().0.iter().map(|quad| u32::from_le_bytes(*quad))),
            _ => {
                let half = |quad: [u8; 4]| u32::from(bf16::from_f32(f32::from_le_bytes(quad)).to_bits());
                let pairs = self.row(id).as_chunks::<8>().0.iter();
                into.extend(pairs.map(|p| half([p[0], p[1], p[2], p[3]]) | half([p[4], p[5], p[6], p[7]]) << 16));
            }
        }
    }

    fn bytes(&self) -> usize {
        self.rows * self.row_bytes
    }
}
