//! Operations of our own, as Burn backend extensions: a plain body for every backend, a faster one where it pays.

pub mod linear;

pub use linear::linear;
