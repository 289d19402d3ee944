use cubecl::client::Client;
use cubecl::prelude::*;
use half::bf16;

use super::GemvConfig;
use super::kernel::{Blueprint, Epilogue, gemv_kernel};
use crate::{Buffer, Caps, Rejected};

const KERNEL: &str = "gemv";
const PACKED_BYTES: usize = 16;
const QUAD_BYTES: usize = 16;

/// One weight matrix `[rows, K]`, as it lies in the checkpoint.
#[derive(Clone, Copy, Debug)]
pub struct Weight<'a> {
    /// `rows · K` elements.
    pub data: &'a Buffer<bf16>,
    /// Output features.
    pub rows: usize,
}

/// Where the multiplied vector comes from. Every buffer has K elements.
#[derive(Clone, Copy, Debug)]
pub enum Input<'a> {
    /// `x · scale`.
    Plain {
        /// The vector.
        x: &'a Buffer<f32>,
        /// A constant factor (it becomes part of a captured graph).
        scale: f32,
    },
    /// `rms(x) · weight`, where `rms(x) = x / √(mean(x²) + eps)`.
    Norm {
        /// The vector before the norm.
        x: &'a Buffer<f32>,
        /// Weights of the norm.
        weight: &'a Buffer<f32>,
        /// Added to the mean square.
        eps: f32,
    },
    /// `h' = (h + rms(y) · post) · layer_scale`, stored to `h_out`; the vector is `rms(h') · pre`, or h' itself without
    /// `pre`.
    Residual {
        /// The residual stream before the update.
        h: &'a Buffer<f32>,
        /// What the previous block computed.
        y: &'a Buffer<f32>,
        /// Weights of the norm on y.
        post: &'a Buffer<f32>,
        /// One element; 1 where absent.
        layer_scale: Option<&'a Buffer<f32>>,
        /// Weights of the norm on h'.
        pre: Option<&'a Buffer<f32>>,
        /// Receives h'; another buffer than `h`.
        h_out: &'a Buffer<f32>,
        /// Added to the mean squares of both norms.
        eps: f32,
    },
}

/// What becomes of the products `s`.
#[derive(Clone, Copy, Debug)]
pub enum Output<'a> {
    /// `y = s`, the rows of all weights one after another.
    Rows {
        /// As many elements as all weights have rows.
        y: &'a Buffer<f32>,
    },
    /// `y = gelu_tanh(s of the first weight) · s of the second`.
    GeluMul {
        /// As many elements as one weight has rows.
        y: &'a Buffer<f32>,
    },
    /// `y[i] = gelu_tanh(s[i]) · factor[offset + i]`.
    GeluScale {
        /// As many elements as there are rows.
        y: &'a Buffer<f32>,
        /// At least `offset + rows` elements.
        factor: &'a Buffer<f32>,
        /// First element used.
        offset: usize,
    },
    /// The largest `cap · tanh(s / cap)` (or s) of each cube and its row, for [`argmax`](crate::argmax::argmax).
    Argmax {
        /// The soft cap, where there is one.
        cap: Option<f32>,
        /// Two words per cube; [`partials_len`] says how many.
        partials: &'a Buffer<u32>,
        /// Receives all (capped) values where given.
        logits: Option<&'a Buffer<f32>>,
    },
}

/// One launch.
#[derive(Clone, Copy, Debug)]
pub struct Gemv<'a> {
    /// One to three weights with the same K.
    pub weights: &'a [Weight<'a>],
    /// Columns of every weight.
    pub k: usize,
    /// The prologue.
    pub input: Input<'a>,
    /// The epilogue.
    pub output: Output<'a>,
    /// `None` takes the best known one.
    pub config: Option<GemvConfig>,
}

/// Words that `partials` of [`Output::Argmax`] needs for `rows` rows: two per cube.
pub fn partials_len(rows: usize, k: usize, config: Option<GemvConfig>, caps: &Caps) -> usize {
    let config = config.unwrap_or_else(|| GemvConfig::choose(rows, k, Epilogue::Argmax, caps));
    2 * rows.div_ceil(config.rows_per_cube())
}

/// Launches `op`.
///
/// # Shapes
/// Weights `[rows, K]` bf16, vectors `[K]` f32, results `[rows]` f32.
///
/// # Errors
/// [`Rejected`] for shapes outside **Supported** in the [module's documentation](super), with sizes; nothing was launched.
/// A failing launch is reported by the next read of one of its results.
pub fn gemv(client: &Client, caps: Caps, op: &Gemv) -> Result<(), Rejected> {
    let checked = check(&caps, op)?;
    let Gemv { weights, input, output, .. } = *op;
    let (x, scale, eps) = match input {
        Input::Plain { x, scale } => (x, scale, 0.0),
        Input::Norm { x, eps, .. } => (x, 1.0, eps),
        Input::Residual { h, eps, .. } => (h, 1.0, eps),
    };
    let (mut y_previous, mut post, mut layer_scale, mut pre, mut h_out) = (None, None, None, None, None);
    match input {
        Input::Plain { .. } => {}
        Input::Norm { weight, .. } => pre = Some(weight),
        Input::Residual { y, post: p, layer_scale: s, pre: w, h_out: out, .. } => {
            (y_previous, post, layer_scale, pre, h_out) = (Some(y), Some(p), s, w, Some(out));
        }
    }
    let (y, partials, factor, factor_offset, cap) = match output {
        Output::Rows { y } | Output::GeluMul { y } => (Some(y), None, None, 0, 0.0),
        Output::GeluScale { y, factor, offset } => (Some(y), None, Some(factor), offset, 0.0),
        Output::Argmax { cap, partials, logits } => (logits, Some(partials), None, 0, cap.unwrap_or(0.0)),
    };
    let mut ends = SequenceArg::new();
    let mut end = 0u32;
    for weight in weights {
        end += weight.rows as u32;
        ends.push(end);
    }
    let quads = |buffer: &Buffer<f32>| buffer.arg_of(QUAD_BYTES);
    let cubes = checked.outputs.div_ceil(checked.outputs_per_cube) as u32;
    // SAFETY: `check` compared every buffer with the shape that the kernel indexes.
    unsafe {
        gemv_kernel::launch_unchecked(
            client,
            cube_count(cubes),
            CubeDim::new_2d(caps.lanes, checked.blueprint.config.planes),
            weights.iter().map(|w| w.data.arg_of(PACKED_BYTES)).collect(),
            quads(x),
            y_previous.map(quads).into(),
            post.map(quads).into(),
            layer_scale.map(Buffer::arg).into(),
            pre.map(quads).into(),
            factor.map(Buffer::arg).into(),
            h_out.map(quads).into(),
            y.map(Buffer::arg).into(),
            partials.map(Buffer::arg).into(),
            ends,
            factor_offset as u32,
            scale,
            eps,
            cap,
            checked.blueprint,
        );
    }
    Ok(())
}

