//! CubeCL kernels: they know shapes and dtypes, never the model.
