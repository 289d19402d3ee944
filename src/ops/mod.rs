//! Operations for which Burn's own do not serve: plain bodies for every backend, faster ones where they pay.

pub mod attention;
pub mod linear;

pub use attention::attention;
pub use linear::linear;
