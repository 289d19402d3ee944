//! A look at the activations on the way, by the names that reference dumps use.

use std::fmt;

use burn::tensor::Tensor;

/// A named place in the forward pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Probe {
    /// Scaled input embeddings, `[B, T, E]`.
    Embeds,
    /// Per-layer inputs as the layers receive them, `[B, T, L*P]`.
    PerLayer,
    /// Output of `o_proj` before its post-norm, `[B, T, E]`.
    Attention(usize),
    /// Output of `down_proj` before its post-norm, `[B, T, E]`.
    Mlp(usize),
    /// Output of the layer, `[B, T, E]`.
    Hidden(usize),
    /// After the final norm, `[B, T, E]`.
    Final,
    /// Soft-capped logits, `[B, T, V]`.
    Logits,
}

impl fmt::Display for Probe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Embeds => f.write_str("embeds"),
            Self::PerLayer => f.write_str("ple"),
            Self::Attention(layer) => write!(f, "attn.{layer}"),
            Self::Mlp(layer) => write!(f, "mlp.{layer}"),
            Self::Hidden(layer) => write!(f, "hidden.{layer}"),
            Self::Final => f.write_str("final"),
            Self::Logits => f.write_str("logits"),
        }
    }
}

/// Receives activations as they appear. `()` ignores them.
pub trait Tap {
    /// Called once per probe and forward pass.
    fn record(&mut self, at: Probe, x: &Tensor<3>);
}

impl Tap for () {
    fn record(&mut self, _: Probe, _: &Tensor<3>) {}
}
