//! The one test binary of the kernels: a module per kernel.
