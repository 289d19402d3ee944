//! Training: the plain path's modules, Burn's autodiff and AdamW.
//!
//! A [`Trainer`] owns the weights on the plain device and lifts them for one forward and backward pass at a time, so that
//! evaluating and saving never meet a gradient graph. What a step does follows from its number and the seed alone: a run
//! that was interrupted and resumed gives the same weights as one that was not.

mod checkpoint;
mod loss;
mod optimizer;
mod schedule;
mod text;
mod trainer;

pub use loss::token_losses;
pub use schedule::Schedule;
pub use text::{Batch, Text};
pub use trainer::{Trainer, TrainingOptions};
