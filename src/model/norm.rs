//! Root-mean-square normalization, with one rounding at the end.

use burn::module::{Module, Param};
use burn::tensor::{Device, FloatDType, Tensor};

use super::init;

/// RMSNorm whose weight is used as it stands (not `1 + weight`).
#[derive(Module, Debug)]
pub struct GemmaRmsNorm {
    /// `[dim]`, always f32: the widened bf16 values are exact.
    pub weight: Param<Tensor<1>>,
    #[module(skip)]
    eps: f64,
}

impl GemmaRmsNorm {
    /// A norm with weight 1.
    pub fn init(dim: usize, eps: f64, device: &Device) -> Self {
        Self::init_to(1.0, dim, eps, device)
    }

    /// A norm with the same weight everywhere.
    pub fn init_to(weight: f64, dim: usize, eps: f64, device: &Device) -> Self {
        Self { weight: init::constant(dim, weight, device), eps }
    }

    /// # Shapes
    /// `[.., dim]` → `[.., dim]`, normalized over the last dimension, in the format of `x`.
    pub fn forward<const D: usize>(&self, x: Tensor<D>) -> Tensor<D> {
        let dtype = x.dtype();
        let weight = self.weight.val().unsqueeze();
        (normalized(x, self.eps) * weight).cast(dtype)
    }
}

/// RMS normalization without a weight, in the format of `x`.
pub fn rms_norm<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    let dtype = x.dtype();
    normalized(x, eps).cast(dtype)
}

fn normalized<const D: usize>(x: Tensor<D>, eps: f64) -> Tensor<D> {
    let x = x.cast(FloatDType::F32);
    let mean_square = (x.clone() * x.clone()).mean_dim(D - 1);
    x / (mean_square + eps).sqrt()
}
