//! Speed of a loaded model: prompt and decoding separately, and how near decoding comes to the memory's speed.

mod bandwidth;
#[cfg(feature = "cube")]
mod fused;
mod plain;

use burn::tensor::Device;
use serde::Serialize;

pub use bandwidth::read_bandwidth;
#[cfg(feature = "cube")]
pub use fused::bench_fused;
pub use plain::bench_plain;

use crate::config::GemmaConfig;

/// What to measure.
#[derive(Debug, Clone, Copy)]
pub struct BenchOptions {
    /// Tokens of the prompt: the context that decoding starts from.
    pub prompt_tokens: usize,
    /// Tokens that are decoded.
    pub gen_tokens: usize,
    /// Also time every kind of kernel alone.
    pub kernels: bool,
}

/// What was measured.
#[derive(Debug, Clone, Serialize)]
pub struct BenchReport {
    pub path: &'static str,
    pub prompt_tokens: usize,
    pub prefill_ms: f64,
    pub prefill_tokens_per_second: f64,
    pub gen_tokens: usize,
    pub decode_ms_per_token: f64,
    pub decode_tokens_per_second: f64,
    /// Bytes that one token must read: weights, keys and values.
    pub bytes_per_token: usize,
    pub decode_gb_per_second: f64,
    /// Measured on the same device in the same run.
    pub read_bandwidth_gb_per_second: Option<f64>,
    pub share_of_read_bandwidth: Option<f64>,
    /// Time that the host is busy for one token, where the device decodes by itself.
    pub host_us_per_token: Option<f64>,
    /// Building the fused step: compiling kernels and capturing graphs.
    pub build_ms: Option<f64>,
    pub kv_bytes: usize,
    /// Device memory in use at the end, where the device tells.
    pub device_bytes_in_use: Option<u64>,
    pub kernels: Vec<KernelRow>,
}

/// One kind of kernel, all its launches of one token together.
#[derive(Debug, Clone, Serialize)]
pub struct KernelRow {
    pub kernel: &'static str,
    pub launches: usize,
    pub us: f64,
    pub weight_bytes: usize,
    pub gb_per_second: f64,
}

/// Times and sizes that a path measured.
struct Measured {
    path: &'static str,
    prefill_ms: f64,
    decode_ms: f64,
    bytes_per_token: usize,
    kv_bytes: usize,
    host_us_per_token: Option<f64>,
    build_ms: Option<f64>,
    kernels: Vec<KernelRow>,
}

fn report(options: &BenchOptions, device: &Device, m: Measured) -> BenchReport {
    let BenchOptions { prompt_tokens, gen_tokens, .. } = *options;
    let per_token = m.decode_ms / gen_tokens as f64;
    let rate = m.bytes_per_token as f64 / per_token / 1e6;
    let bandwidth = read_bandwidth(device);
    BenchReport {
        path: m.path,
        prompt_tokens,
        prefill_ms: m.prefill_ms,
        prefill_tokens_per_second: prompt_tokens as f64 * 1e3 / m.prefill_ms,
        gen_tokens,
        decode_ms_per_token: per_token,
        decode_tokens_per_second: 1e3 / per_token,
        bytes_per_token: m.bytes_per_token,
        decode_gb_per_second: rate,
        read_bandwidth_gb_per_second: bandwidth,
        share_of_read_bandwidth: bandwidth.map(|bandwidth| rate / bandwidth),
        host_us_per_token: m.host_us_per_token,
        build_ms: m.build_ms,
        kv_bytes: m.kv_bytes,
        device_bytes_in_use: device.memory_pool_usage().map(|usage| usage.bytes_in_use),
        kernels: m.kernels,
    }
}

/// Bytes of keys and values that a token at `position` reads.
fn kv_read(config: &GemmaConfig, position: usize, element: usize) -> usize {
    let seen = |window: Option<usize>| (position + 1).min(window.unwrap_or(usize::MAX));
    config.layers.iter().map(|l| 2 * l.kv_heads * l.head_dim * seen(l.window) * element).sum()
}

/// Ordinary token ids for a prompt whose text does not matter.
pub fn prompt(config: &GemmaConfig, len: usize) -> Vec<u32> {
    let usable = (config.vocab_size / 2) as u32;
    (0..len as u32).map(|i| usable / 2 + (i.wrapping_mul(2_654_435_761) >> 8) % usable).collect()
}