fn cube_count(cubes: u32) -> CubeCount {
    CubeCount::Static(cubes, 1, 1)
}

struct Checked {
    blueprint: Blueprint,
    outputs: usize,
    outputs_per_cube: usize,
}

fn check(caps: &Caps, op: &Gemv) -> Result<Checked, Rejected> {
    let k = op.k;
    let refuse = |ok: bool, reason: &dyn Fn() -> String| Rejected::unless(ok, KERNEL, reason);
    refuse(k > 0 && k.is_multiple_of(8), &|| format!("K = {k}, expected a multiple of 8"))?;
    refuse((1..=3).contains(&op.weights.len()), &|| format!("{} weights, expected one to three", op.weights.len()))?;
    for (i, w) in op.weights.iter().enumerate() {
        refuse(w.rows > 0 && w.data.len() == w.rows * k, &|| {
            format!("weight {i} has {} elements, expected [{}, {k}]", w.data.len(), w.rows)
        })?;
    }
    let rows: usize = op.weights.iter().map(|w| w.rows).sum();
    let epilogue = match op.output {
        Output::Rows { .. } => Epilogue::Plain,
        Output::GeluMul { .. } => Epilogue::GeluMul,
        Output::GeluScale { .. } => Epilogue::GeluScale,
        Output::Argmax { cap: Some(_), .. } => Epilogue::SoftcapArgmax,
        Output::Argmax { cap: None, .. } => Epilogue::Argmax,
    };
    let pairs = epilogue == Epilogue::GeluMul;
    refuse(!pairs || (op.weights.len() == 2 && op.weights[0].rows == op.weights[1].rows), &|| {
        "gelu · mul needs two weights of equal height".into()
    })?;
    let outputs = if pairs { rows / 2 } else { rows };
    let config = op.config.unwrap_or_else(|| GemvConfig::choose(rows, k, epilogue, caps));
    if let Some(problem) = config.problem(k, epilogue, caps) {
        return Err(Rejected::new(KERNEL, problem));
    }
    let blueprint = Blueprint { k_vec: k as u32 / 8, epilogue, config, caps: *caps };
    let outputs_per_cube = config.rows_per_cube() / if pairs { 2 } else { 1 };
    let shared = shared_bytes(
        &blueprint,
        matches!(op.input, Input::Residual { .. }),
        matches!(op.output, Output::Argmax { .. }),
    );
    refuse(shared <= caps.shared_bytes as usize, &|| {
        format!("needs {shared} bytes of shared memory, the device has {}", caps.shared_bytes)
    })?;

    let vector = |name: &str, buffer: &Buffer<f32>, expected: usize| {
        Rejected::unless(buffer.len() == expected, KERNEL, || {
            format!("{name} has {} elements, expected {expected}", buffer.len())
        })
    };
    match op.input {
        Input::Plain { x, .. } => vector("x", x, k)?,
        Input::Norm { x, weight, .. } => {
            vector("x", x, k)?;
            vector("norm weight", weight, k)?;
        }
        Input::Residual { h, y, post, layer_scale, pre, h_out, .. } => {
            for (name, buffer) in [("h", h), ("y", y), ("post norm weight", post), ("h_out", h_out)] {
                vector(name, buffer, k)?;
            }
            if let Some(scale) = layer_scale {
                vector("layer scale", scale, 1)?;
            }
            if let Some(pre) = pre {
                vector("pre norm weight", pre, k)?;
            }
        }
    }
    match op.output {
        Output::Rows { y } | Output::GeluMul { y } => vector("y", y, outputs)?,
        Output::GeluScale { y, factor, offset } => {
            vector("y", y, outputs)?;
            refuse(factor.len() >= offset + outputs, &|| {
                format!("factor has {} elements, expected at least {offset} + {outputs}", factor.len())
            })?;
        }
        Output::Argmax { partials, logits, .. } => {
            let needed = 2 * outputs.div_ceil(outputs_per_cube);
            refuse(partials.len() == needed, &|| format!("partials have {} words, expected {needed}", partials.len()))?;
            if let Some(logits) = logits {
                vector("logits", logits, outputs)?;
            }
        }
    }
    Ok(Checked { blueprint, outputs, outputs_per_cube })
}

fn shared_bytes(b: &Blueprint, residual: bool, finds_largest: bool) -> usize {
    let planes = b.config.planes as usize;
    let staged = if residual { b.k_vec as usize * 8 } else { 0 };
    let scratch = if b.caps.plane_ops { 1 } else { b.units() };
    let found = if finds_largest { 2 * b.units() } else { 0 };
    4 * (staged + scratch + found + 2 * planes + planes * b.steps())
}
