use half::bf16;

/// `table[token] · scale` for a table `[V, width]`.
pub fn embed_reference(table: &[bf16], width: usize, token: usize, scale: f32) -> Vec<f32> {
    table[token * width..][..width].iter().map(|v| v.to_f32() * scale).collect()
}
