//! The plain path.

use std::time::Instant;

use burn::tensor::{DType, Device};

use super::{BenchOptions, BenchReport, Measured, kv_read, prompt, report};
use crate::Result;
use crate::cache::KvCache;
use crate::engine::{PREFILL_CHUNK, prefill, step};
use crate::model::Gemma;
use crate::parity::argmax;

/// Times prefill and greedy decoding on the plain path. One run of both goes before, so that nothing is compiled or tuned
/// in the timed one.
///
/// # Errors
/// A run that fails.
pub fn bench_plain(model: &Gemma, device: &Device, options: &BenchOptions) -> Result<BenchReport> {
    let ids = prompt(model.config(), options.prompt_tokens);
    let mut last = None;
    for _ in 0..2 {
        let mut cache = KvCache::new(model.config());
        let started = Instant::now();
        let mut logits = prefill(model, device, &mut cache, &ids, PREFILL_CHUNK)?;
        let prefill_ms = started.elapsed().as_secs_f64() * 1e3;
        let started = Instant::now();
        for _ in 0..options.gen_tokens {
            logits = step(model, device, &mut cache, &[argmax(&logits) as u32])?;
        }
        last = Some((prefill_ms, started.elapsed().as_secs_f64() * 1e3, cache.bytes()));
    }
    let (prefill_ms, decode_ms, kv_bytes) = last.expect("two runs were made");
    let position = options.prompt_tokens + options.gen_tokens / 2;
    let weights = model.config().matrix_elements_per_token() * model.embed_tokens.weight.val().dtype().size();
    let bytes_per_token = weights + kv_read(model.config(), position, DType::from(model.dtype()).size());
    let measured = Measured {
        path: "plain",
        prefill_ms,
        decode_ms,
        bytes_per_token,
        kv_bytes,
        host_us_per_token: None,
        build_ms: None,
        kernels: vec![],
    };
    Ok(report(options, device, measured))
}
