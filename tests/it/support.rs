//! What several stages' tests need: fixtures, devices, prompts.

use std::path::PathBuf;

use burn::tensor::{DType, Int, Tensor};
use gemma_burn::cache::KvCache;
use gemma_burn::model::{Gemma, Output, ids_tensor};
use gemma_burn::weights::{LoadOptions, load};
use gemma_burn::{Device, Dtype, device};

/// The committed checkpoints: E2B-like, E4B-like, 31B-like.
pub const FIXTURES: [&str; 3] = ["tiny-e2b", "tiny-e4b", "tiny-31b"];

/// The project's folder: as cargo says at run time, for a target folder may serve several clones; where the tests are
/// started without cargo, the current one.
pub fn root() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(|| ".".into(), PathBuf::from)
}

/// Folder of a committed checkpoint.
pub fn fixture(name: &str) -> PathBuf {
    root().join("tests/fixtures").join(name)
}

/// The CPU device of the default build.
pub fn cpu() -> Device {
    device("cpu").expect("tests are built with flex")
}

/// A fixture's model on the CPU, computing in f32.
pub fn model(name: &str) -> Gemma {
    load(fixture(name), &cpu(), &LoadOptions { dtype: Some(Dtype::F32), ..Default::default() })
        .expect("the fixture loads")
        .0
}

/// `[1, T]` ids.
pub fn ids(tokens: &[u32]) -> Tensor<2, Int> {
    ids_tensor(tokens, &cpu())
}

/// A prompt of ordinary tokens, the same for the same length and seed.
pub fn prompt(len: usize, seed: u32) -> Vec<u32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(12345);
    let mut next = || {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        120 + (state >> 8) % 500
    };
    std::iter::once(2).chain(std::iter::repeat_with(&mut next)).take(len).collect()
}

/// The values of `[1, T, W]` as rows.
pub fn rows(x: Tensor<3>) -> Vec<Vec<f32>> {
    let width = x.dims()[2];
    let values: Vec<f32> = x.cast(DType::F32).into_data().try_to_vec().expect("f32 values");
    values.chunks(width).map(<[f32]>::to_vec).collect()
}

/// Logits of all positions in one pass without a past.
pub fn uncached(model: &Gemma, tokens: &[u32]) -> Vec<Vec<f32>> {
    rows(model.forward(ids(tokens), &mut KvCache::new(model.config()), Output::All))
}

/// Largest absolute difference; infinite where anything is not finite.
pub fn max_difference(a: &[f32], b: &[f32]) -> f32 {
    assert_eq!(a.len(), b.len());
    a.iter()
        .zip(b)
        .map(|(x, y)| if x.is_finite() && y.is_finite() { (x - y).abs() } else { f32::INFINITY })
        .fold(0.0, f32::max)
}

/// Root mean square of the differences over that of `want`; infinite where anything is not finite.
pub fn rms_ratio(got: &[f32], want: &[f32]) -> f64 {
    assert_eq!(got.len(), want.len());
    let squares = |values: &mut dyn Iterator<Item = f64>| values.map(|v| v * v).sum::<f64>();
    let error = squares(&mut got.iter().zip(want).map(|(g, w)| f64::from(*g) - f64::from(*w)));
    let ratio = (error / squares(&mut want.iter().map(|w| f64::from(*w)))).sqrt();
    if ratio.is_finite() { ratio } else { f64::INFINITY }
}
