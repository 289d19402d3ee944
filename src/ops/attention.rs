//! Attention over explicit keys and values, in chunks of queries.

use burn::tensor::{FloatDType, Tensor, activation::softmax};

/// Scores held at a time, in elements: 64 MiB in f32.
const SCORE_BUDGET: usize = 16 << 20;

/// Softmax attention with scale 1: Gemma 4 normalizes queries and keys per head instead of scaling scores.
///
/// At most one chunk of scores exists at a time. The softmax is f32, everything else in the inputs' format.
///
/// # Shapes
/// q `[B, H, T, D]`, k and v `[B, K, S, D]` with `H` a multiple of `K`, mask `[T, S]` added to the scores → `[B, H, T, D]`
pub fn attention(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Option<Tensor<2>>) -> Tensor<4> {
    let [b, h, t, _] = q.dims();
    let s = k.dims()[2];
    let chunk = (SCORE_BUDGET / (b * h * s)).clamp(1, t);
    if chunk == t {
        return attend(q, k, v, mask);
    }
    let chunks = (0..t)
        .step_by(chunk)
        .map(|start| {
            let len = chunk.min(t - start);
            let mask = mask.clone().map(|m| m.narrow(0, start, len));
            attend(q.clone().narrow(2, start, len), k.clone(), v.clone(), mask)
        })
        .collect::<Vec<_>>();
    Tensor::cat(chunks, 2)
}

/// One chunk. The heads that share keys are folded into the query axis, so that keys and values are never repeated.
fn attend(q: Tensor<4>, k: Tensor<4>, v: Tensor<4>, mask: Option<Tensor<2>>) -> Tensor<4> {
    let [b, h, t, d] = q.dims();
    let [_, kv_heads, s, _] = k.dims();
    let group = h / kv_heads;
    let dtype = q.dtype();
    let q = q.reshape([b, kv_heads, group * t, d]);
    let mut scores = q.matmul(k.swap_dims(2, 3)); // [B, K, G*T, S]
    if let Some(mask) = mask {
        let by_head = scores.reshape([b * kv_heads, group, t, s]) + mask.unsqueeze();
        scores = by_head.reshape([b, kv_heads, group * t, s]);
    }
    let weights = softmax(scores.cast(FloatDType::F32), 3).cast(dtype);
    weights.matmul(v).reshape([b, h, t, d])
}
