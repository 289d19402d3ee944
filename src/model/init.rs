//! Parameters that exist as a shape until they are loaded or first used.

use burn::module::{Param, ParamId};
use burn::tensor::{DType, Device, Distribution, Tensor};

/// A parameter drawn from a normal distribution of mean 0 when first used.
pub(super) fn normal<const D: usize>(shape: [usize; D], deviation: f64, device: &Device) -> Param<Tensor<D>> {
    let draw = move |device: &Device, grad| {
        Tensor::random(shape, Distribution::Normal(0.0, deviation), (device, DType::F32)).set_require_grad(grad)
    };
    Param::uninitialized(ParamId::new(), draw, device.clone(), true, shape.into())
}

/// A vector of one value when first used.
pub(super) fn constant(len: usize, value: f64, device: &Device) -> Param<Tensor<1>> {
    let fill = move |device: &Device, grad| Tensor::full([len], value, (device, DType::F32)).set_require_grad(grad);
    Param::uninitialized(ParamId::new(), fill, device.clone(), true, [len].into())
}
