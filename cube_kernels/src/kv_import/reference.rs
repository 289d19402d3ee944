/// `cache[k, t, d] = source[k, t, d]` for all tokens of `source`, as plain f32 of the same shapes.
pub fn kv_import_reference(source: &[f32], cache: &mut [f32], kv_heads: usize, head_dim: usize, slots: usize) {
    let tokens = source.len() / (kv_heads * head_dim);
    for (head, rows) in source.chunks(tokens * head_dim).enumerate() {
        cache[head * slots * head_dim..][..rows.len()].copy_from_slice(rows);
    }
}
