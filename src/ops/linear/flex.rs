//! Flex tensors to plain memory and back.

use super::LinearOps;
use super::cpu::{Isa, Stored, Weight, multiply};
use burn::backend::Flex;
use burn::backend::tensor::FloatTensor;
use burn::tensor::{DType, TensorData};
use burn_flex::FlexTensor;
use half::bf16;
use half::slice::HalfFloatSliceExt;

impl LinearOps for Flex {
    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let mut shape = x.layout().shape().to_vec();
        let n = weight.layout().shape()[0];
        if let Some(last) = shape.last_mut() {
            *last = n;
        }
        let (dtype, x) = (x.dtype(), x.to_contiguous());
        let mut y = vec![0.0f32; shape.iter().product()];
        match dtype {
            DType::F32 => multiply(Isa::best(), x.as_slice().expect("x is contiguous f32"), view(&weight), &mut y),
            DType::BF16 => {
                let narrow: &[bf16] = x.as_slice().expect("x is contiguous bf16");
                let mut wide = vec![0.0f32; narrow.len()];
                narrow.convert_to_f32_slice(&mut wide);
                multiply(Isa::best(), &wide, view(&weight), &mut y);
            }
            other => panic!("linear on flex takes f32 or bf16, not {other:?}"),
        }
        FlexTensor::from_data(match dtype {
            DType::BF16 => {
                let mut narrow = vec![bf16::ZERO; y.len()];
                narrow.convert_from_f32_slice(&y);
                TensorData::new(narrow, shape)
            }
            _ => TensorData::new(y, shape),
        })
    }
}

/// A weight where it lies: through its bytes, for those of a file need not be aligned to their type.
fn view(weight: &FlexTensor) -> Weight<'_> {
    let stored = match weight.dtype() {
        DType::F32 => Stored::F32,
        DType::BF16 => Stored::Bf16,
        other => panic!("linear on flex takes a weight in f32 or bf16, not {other:?}"),
    };
    let layout = weight.layout();
    let (shape, strides) = (layout.shape(), layout.strides());
    Weight::strided(weight.bytes(), stored, [shape[0], shape[1]], layout.start_offset(), [strides[0], strides[1]])
}
