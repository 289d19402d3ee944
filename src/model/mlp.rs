//! The gated feed-forward block.

use burn::module::Module;
use burn::tensor::{Device, Tensor};

use super::projection::Projection;

/// Several GPU drivers return NaN for the tanh of large numbers; beyond this it is 1 in f32 anyway.
const TANH_LIMIT: f64 = 15.0;
/// e^this squared is finite in f32, as gradients need it; a GELU beyond it is 0 to seventeen digits.
const EXP_LIMIT: f64 = 40.0;

/// `down(gelu(gate(x)) * up(x))`.
#[derive(Module, Debug)]
pub struct GatedMlp {
    pub gate_proj: Projection,
    pub up_proj: Projection,
    pub down_proj: Projection,
}

impl GatedMlp {
    pub fn init(hidden: usize, width: usize, device: &Device) -> Self {
        Self {
            gate_proj: Projection::init(hidden, width, device),
            up_proj: Projection::init(hidden, width, device),
            down_proj: Projection::init(width, hidden, device),
        }
    }

    /// # Shapes
    /// `[B, T, E]` → `[B, T, E]`
    pub fn forward(&self, h: Tensor<3>) -> Tensor<3> {
        let gate = gelu_tanh(self.gate_proj.forward(h.clone())); // [B, T, F]
        self.down_proj.forward(gate * self.up_proj.forward(h))
    }
}

/// The tanh approximation of GELU, in f32 with one rounding at the end: `x · (1 + tanh z) / 2`, which is
/// `x / (1 + e^(-2z))`.
pub fn gelu_tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    const SQRT_8_OVER_PI: f64 = 1.595_769_121_605_730_8;
    const CUBIC: f64 = 0.044715;
    let dtype = x.dtype();
    let x = x.cast(burn::tensor::FloatDType::F32);
    let minus_2z = (x.clone() * x.clone() * (-CUBIC * SQRT_8_OVER_PI) - SQRT_8_OVER_PI) * x.clone();
    (x / (minus_2z.clamp_max(EXP_LIMIT).exp() + 1.0)).cast(dtype)
}

/// tanh that stays finite on every device.
pub fn tanh<const D: usize>(x: Tensor<D>) -> Tensor<D> {
    x.clamp(-TANH_LIMIT, TANH_LIMIT).tanh()
}
