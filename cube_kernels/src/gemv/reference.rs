//! The same arithmetic on slices, accumulated in f64.

/// Like [`Input`](super::Input).
pub enum InputReference<'a> {
    /// `x · scale`.
    Plain { x: &'a [f32], scale: f32 },
    /// `rms(x) · weight`.
    Norm { x: &'a [f32], weight: &'a [f32], eps: f32 },
    /// The residual update, then the norm where `pre` is given.
    Residual { h: &'a [f32], y: &'a [f32], post: &'a [f32], layer_scale: f32, pre: Option<&'a [f32]>, eps: f32 },
}

/// Like [`Output`](super::Output).
pub enum OutputReference<'a> {
    /// The products.
    Rows,
    /// gelu of the first half times the second.
    GeluMul,
    /// gelu times the factors.
    GeluScale { factor: &'a [f32] },
    /// Soft-capped products.
    Softcap { cap: f32 },
}

/// What one launch computes.
pub struct GemvReference {
    /// The outputs.
    pub y: Vec<f64>,
    /// The updated residual stream (the input itself where there is none).
    pub h: Vec<f64>,
}

fn rms(x: &[f64], eps: f32) -> Vec<f64> {
    let mean = x.iter().map(|v| v * v).sum::<f64>() / x.len() as f64;
    x.iter().map(|v| v / (mean + eps as f64).sqrt()).collect()
}

fn widen(x: &[f32]) -> Vec<f64> {
    x.iter().map(|&v| v as f64).collect()
}

fn times(x: &[f64], w: &[f32]) -> Vec<f64> {
    x.iter().zip(w).map(|(a, &b)| a * b as f64).collect()
}

/// The tanh form of GELU.
pub fn gelu_tanh(x: f64) -> f64 {
    0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)).tanh())
}

/// `weights` are the rows of all weights one after another, `[rows, K]`.
pub fn gemv_reference(
    weights: &[half::bf16],
    k: usize,
    input: &InputReference,
    output: &OutputReference,
) -> GemvReference {
    let (x, h) = match *input {
        InputReference::Plain { x, scale } => (widen(x).iter().map(|v| v * scale as f64).collect(), widen(x)),
        InputReference::Norm { x, weight, eps } => (times(&rms(&widen(x), eps), weight), widen(x)),
        InputReference::Residual { h, y, post, layer_scale, pre, eps } => {
            let update = times(&rms(&widen(y), eps), post);
            let h: Vec<f64> = h.iter().zip(update).map(|(&a, b)| (a as f64 + b) * layer_scale as f64).collect();
            (pre.map_or(h.clone(), |w| times(&rms(&h, eps), w)), h)
        }
    };
    let sums: Vec<f64> =
        weights.chunks_exact(k).map(|row| row.iter().zip(&x).map(|(w, v)| w.to_f64() * v).sum()).collect();
    let y = match *output {
        OutputReference::Rows => sums,
        OutputReference::GeluMul => {
            let (gate, up) = sums.split_at(sums.len() / 2);
            gate.iter().zip(up).map(|(&g, u)| gelu_tanh(g) * u).collect()
        }
        OutputReference::GeluScale { factor } => {
            sums.iter().zip(factor).map(|(&s, &f)| gelu_tanh(s) * f as f64).collect()
        }
        OutputReference::Softcap { cap } => sums.iter().map(|s| cap as f64 * (s / cap as f64).tanh()).collect(),
    };
    GemvReference { y, h }
}
