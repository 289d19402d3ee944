//! Token ids as a tensor.

use burn::tensor::{DType, Device, Int, Tensor, TensorData};

/// One sequence of token ids on a device, as the model takes them.
///
/// # Shapes
/// T ids → `[1, T]`
pub fn ids_tensor(ids: &[u32], device: &Device) -> Tensor<2, Int> {
    let ids: Vec<i32> = ids.iter().map(|&id| id as i32).collect();
    let shape = [1, ids.len()];
    Tensor::from_data(TensorData::new(ids, shape), (device, DType::I32))
}
