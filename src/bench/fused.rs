//! The fused path.

use std::time::Instant;

use burn::tensor::{DType, Device};

use super::{BenchOptions, BenchReport, KernelRow, Measured, kv_read, prompt, report};
use crate::Result;
use crate::device::Dtype;
use crate::fused::{FusedOptions, FusedStep};
use crate::model::Gemma;

/// Runs of the decode loop; the median counts.
const RUNS: usize = 3;

/// Times prefill and greedy decoding on the fused path.
///
/// # Errors
/// A model that the path does not serve, a run that fails.
pub fn bench_fused(model: &Gemma, device: &Device, kv: Dtype, options: &BenchOptions) -> Result<BenchReport> {
    let ids = prompt(model.config(), options.prompt_tokens);
    let started = Instant::now();
    let context = options.prompt_tokens + (RUNS + 1) * options.gen_tokens + 1;
    let mut fused = FusedStep::new(model, &FusedOptions { context, kv, end_ids: vec![], graph: true })?;
    wait(device)?;
    let build_ms = started.elapsed().as_secs_f64() * 1e3;

    let started = Instant::now();
    fused.prefill(&ids)?;
    wait(device)?;
    let prefill_ms = started.elapsed().as_secs_f64() * 1e3;

    let mut runs = Vec::new();
    for _ in 0..=RUNS {
        runs.push(decode(&mut fused, device, options.gen_tokens)?);
    }
    runs.remove(0);
    runs.sort_by(|a, b| a.0.total_cmp(&b.0));
    let (decode_ms, host_ms) = runs[RUNS / 2];

    let position = options.prompt_tokens + options.gen_tokens * (RUNS + 1) / 2;
    let measured = Measured {
        path: "fused",
        prefill_ms,
        decode_ms,
        bytes_per_token: fused.weight_bytes() + kv_read(model.config(), position, DType::from(kv.float()).size()),
        kv_bytes: fused.kv_bytes(),
        host_us_per_token: host_ms.map(|ms| ms * 1e3 / options.gen_tokens as f64),
        build_ms: Some(build_ms),
        kernels: if options.kernels { kernels(&mut fused)? } else { vec![] },
    };
    Ok(report(options, device, measured))
}

/// Decodes `count` tokens; milliseconds until they are there, and until the host had nothing more to do.
fn decode(fused: &mut FusedStep, device: &Device, count: usize) -> Result<(f64, Option<f64>)> {
    let started = Instant::now();
    if fused.runs_ahead() {
        fused.run_ahead(count)?;
        let host_ms = started.elapsed().as_secs_f64() * 1e3;
        wait(device)?;
        return Ok((started.elapsed().as_secs_f64() * 1e3, Some(host_ms)));
    }
    for _ in 0..count {
        let id = fused.read_tokens_blocking()?[0];
        fused.step(id)?;
    }
    wait(device)?;
    Ok((started.elapsed().as_secs_f64() * 1e3, None))
}

fn kernels(fused: &mut FusedStep) -> Result<Vec<KernelRow>> {
    let rows = fused.time_kernels()?;
    Ok(rows
        .into_iter()
        .map(|(kernel, launches, us, weight_bytes)| KernelRow {
            kernel,
            launches,
            us,
            weight_bytes,
            gb_per_second: weight_bytes as f64 / us / 1e3,
        })
        .collect())
}

fn wait(device: &Device) -> Result<()> {
    device.sync().map_err(|e| crate::Error::Fused(format!("waiting for the device: {e}")))
}
