//! A matrix as the checkpoint stores it: `[out, in]`.

use burn::module::{Module, Param};
use burn::tensor::{Device, Tensor};

use super::init;
use crate::ops::linear;

/// A bias-free linear map.
#[derive(Module, Debug)]
pub struct Projection {
    /// `[out, in]`, in the checkpoint's format.
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
        linear(x, self.weight.val())
    }
}
