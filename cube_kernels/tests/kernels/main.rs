//! The one test binary of the kernels: a module per kernel.
mod argmax;
mod attention;
mod embed;
mod gemv;
mod kv_import;
mod math;
mod ple_combine;
mod support;
