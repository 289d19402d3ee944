//! The product with a weight as the checkpoint has it.
//!
//! | backend | body |
//! | --- | --- |
//! | flex | [`cpu`]: SIMD and threads on the weight's own memory, bf16 widened in registers |
//! | CubeCL devices, ndarray, anything under autodiff | cast where the dtypes differ, then the backend's own matmul |
//!
//! Flex multiplies bf16 at a hundredth of the memory's speed, and an f32 copy of a checkpoint needs twice its memory:
//! hence an operation of our own. ndarray knows no bf16 at all, so weights for it are f32.

#![allow(deprecated, reason = "upstream calls its ndarray backend deprecated; it was asked for")]

#[cfg(feature = "flex")]
pub mod cpu;
#[cfg(feature = "flex")]
mod flex;

use burn::backend::autodiff::checkpoint::strategy::CheckpointStrategy;
use burn::backend::tensor::FloatTensor;
use burn::backend::{Autodiff, Backend, Dispatch, TensorMetadata, backend_extension};
use burn::tensor::{Shape, Tensor};

/// The operation for the primitives of a backend; [`linear`] is the one for tensors.
#[backend_extension(
    Cube: cfg(feature = "cube"),
    Flex: cfg(feature = "flex"),
    NdArray: cfg(feature = "ndarray"),
    Autodiff
)]
pub trait LinearOps: Backend {
    /// See [`linear`], which has checked the shapes.
    fn linear(x: FloatTensor<Self>, weight: FloatTensor<Self>) -> FloatTensor<Self> {
        let weight = if weight.dtype() == x.dtype() { weight } else { Self::float_cast(weight, x.dtype().into()) };
        let (k, n) = (weight.shape()[1], weight.shape()[0]);
        let mut shape = x.shape().to_vec();
        if let Some(last) = shape.last_mut() {
            *last = n;
        }
        let m = shape[..shape.len() - 1].iter().product::<usize>();
        let x = Self::float_reshape(x, Shape::from([m, k])); // [M, K]
        let y = Self::float_matmul(x, Self::float_swap_dims(weight, 0, 1)); // [M, N]
        Self::float_reshape(y, Shape::from(shape))
    }
}

#[cfg(feature = "cube")]
impl LinearOps for burn_cubecl::CubeBackend {}

#[cfg(feature = "ndarray")]
impl LinearOps for burn::backend::NdArray {}

// The plain body is made of differentiable operations, so it is its own backward pass: for x and for the weight.
impl<B: LinearOps, C: CheckpointStrategy> LinearOps for Autodiff<B, C> {}

/// `y[.., n] = sum over k of x[.., k] * weight[n, k]`, in the dtype of x and accumulated in f32.
///
/// On flex the weight is never copied, whatever its dtype and strides, and may be a mapped file; a row of y has the
/// same bits whatever the other rows of x are and however many.
///
/// # Shapes
/// * `x`: `[.., K]`, f32 or bf16
/// * `weight`: `[N, K]`, f32 or bf16, as in the checkpoint
/// * returns `[.., N]`
///
/// # Panics
/// When the last dimension of `x` is not the weight's, or where the backend lacks a dtype.
///
/// ```
/// # #[cfg(feature = "flex")] {
/// use burn::tensor::{DType, Device, Tensor};
/// let device = Device::flex();
/// let weight = Tensor::<2>::from_data([[1.0f32, 2.0], [3.0, 4.0], [5.0, 6.0]], &device).cast(DType::BF16);
/// let x = Tensor::<3>::from_data([[[1.0f32, 10.0]]], &device);
/// let y = gemma_burn::ops::linear(x, weight);
/// assert_eq!(y.into_data().try_to_vec::<f32>().unwrap(), [21.0, 43.0, 65.0]);
/// # }
/// ```
pub fn linear<const R: usize>(x: Tensor<R>, weight: Tensor<2>) -> Tensor<R> {
    let [n, k] = weight.dims();
    assert!(
        x.dims().last() == Some(&k),
        "linear: x {:?} does not end with the second dimension of the weight [{n}, {k}]",
        x.dims()
    );
    Tensor::from_dispatch(Dispatch::linear(x.into_dispatch(), weight.into_dispatch()))
}
