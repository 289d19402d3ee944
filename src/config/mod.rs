mod generation;
pub use generation::*;
