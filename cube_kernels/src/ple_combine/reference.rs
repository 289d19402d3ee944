use half::bf16;

/// The same in f64 for a row `[L · P]` and segments of `weight.len()`; scales are (context, row, sum).
pub fn ple_combine_reference(
    context: &[f32],
    weight: &[f32],
    row: &[bf16],
    (context_scale, row_scale, scale): (f32, f32, f32),
    eps: f32,
) -> Vec<f64> {
    let segments = context.chunks_exact(weight.len()).zip(row.chunks_exact(weight.len()));
    segments
        .flat_map(|(context, row)| {
            let c: Vec<f64> = context.iter().map(|&v| v as f64 * context_scale as f64).collect();
            let mean = c.iter().map(|v| v * v).sum::<f64>() / c.len() as f64;
            let factor = 1.0 / (mean + eps as f64).sqrt();
            (0..c.len())
                .map(|p| (c[p] * factor * weight[p] as f64 + row[p].to_f64() * row_scale as f64) * scale as f64)
                .collect::<Vec<_>>()
        })
        .collect()
}
