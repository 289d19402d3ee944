//! What training makes small.

use burn::tensor::{Int, Tensor, activation::log_softmax};

/// Negative log-likelihood of the token that came next, in nats.
///
/// # Shapes
/// logits `[B, T, V]`, targets `[B, T]` → `[B, T]`
pub fn token_losses(logits: Tensor<3>, targets: Tensor<2, Int>) -> Tensor<2> {
    log_softmax(logits, 2).gather(2, targets.unsqueeze_dim(2)).squeeze_dim::<2>(2).neg()
}
