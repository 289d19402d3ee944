//! Weights that are a mapped file.

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
        for (dtype, skip) in [(DType::BF16, 0), (DType::BF16, 2), (DType::BF16, 1), (DType::F32, 2), (DType::F32, 3)] {
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
