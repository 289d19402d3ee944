//! The product with a checkpoint's weight: every route, instruction set and device against a reference in f64.

use burn::tensor::{DType, Device, Distribution, Tensor, TensorData};
use gemma_burn::ops::linear;
use half::bf16;
use rand::{RngExt, SeedableRng, rngs::StdRng};

const MS: [usize; 8] = [1, 2, 3, 7, 8, 13, 33, 128];
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

#[test]
fn linear_on_cubecl_devices_matches_f64() {
    crate::support::each_device(|device| {
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

#[cfg(feature = "flex")]
mod plain_memory {
    use super::{Case, KS, MS, NS, assert_close};
    use burn::tensor::DType;
    use gemma_burn::ops::linear::cpu::{Isa, Stored, Weight, multiply};
    use half::bf16;

    fn product(isa: Isa, case: &Case, m: usize, stored: Stored) -> Vec<f32> {
        let [_, n, k] = case.dims;
        let narrow: Vec<bf16> = case.w.iter().map(|w| bf16::from_f32(*w)).collect();
        let bytes = match stored {
            Stored::F32 => case.w.iter().flat_map(|w| w.to_ne_bytes()).collect::<Vec<u8>>(),
            Stored::Bf16 => narrow.iter().flat_map(|w| w.to_ne_bytes()).collect(),
        };
        let mut y = vec![f32::NAN; m * n];
        multiply(isa, &case.x[..m * k], Weight::rows(&bytes, stored, [n, k]), &mut y);
        y
    }

    fn bits(values: &[f32]) -> Vec<u32> {
        values.iter().map(|v| v.to_bits()).collect()
    }

    #[test]
    fn every_instruction_set_matches_f64_and_the_vector_ones_each_other() {
        println!("instruction sets here: {:?}", Isa::available());
        // The last ones are about the stretches in which K is added up.
        for k in KS.into_iter().chain([300, 1023, 1024, 1025, 1100, 2055]) {
            for n in NS {
                for m in [1, 2, 3, 4, 16, 17, 33] {
                    let case = Case::new(m, n, k);
                    let reference = case.reference();
                    let mut fused: Option<Vec<u32>> = None;
                    for isa in Isa::available() {
                        for stored in [Stored::Bf16, Stored::F32] {
                            let y = product(isa, &case, m, stored);
                            let what = format!("{isa:?} {stored:?} M = {m}, N = {n}, K = {k}");
                            assert_close(&y, &reference, DType::F32, &what);
                            if isa != Isa::Portable {
                                assert_eq!(fused.get_or_insert(bits(&y)), &bits(&y), "{what}");
                            }
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn a_row_has_the_same_bits_alone_and_among_others() {
        for isa in Isa::available() {
            for stored in [Stored::Bf16, Stored::F32] {
                for k in [5, 80, 300, 1029, 1536] {
                    for n in [3, 64, 130] {
                        let case = Case::new(128, n, k);
                        let all = product(isa, &case, 128, stored);
                        for m in MS.into_iter().chain([4, 5, 6, 16, 17, 97]) {
                            let some = product(isa, &case, m, stored);
                            assert_eq!(
                                bits(&some),
                                bits(&all[..m * n]),
                                "{isa:?} {stored:?} {m} rows, N = {n}, K = {k}"
                            );
                        }
                        // And in any other place.
                        let last = Case { x: case.x[127 * k..].to_vec(), w: case.w.clone(), dims: [1, n, k] };
                        assert_eq!(bits(&product(isa, &last, 1, stored)), bits(&all[127 * n..]));
                    }
                }
            }
        }
    }

    #[test]
    fn every_length_of_k_has_the_same_bits_on_both_routes() {
        for isa in Isa::available() {
            for k in (1..=70).chain(505..=530).chain(1020..=1030).chain([2047, 2048, 2049]) {
                let case = Case::new(18, 21, k);
                let many = product(isa, &case, 18, Stored::Bf16);
                assert_close(&many, &case.reference(), DType::F32, &format!("{isa:?} K = {k}"));
                for m in [1, 2, 3] {
                    let few = product(isa, &case, m, Stored::Bf16);
                    assert_eq!(bits(&few), bits(&many[..m * 21]), "{isa:?} {m} rows, K = {k}");
                }
            }
        }
    }

    #[test]
    fn any_place_and_any_strides_give_the_same_bits() {
        let (n, k) = (21, 1037);
        for isa in Isa::available() {
            for m in [1, 3, 18] {
                let case = Case::new(m, n, k);
                for stored in [Stored::Bf16, Stored::F32] {
                    let want = bits(&product(isa, &case, m, stored));
                    let element = |w: f32| match stored {
                        Stored::F32 => w.to_ne_bytes().to_vec(),
                        Stored::Bf16 => bf16::from_f32(w).to_ne_bytes().to_vec(),
                    };
                    // Rows further apart and after an odd number of bytes; columns one after the other; rows backwards.
                    let apart = (0..n).flat_map(|r| (0..k + 3).map(move |c| (r, c.min(k - 1)))).collect::<Vec<_>>();
                    let transposed = (0..k).flat_map(|c| (0..n).map(move |r| (r, c))).collect();
                    let backwards = (0..n).rev().flat_map(|r| (0..k).map(move |c| (r, c))).collect();
                    for (order, start, strides) in [
                        (apart, 0, [k as isize + 3, 1]),
                        (transposed, 0, [1, n as isize]),
                        (backwards, (n - 1) * k, [-(k as isize), 1]),
                    ] {
                        let mut bytes = vec![0xff];
                        bytes.extend(order.iter().flat_map(|(r, c)| element(case.w[r * k + c])));
                        let weight = Weight::strided(&bytes[1..], stored, [n, k], start, strides);
                        let mut y = vec![f32::NAN; m * n];
                        multiply(isa, &case.x, weight, &mut y);
                        assert_eq!(bits(&y), want, "{isa:?} {stored:?} M = {m}, strides {strides:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn a_number_that_is_none_stays_in_its_row_and_column() {
        for m in [1, 6, 20] {
            let mut case = Case::new(m, 40, 300);
            case.w[7 * 300 + 299] = f32::NAN;
            for isa in Isa::available() {
                let y = product(isa, &case, m, Stored::Bf16);
                for (i, v) in y.iter().enumerate() {
                    assert_eq!(v.is_nan(), i % 40 == 7, "{isa:?} value {i}");
                }
            }
        }
    }

    #[test]
    #[should_panic(expected = "leaves its")]
    fn a_weight_larger_than_its_memory_is_refused() {
        Weight::rows(&[0; 63], Stored::Bf16, [4, 8]);
    }
}

#[cfg(feature = "flex")]
mod mapped {
    use super::{Case, f32s};
    use burn::backend::Flex;
    use burn::module::{Param, ParamId};
    use burn::tensor::{AllocationProperty, Bytes, DType, Device, Int, Tensor, TensorData};
    use gemma_burn::ops::linear;
    use std::io::Write;
    use std::ops::Range;

    /// A file with `skip` bytes before the weights, mapped, and a tensor on that memory.
    fn mapped(case: &Case, skip: usize, dtype: DType, device: &Device) -> (Tensor<2>, Range<usize>) {
        let [_, n, k] = case.dims;
        let data = TensorData::new(case.w.clone(), [n, k]).convert_dtype(dtype);
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&vec![0xff; skip]).unwrap();
        file.write_all(data.as_bytes()).unwrap();
        // SAFETY: nobody else has this file.
        let map = unsafe { memmap2::Mmap::map(&file) }.unwrap();
        let bytes = bytes::Bytes::from_owner(map).slice(skip..);
        let place = bytes.as_ptr() as usize..bytes.as_ptr() as usize + bytes.len();
        let data = TensorData::from_bytes(Bytes::from_shared(bytes, AllocationProperty::File), [n, k], dtype);
        (Tensor::from_data(data, (device, dtype)), place)
    }

    fn address(tensor: Tensor<2>) -> usize {
        tensor.try_into_primitive::<Flex>().expect("a flex tensor").bytes().as_ptr() as usize
    }

    #[test]
    fn mapped_weight_gives_the_same_bits_as_an_owned_one() {
        let device = Device::flex();
        for (m, n, k) in [(1, 67, 530), (3, 64, 256), (20, 67, 530)] {
            let case = Case::new(m, n, k);
            for (dtype, skip) in
                [(DType::BF16, 0), (DType::BF16, 2), (DType::BF16, 1), (DType::F32, 2), (DType::F32, 3)]
            {
                let (x, owned) = case.tensors(&device, DType::F32, dtype);
                let (weight, _) = mapped(&case, skip, dtype, &device);
                assert_eq!(
                    f32s(linear(x.clone(), weight)),
                    f32s(linear(x, owned)),
                    "{dtype:?} after {skip} bytes, M = {m}"
                );
            }
        }
    }

    /// What loading relies on: a module's weight is the file.
    #[test]
    fn flex_keeps_mapped_bytes_where_they_are() {
        let device = Device::flex();
        let case = Case::new(1, 640, 96);
        let (weight, place) = mapped(&case, 2, DType::BF16, &device);
        assert_eq!(address(weight.clone()), place.start);
        let param = Param::initialized(ParamId::new(), weight);
        assert_eq!(address(param.val()), place.start);
        assert_eq!(address(param.clone().val()), place.start);
        // Selecting rows, as an embedding does, first makes the table contiguous: which the whole of a mapping is.
        let table = param.val().try_into_primitive::<Flex>().expect("a flex tensor");
        assert_eq!(table.to_contiguous().bytes().as_ptr() as usize, place.start);
        let rows = param.val().select(0, Tensor::<1, Int>::from_data([639, 3], &device));
        assert_eq!(rows.dtype(), DType::BF16);
        assert_eq!(f32s(rows), [&case.w[639 * 96..], &case.w[3 * 96..4 * 96]].concat());
    }
}

#[cfg(feature = "flex")]
mod gradients {
    use super::{Case, f32s};
    use burn::tensor::{DType, Device, Tensor};
    use gemma_burn::ops::linear;

    fn assert_near(got: Tensor<2>, want: Tensor<2>) {
        for (got, want) in f32s(got).iter().zip(f32s(want)) {
            assert!((got - want).abs() <= 1e-5 * (1.0 + want.abs()), "gradient {got}, expected {want}");
        }
    }

    #[test]
    fn gradients_are_those_of_matmul() {
        let device = Device::flex().autodiff();
        let case = Case::new(6, 10, 33);
        let (x, w) = case.tensors(&device, DType::F32, DType::F32);
        let weigh = Tensor::<2>::from_data(super::TensorData::new(case.x[..60].to_vec(), [6, 10]), &device);
        let gradients = |product: fn(Tensor<2>, Tensor<2>) -> Tensor<2>| {
            let (x, w) = (x.clone().require_grad(), w.clone().require_grad());
            let grads = (product(x.clone(), w.clone()) * weigh.clone()).sum().backward();
            (x.grad(&grads).expect("x was tracked"), w.grad(&grads).expect("w was tracked"))
        };
        let (x_ours, w_ours) = gradients(|x, w| linear(x.reshape([2, 3, 33]), w).reshape([6, 10]));
        let (x_plain, w_plain) = gradients(|x, w| x.matmul(w.transpose()));
        assert_near(x_ours, x_plain);
        assert_near(w_ours, w_plain);
    }

    #[test]
    fn gradients_flow_to_a_bf16_weight() {
        let device = Device::flex().autodiff();
        let case = Case::new(3, 8, 20);
        let (x, w) = case.tensors(&device, DType::F32, DType::BF16);
        let (x, w) = (x.require_grad(), w.require_grad());
        let grads = linear(x.clone(), w.clone()).sum().backward();
        // Of a plain sum: each row of w gets the sum of x's rows, each row of x the sum of w's.
        let (x_grad, w_grad) = (x.grad(&grads).expect("x was tracked"), w.grad(&grads).expect("w was tracked"));
        let plain = Device::flex();
        let (x, w) = case.tensors(&plain, DType::F32, DType::F32);
        assert_near(x_grad, w.sum_dim(0).repeat_dim(0, 3));
        for (got, want) in f32s(w_grad).iter().zip(f32s(x.sum_dim(0).repeat_dim(0, 8))) {
            // The gradient may be kept in the dtype of the weight.
            assert!((got - want).abs() <= want.abs() / 128.0 + 1e-6, "gradient {got}, expected {want}");
        }
    }
}
