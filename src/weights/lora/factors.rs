//! The two small matrices of one adapted projection.

use burn::module::{LoraAdapter, Param};
use burn::tensor::{DType, Device, Tensor, TensorData};
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype as FileDtype;

use super::super::checkpoint::Entry;
use super::super::mapped::widen;

/// A low-rank change of a matrix `[outputs, inputs]`.
#[derive(Debug)]
pub(super) struct Factors {
    /// `[rank, inputs]`
    pub(super) a: Vec<f32>,
    /// `[outputs, rank]`
    pub(super) b: Vec<f32>,
    pub(super) rank: usize,
    pub(super) outputs: usize,
    pub(super) inputs: usize,
}

impl Factors {
    /// `base + scale * B A` of a matrix in `dtype`, computed in f32 and rounded once to `dtype`, in the format `held`:
    /// `[outputs * inputs]`. So it is the same on every device.
    pub(super) fn merged(&self, base: &[u8], dtype: DType, held: DType, scale: f32) -> TensorData {
        let shape = [self.outputs * self.inputs];
        let rows = base.par_chunks_exact(self.inputs * dtype.size()).zip(self.b.par_chunks_exact(self.rank));
        let rows = rows.map(|(row, b)| self.merged_row(row, b, dtype, scale));
        match (dtype, held) {
            (DType::BF16, DType::BF16) => {
                TensorData::new(rows.flat_map_iter(|row| row.into_iter().map(bf16::from_f32)).collect(), shape)
            }
            (DType::BF16, _) => {
                let round = |value| bf16::from_f32(value).to_f32();
                TensorData::new(rows.flat_map_iter(|row| row.into_iter().map(round)).collect(), shape)
            }
            _ => TensorData::new(rows.flatten_iter().collect::<Vec<f32>>(), shape),
        }
    }

    fn merged_row(&self, row: &[u8], b: &[f32], dtype: DType, scale: f32) -> Vec<f32> {
        let mut values = Vec::with_capacity(self.inputs);
        widen(row, dtype, &mut values);
        let mut change = vec![0.0; self.inputs];
        for (b, a) in b.iter().zip(self.a.chunks_exact(self.inputs)) {
            change.iter_mut().zip(a).for_each(|(change, a)| *change += b * a);
        }
        values.iter_mut().zip(change).for_each(|(value, change)| *value += scale * change);
        values
    }

    /// As parameters of their own, in f32.
    pub(super) fn adapter(&self, device: &Device, scale: f64) -> LoraAdapter {
        let matrix = |values: &Vec<f32>, shape: [usize; 2]| {
            Param::from_tensor(Tensor::<2>::from_data(TensorData::new(values.clone(), shape), (device, DType::F32)))
        };
        LoraAdapter {
            a: matrix(&self.b, [self.outputs, self.rank]),
            b: matrix(&self.a, [self.rank, self.inputs]),
            scale,
        }
    }
}

/// A tensor's values widened to f32, if it is in a format that adapters come in.
pub(super) fn read_f32(entry: &Entry) -> Option<Vec<f32>> {
    let mut values = vec![];
    match entry.dtype {
        FileDtype::F32 => widen(entry.bytes(), DType::F32, &mut values),
        FileDtype::BF16 => widen(entry.bytes(), DType::BF16, &mut values),
        FileDtype::F16 => {
            values.extend(entry.bytes().as_chunks().0.iter().map(|pair| f16::from_le_bytes(*pair).to_f32()));
        }
        _ => return None,
    }
    Some(values)
}
