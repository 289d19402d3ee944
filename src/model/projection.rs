//! A matrix as the checkpoint stores it: `[out, in]`.

use burn::module::{LoraAdapter, Module, Param};
use burn::tensor::{Device, FloatDType, Tensor};

use super::init;
use crate::ops::linear;

/// A bias-free linear map, with or without a low-rank adapter beside it.
#[derive(Module, Debug)]
pub struct Projection {
    /// `[out, in]`, in the checkpoint's format. An adapter is Burn's own [`LoraAdapter`] on it: `a [out, r]` and
    /// `b [r, in]`, which PEFT calls B and A.
    pub weight: Param<Tensor<2>>,
}

impl Projection {
    /// A projection whose weights are drawn when first used, from a normal distribution of deviation `1 / sqrt(in)`.
    pub fn init(inputs: usize, outputs: usize, device: &Device) -> Self {
        Self { weight: init::normal([outputs, inputs], 1.0 / (inputs as f64).sqrt(), device) }
    }

    /// # Shapes
    /// `[.., in]` → `[.., out]`, in the format of `x`.
    pub fn forward<const R: usize>(&self, x: Tensor<R>) -> Tensor<R> {
        match self.weight.adapter() {
            None => linear(x, self.weight.val()),
            Some(adapter) => adapted(x, self.weight.base(), adapter),
        }
    }
}

/// The sum of both products, the small one in f32, rounded once. The product of `a` and `b`, as large as the weight, is
/// never made.
fn adapted<const R: usize>(x: Tensor<R>, weight: Tensor<2>, adapter: &LoraAdapter) -> Tensor<R> {
    let dtype = x.dtype();
    let base = linear(x.clone(), weight).cast(FloatDType::F32);
    let small = linear(x.cast(FloatDType::F32), adapter.b.val()); // [.., r]
    (base + linear(small, adapter.a.val()) * adapter.scale).cast(dtype)
}
