//! `linear` on flex with the shapes of E2B, beside what the machine can read.
//!
//! `cargo bench --bench linear`; throughput is bytes of weights. Each pass takes other weights than the last, so that
//! caches do not help.

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Distribution, Tensor, TensorData};
use criterion::{BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use gemma_burn::ops::linear;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::Duration;

/// Larger than any last-level cache that this is likely to meet.
const POOL_BYTES: usize = 1 << 30;

/// Adds up everything with all threads.
fn read(memory: &[f32]) -> f32 {
    memory
        .par_chunks(1 << 16)
        .map(|chunk| {
            let mut sums = [0.0f32; 64];
            for part in chunk.chunks_exact(64) {
                for (sum, value) in sums.iter_mut().zip(part) {
                    *sum += value;
                }
            }
            sums.iter().sum::<f32>()
        })
        .sum()
}

fn benches(c: &mut Criterion) {
    let pool: Vec<f32> = (0..POOL_BYTES / 4).into_par_iter().map(|i| (i % 251) as f32 / 251.0).collect();
    let mut group = c.benchmark_group("read");
    group.throughput(Throughput::Bytes(POOL_BYTES as u64));
    group.sample_size(10).measurement_time(Duration::from_secs(3));
    group.bench_function("all threads", |b| b.iter(|| black_box(read(&pool))));
    group.finish();

    let device = Device::flex();
    let pool: Vec<u8> =
        pool.iter().flat_map(|v| half::bf16::from_f32(*v).to_ne_bytes()).cycle().take(POOL_BYTES).collect();
    let pool = bytes::Bytes::from(pool);
    for (n, k) in [(12288, 1536), (1536, 12288), (262_144, 1536)] {
        let size = n * k * 2;
        let weights: Vec<Tensor<2>> = (0..POOL_BYTES / size)
            .map(|i| {
                let bytes = Bytes::from_shared(pool.slice(i * size..(i + 1) * size), AllocationProperty::Other);
                Tensor::from_data(TensorData::from_bytes(bytes, [n, k], DType::BF16), (&device, DType::BF16))
            })
            .collect();
        let mut group = c.benchmark_group(format!("{n}x{k}"));
        group.throughput(Throughput::Bytes(size as u64));
        group.sample_size(10).measurement_time(Duration::from_secs(3));
        for m in [1usize, 4, 16, 128] {
            let x = Tensor::<2>::random([m, k], Distribution::Uniform(-1.0, 1.0), &device);
            let mut turn = 0;
            group.bench_function(BenchmarkId::new("M", m), |b| {
                b.iter(|| {
                    turn += 1;
                    black_box(linear(x.clone(), weights[turn % weights.len()].clone()))
                })
            });
        }
        group.finish();
    }
}

criterion_group!(group, benches);
criterion_main!(group);
