//! The product on plain memory, for each instruction set.

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
                        assert_eq!(bits(&some), bits(&all[..m * n]), "{isa:?} {stored:?} {m} rows, N = {n}, K = {k}");
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
