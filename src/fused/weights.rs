//! The model's own weights as kernel arguments: handles are shared, nothing is copied.

use burn::module::Param;
use burn::tensor::{DType, Tensor};
use burn_cubecl::CubeBackend;
use burn_cubecl::tensor::CubeTensor;
use cube_kernels::Buffer;
use half::bf16;

use crate::{Error, Result};

// With fusion a tensor has no handle until it is drained. This does not type-check when feature unification turns it on.
const _: fn(burn::backend::Cube) -> CubeBackend = |backend| backend;

/// A matrix `[out, in]` in bf16.
pub(super) fn matrix(param: &Param<Tensor<2>>) -> Result<Buffer<bf16>> {
    if param.adapter().is_some() {
        let reason = "an adapter is kept beside the weights; merge it (no --lora-keep), or use --path plain";
        return Err(Error::Fused(reason.into()));
    }
    let tensor = primitive(param.val())?;
    if tensor.dtype != DType::BF16 {
        let reason = format!("weights are {:?}, and the kernels read BF16; use the plain path", tensor.dtype);
        return Err(Error::Fused(reason));
    }
    buffer(tensor)
}

/// A vector in f32.
pub(super) fn vector(param: &Param<Tensor<1>>) -> Result<Buffer<f32>> {
    let tensor = primitive(param.val())?;
    if tensor.dtype != DType::F32 {
        return Err(Error::Fused(format!("a norm's weights are {:?}, expected F32", tensor.dtype)));
    }
    buffer(tensor)
}

/// The tensor behind the facade, with its client and handle.
pub(super) fn primitive<const D: usize>(tensor: Tensor<D>) -> Result<CubeTensor> {
    tensor
        .try_into_primitive::<CubeBackend>()
        .map_err(|_| Error::Fused("the model is not on a CubeCL device; use the plain path".into()))
}

fn buffer<T: cubecl::prelude::CubeElement>(tensor: CubeTensor) -> Result<Buffer<T>> {
    if !tensor.is_contiguous() {
        return Err(Error::Fused("a weight's rows are padded on this device; use the plain path".into()));
    }
    let len = tensor.meta.num_elements();
    Buffer::new(tensor.handle, len).map_err(Error::from)
}
