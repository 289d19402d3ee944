//! Rotary position embedding: pairs `(i, i + D/2)`, angles in f32.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

use crate::config::RopeSpec;

/// Cosines and sines of one step's positions for one kind of layer.
#[derive(Debug, Clone)]
pub struct Rope {
    cos: Tensor<4>, // [1, 1, T, D/2]
    sin: Tensor<4>,
}

impl Rope {
    /// The tables for `len` positions from `position` on, rounded to `dtype`.
    pub fn new(
        spec: &RopeSpec,
        head_dim: usize,
        position: usize,
        len: usize,
        dtype: FloatDType,
        device: &Device,
    ) -> Self {
        let frequencies = spec.frequencies(head_dim);
        let angles = (position..position + len).flat_map(|p| frequencies.iter().map(move |f| p as f32 * f));
        let (cos, sin): (Vec<f32>, Vec<f32>) = angles.map(|angle| (angle.cos(), angle.sin())).unzip();
        let table = |values| {
            let data = TensorData::new(values, [1, 1, len, head_dim / 2]);
            Tensor::<4>::from_data(data, (device, DType::F32)).cast(dtype)
        };
        Self { cos: table(cos), sin: table(sin) }
    }

    /// # Shapes
    /// `[B, heads, T, D]` → `[B, heads, T, D]`
    pub fn rotate(&self, x: Tensor<4>) -> Tensor<4> {
        let half = x.dims()[3] / 2;
        let a = x.clone().narrow(3, 0, half);
        let b = x.narrow(3, half, half);
        let turned_a = a.clone() * self.cos.clone() - b.clone() * self.sin.clone();
        let turned_b = b * self.cos.clone() + a * self.sin.clone();
        Tensor::cat(vec![turned_a, turned_b], 3)
    }
}
