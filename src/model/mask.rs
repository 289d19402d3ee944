//! Which keys a query may see.

use burn::tensor::{DType, Device, FloatDType, Tensor, TensorData};

/// Added to scores that must not count: far below any score, and finite in every format.
const HIDDEN: f32 = -1e30;

/// The additive mask for `queries` tokens from `position` on over `keys` keys that end with the last of them; `None`
/// where every query sees every key.
///
/// # Shapes
/// `[queries, keys]`: 0 where visible, a very large negative number elsewhere.
pub fn causal_mask(
    position: usize,
    queries: usize,
    keys: usize,
    window: Option<usize>,
    dtype: FloatDType,
    device: &Device,
) -> Option<Tensor<2>> {
    if queries == 1 {
        return None;
    }
    let first_key = position + queries - keys;
    let values = (position..position + queries)
        .flat_map(|i| (first_key..first_key + keys).map(move |j| if visible(i, j, window) { 0.0 } else { HIDDEN }))
        .collect::<Vec<f32>>();
    Some(Tensor::<2>::from_data(TensorData::new(values, [queries, keys]), (device, DType::F32)).cast(dtype))
}

/// Whether the query at `i` sees the key at `j`: the window counts the query itself.
fn visible(i: usize, j: usize, window: Option<usize>) -> bool {
    j <= i && window.is_none_or(|window| i - j < window)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn window_counts_the_query_itself() {
        let seen: Vec<usize> = (0..20).filter(|&j| visible(10, j, Some(4))).collect();
        assert_eq!(seen, [7, 8, 9, 10]);
        assert_eq!((0..20).filter(|&j| visible(10, j, None)).count(), 11);
    }
}
