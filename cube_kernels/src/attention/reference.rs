//! The same arithmetic in plain Rust, in f64 where the kernel accumulates.

use super::spec::{AttentionSpec, KvType};

/// One layer's cache: `[K, slots, D]`, each value already rounded to what the cache's type can hold.
#[derive(Clone, Debug)]
pub struct ReferenceCache {
    pub k: Vec<f32>,
    pub v: Vec<f32>,
}

impl ReferenceCache {
    /// All zero.
    pub fn new(spec: &AttentionSpec) -> Self {
        let len = spec.kv_heads * spec.slots * spec.head_dim;
        Self { k: vec![0.0; len], v: vec![0.0; len] }
    }
}

/// The new token's raw projections and what it is normed and rotated with.
#[derive(Clone, Copy, Debug)]
pub struct ReferenceToken<'a> {
    /// [H, D].
    pub q: &'a [f32],
    /// [K, D]; empty where the layer owns no K/V.
    pub k: &'a [f32],
    /// [K, D]; empty where the layer owns no K/V.
    pub v: &'a [f32],
    pub q_norm: &'a [f32],
    pub k_norm: &'a [f32],
    /// [D/2]; 0 does not turn.
    pub inv_freq: &'a [f32],
    pub position: usize,
    pub eps: f32,
}

/// Attention of one token [H, D]; appends its key and value to `cache` if the layer owns them.
pub fn attention_reference(spec: &AttentionSpec, token: &ReferenceToken<'_>, cache: &mut ReferenceCache) -> Vec<f32> {
    let d = spec.head_dim;
    if spec.owns_kv {
        append_reference(spec, token, cache);
    }
    let visible = (token.position + 1).min(spec.slots);
    let per_kv = spec.heads / spec.kv_heads;
    let mut out = Vec::with_capacity(spec.heads * d);
    for head in 0..spec.heads {
        let q = rotate(&rms_norm(&token.q[head * d..(head + 1) * d], Some(token.q_norm), token.eps), token);
        let row0 = head / per_kv * spec.slots;
        let row = |values: &[f32], slot: usize, i: usize| f64::from(values[(row0 + slot) * d + i]);
        let scores: Vec<f64> = (0..visible).map(|slot| (0..d).map(|i| q[i] * row(&cache.k, slot, i)).sum()).collect();
        let most = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let weights: Vec<f64> = scores.iter().map(|s| (s - most).exp()).collect();
        let total: f64 = weights.iter().sum();
        out.extend(
            (0..d).map(|i| ((0..visible).map(|s| weights[s] * row(&cache.v, s, i)).sum::<f64>() / total) as f32),
        );
    }
    out
}

/// Writes the new token's key and value into `cache`.
pub fn append_reference(spec: &AttentionSpec, token: &ReferenceToken<'_>, cache: &mut ReferenceCache) {
    let d = spec.head_dim;
    for head in 0..spec.kv_heads {
        let at = (head * spec.slots + token.position % spec.slots) * d;
        let rows = head * d..(head + 1) * d;
        let k = rotate(&rms_norm(&token.k[rows.clone()], Some(token.k_norm), token.eps), token);
        let v = rms_norm(&token.v[rows], None, token.eps);
        for i in 0..d {
            cache.k[at + i] = round(k[i] as f32, spec.kv);
            cache.v[at + i] = round(v[i] as f32, spec.kv);
        }
    }
}

fn rms_norm(x: &[f32], weight: Option<&[f32]>, eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
    let scale = (mean + f64::from(eps)).sqrt().recip();
    x.iter().enumerate().map(|(i, v)| f64::from(*v) * scale * weight.map_or(1.0, |w| f64::from(w[i]))).collect()
}

fn rotate(x: &[f64], token: &ReferenceToken<'_>) -> Vec<f64> {
    let half = x.len() / 2;
    let mut out = x.to_vec();
    for i in 0..half {
        let (sin, cos) = f64::from(token.position as f32 * token.inv_freq[i]).sin_cos();
        out[i] = x[i] * cos - x[i + half] * sin;
        out[i + half] = x[i + half] * cos + x[i] * sin;
    }
    out
}

fn round(x: f32, kv: KvType) -> f32 {
    match kv {
        KvType::Bf16 => half::bf16::from_f32(x).to_f32(),
        KvType::F32 => x,
    }
}
