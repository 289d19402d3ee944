//! Gradients of the plain body.

use super::{Case, f32s};
use burn::tensor::{DType, Device, Tensor};
use gemma_burn::ops::linear;

fn assert_near(got: Tensor<2>, want: Tensor<2>) {
    for (got, want) in f32s(got).iter().zip(f32s(want)) {
        assert!((got - want).abs() <= 1e-5 * (1.0 + want.abs()), "gradient {got}, expected {want}");
    }
}

#[test]
fn gradients_are_those_of_matmul() {
    let device = Device::flex().autodiff();
    let case = Case::new(6, 10, 33);
    let (x, w) = case.tensors(&device, DType::F32, DType::F32);
    let weigh = Tensor::<2>::from_data(super::TensorData::new(case.x[..60].to_vec(), [6, 10]), &device);
    let gradients = |product: fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
        let (x, w) = (x.clone().require_grad(), w.clone().require_grad());
        let grads = (product(x.clone(), w.clone()) * weigh.clone()).sum().backward();
        (x.grad(&grads).expect("x was tracked"), w.grad(&grads).expect("w was tracked"))
    };
    let (x_ours, w_ours) = gradients(|x, w| linear(x.reshape([2, 3, 33]), w).reshape([6, 10]));
    let (x_plain, w_plain) = gradients(|x, w| x.matmul(w.transpose()));
    assert_near(x_ours, x_plain);
    assert_near(w_ours, w_plain);
}

#[test]
fn gradients_flow_to_a_bf16_weight() {
    let device = Device::flex().autodiff();
    let case = Case::new(3, 8, 20);
    let (x, w) = case.tensors(&device, DType::F32, DType::BF16);
    let (x, w) = (x.require_grad(), w.require_grad());
    let grads = linear(x.clone(), w.clone()).sum().backward();
    // Of a plain sum: each row of w gets the sum of x's rows, each row of x the sum of w's.
    let (x_grad, w_grad) = (x.grad(&grads).expect("x was tracked"), w.grad(&grads).expect("w was tracked"));
    let plain = Device::flex();
    let (x, w) = case.tensors(&plain, DType::F32, DType::F32);
    assert_near(x_grad, w.sum_dim(0).repeat_dim(0, 3));
    for (got, want) in f32s(w_grad).iter().zip(f32s(x.sum_dim(0).repeat_dim(0, 8))) {
        // The gradient may be kept in the dtype of the weight.
        assert!((got - want).abs() <= want.abs() / 128.0 + 1e-6, "gradient {got}, expected {want}");
    }
}
