//! Operations for which Burn's own do not serve: plain bodies for every backend, faster ones where they pay.

pub mod attention;
#[allow(deprecated, reason = "ndarray gives way to flex upstream; it stays a feature here")]
pub mod linear;

pub use attention::attention;
pub use linear::linear;
