//! The product with a checkpoint's weight: every route, instruction set and device against a reference in f64.

#[cfg(feature = "flex")]
mod gradients;
#[cfg(feature = "flex")]
mod mapped;
#[cfg(feature = "flex")]
mod plain_memory;

#[cfg(feature = "flex")]
use burn::tensor::Distribution;
use burn::tensor::{DType, Device, Tensor, TensorData};
use gemma_burn::ops::linear;
use half::bf16;
use rand::{RngExt, SeedableRng, rngs::StdRng};

#[cfg(feature = "flex")]
const MS: [usize; 8] = [1, 2, 3, 7, 8, 13, 33, 128];
#[cfg(feature = "flex")]
const KS: [usize; 6] = [1, 5, 16, 80, 96, 1536];
const NS: [usize; 4] = [1, 3, 64, 640];

/// Operands that bf16 holds exactly, so that one reference serves every dtype.
struct Case {
    x: Vec<f32>,
    w: Vec<f32>,
    dims: [usize; 3],
}

impl Case {
    fn new(m: usize, n: usize, k: usize) -> Self {
        let mut rng = StdRng::seed_from_u64((m * 1_000_003 + n * 1009 + k) as u64);
        let mut values =
            |len: usize| (0..len).map(|_| bf16::from_f32(rng.random_range(-1.0f32..1.0)).to_f32()).collect::<Vec<_>>();
        Self { x: values(m * k), w: values(n * k), dims: [m, n, k] }
    }

    fn tensors(&self, device: &Device, x: DType, w: DType) -> (Tensor<2>, Tensor<2>) {
        let [m, n, k] = self.dims;
        let tensor = |values: &[f32], shape: [usize; 2], dtype: DType| {
            Tensor::from_data(TensorData::new(values.to_vec(), shape).convert_dtype(dtype), (device, dtype))
        };
        (tensor(&self.x, [m, k], x), tensor(&self.w, [n, k], w))
    }

    /// The exact sums, and the sums of magnitudes that rounding errors are measured by.
    fn reference(&self) -> Vec<(f64, f64)> {
        let [m, n, k] = self.dims;
        let mut out = Vec::with_capacity(m * n);
        for x in self.x.chunks(k).take(m) {
            for w in self.w.chunks(k).take(n) {
                out.push(x.iter().zip(w).fold((0.0, 0.0), |(sum, size), (x, w)| {
                    let product = f64::from(*x) * f64::from(*w);
                    (sum + product, size + product.abs())
                }));
            }
        }
        out
    }
}

fn f32s(tensor: Tensor<2>) -> Vec<f32> {
    tensor.into_data().convert::<f32>().try_to_vec().expect("converted to f32")
}

fn assert_close(y: &[f32], reference: &[(f64, f64)], dtype: DType, what: &str) {
    assert_eq!(y.len(), reference.len(), "{what}");
    for (i, (y, (want, size))) in y.iter().zip(reference).enumerate() {
        // f32 sums of up to 1536 products in no particular order; bf16 has eight bits.
        let rounding = if dtype == DType::BF16 { want.abs() / 256.0 } else { 0.0 };
        let error = (f64::from(*y) - want).abs();
        assert!(error <= size * 2e-6 + rounding, "{what}: value {i} is {y}, expected {want}, off by {error:.2e}");
    }
}

fn check_device(device: &Device, xs: &[DType], ws: &[DType], ms: &[usize], ks: &[usize]) {
    for &m in ms {
        for &k in ks {
            for n in NS {
                let case = Case::new(m, n, k);
                let reference = case.reference();
                for &x_dtype in xs {
                    for &w_dtype in ws {
                        let (x, w) = case.tensors(device, x_dtype, w_dtype);
                        let y = linear(x, w);
                        assert_eq!(y.dtype(), x_dtype);
                        assert_eq!(y.dims(), [m, n]);
                        let what = format!("x [{m}, {k}] {x_dtype:?}, w [{n}, {k}] {w_dtype:?} on {device:?}");
                        assert_close(&f32s(y), &reference, x_dtype, &what);
                    }
                }
            }
        }
    }
}

#[cfg(feature = "flex")]
#[test]
fn linear_on_flex_matches_f64() {
    check_device(&Device::flex(), &[DType::F32, DType::BF16], &[DType::BF16, DType::F32], &MS, &KS);
}

#[cfg(feature = "ndarray")]
#[test]
#[allow(deprecated, reason = "deprecated upstream, but asked for")]
fn linear_on_ndarray_matches_f64() {
    check_device(&Device::ndarray(), &[DType::F32], &[DType::F32], &[1, 3, 33], &[1, 80, 1536]);
}

#[cfg(feature = "cube")]
#[test]
fn linear_on_cubecl_devices_matches_f64() {
    crate::cubecl_devices::each_device(|device| {
        check_device(&device, &[DType::F32], &[DType::F32], &[1, 3, 33], &[5, 96]);
    });
}

#[cfg(feature = "flex")]
#[test]
fn linear_keeps_leading_dimensions() {
    let device = Device::flex();
    let case = Case::new(12, 40, 33);
    let (x, w) = case.tensors(&device, DType::F32, DType::BF16);
    let flat = f32s(linear(x.clone(), w.clone()));
    let deep = linear(x.clone().reshape([2, 3, 2, 33]), w.clone());
    assert_eq!(deep.dims(), [2, 3, 2, 40]);
    assert_eq!(deep.into_data().try_to_vec::<f32>().unwrap(), flat);
    let one = linear(x.narrow(0, 3, 1).reshape([33]), w);
    assert_eq!(one.dims(), [40]);
    assert_eq!(one.into_data().try_to_vec::<f32>().unwrap(), flat[120..160]);
}

#[cfg(feature = "flex")]
#[test]
fn linear_of_no_rows_is_empty() {
    let device = Device::flex();
    let w = Tensor::<2>::zeros([6, 4], (&device, DType::BF16));
    let x = Tensor::<3>::zeros([2, 0, 4], &device);
    assert_eq!(linear(x, w).dims(), [2, 0, 6]);
}

#[cfg(feature = "flex")]
#[test]
#[should_panic(expected = "does not end with")]
fn linear_of_another_width_panics() {
    let device = Device::flex();
    linear(Tensor::<2>::zeros([1, 5], &device), Tensor::zeros([6, 4], &device));
}

#[cfg(feature = "flex")]
#[test]
fn linear_of_views_matches_that_of_copies() {
    let device = Device::flex();
    for dtype in [DType::BF16, DType::F32] {
        for m in [1, 4, 21] {
            // x transposed; w transposed, and a part of something larger.
            let x = Tensor::<2>::random([300, m], Distribution::Default, &device).swap_dims(0, 1);
            let w = Tensor::<2>::random([310, 90], Distribution::Default, &device).cast(dtype);
            let w = w.slice([7..307, 5..85]).swap_dims(0, 1);
            let copy = |t: &Tensor<2>| Tensor::<2>::from_data(t.to_data(), (&device, t.dtype()));
            assert_eq!(f32s(linear(x.clone(), w.clone())), f32s(linear(copy(&x), copy(&w))), "{dtype:?} M = {m}");
            let w = w.swap_dims(0, 1).slice([3..290, 2..70]); // rows dense, but not next to each other
            let x = x.slice([0..m, 9..77]);
            assert_eq!(f32s(linear(x.clone(), w.clone())), f32s(linear(copy(&x), copy(&w))), "{dtype:?} M = {m}");
        }
    }
}
