//! `linear` on flex with the shapes of E2B, beside what the machine can read.
//!
//! `cargo bench --bench linear [-- M,M,..]`. Throughput is bytes of weights; each pass takes other weights than the
//! last, so that caches do not help.
//!
//! No criterion: it turns on a feature of ciborium that Burn does not, so that `cargo run` and `cargo test` would each
//! compile all of Burn for themselves.

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Distribution, Tensor, TensorData};
use gemma_burn::ops::linear;
use rayon::prelude::*;
use std::hint::black_box;
use std::time::{Duration, Instant};

/// Larger than the last-level caches that this is likely to meet.
const POOL_BYTES: usize = 1 << 30;
/// How long each figure is measured.
const TIME: Duration = Duration::from_secs(3);

/// The best and the median of the seconds that `work` takes.
fn seconds(mut work: impl FnMut()) -> (f64, f64) {
    work();
    let mut times = Vec::new();
    let start = Instant::now();
    while start.elapsed() < TIME || times.len() < 5 {
        let start = Instant::now();
        work();
        times.push(start.elapsed().as_secs_f64());
    }
    times.sort_by(f64::total_cmp);
    (times[0], times[times.len() / 2])
}

/// Adds up everything with all threads.
fn read(memory: &[f32]) -> f32 {
    let sum = |chunk: &[f32]| {
        let mut sums = [0.0f32; 64];
        for part in chunk.chunks_exact(64) {
            for (sum, value) in sums.iter_mut().zip(part) {
                *sum += value;
            }
        }
        sums.iter().sum::<f32>()
    };
    memory.par_chunks(1 << 16).map(sum).sum()
}

fn main() {
    let list = std::env::args().skip(1).find(|arg| !arg.starts_with('-')).unwrap_or("1,4,16,128".into());
    let ms: Vec<usize> = list.split(',').map(|m| m.parse().expect("numbers of rows, like 1,4,16")).collect();
    println!("threads: {}, best instruction set: {:?}", rayon::current_num_threads(), linear::cpu::Isa::best());

    let pool: Vec<f32> = (0..POOL_BYTES / 4).into_par_iter().map(|i| (i % 251) as f32 / 251.0).collect();
    let (best, median) = seconds(|| {
        black_box(read(&pool));
    });
    let rate = |bytes: usize, seconds: f64| bytes as f64 / seconds / 1e9;
    println!("read, all threads: {:.1} GB/s, median {:.1}", rate(POOL_BYTES, best), rate(POOL_BYTES, median));

    let device = Device::flex();
    let pool: Vec<u16> = pool.par_iter().flat_map_iter(|v| [half::bf16::from_f32(*v).to_bits(); 2]).collect();
    let pool = bytes::Bytes::from_owner(Pool(pool));
    for (n, k) in [(12288, 1536), (1536, 12288), (1536, 2048), (262_144, 1536)] {
        let size = n * k * 2;
        let weights: Vec<Tensor<2>> = (0..POOL_BYTES / size)
            .map(|i| {
                let bytes = Bytes::from_shared(pool.slice(i * size..(i + 1) * size), AllocationProperty::Other);
                Tensor::from_data(TensorData::from_bytes(bytes, [n, k], DType::BF16), (&device, DType::BF16))
            })
            .collect();
        for &m in &ms {
            let x = Tensor::<2>::random([m, k], Distribution::Uniform(-1.0, 1.0), &device);
            let mut turn = 0;
            let (best, median) = seconds(|| {
                turn += 1;
                black_box(linear(x.clone(), weights[turn % weights.len()].clone()));
            });
            println!(
                "linear {n}x{k} bf16, M = {m}: {:.3} ms, {:.1} GB/s (median {:.1}), {:.1} GFLOP/s",
                best * 1e3,
                rate(size, best),
                rate(size, median),
                rate(2 * m * n * k, best)
            );
        }
    }
}

/// Weights as the bytes that they are.
struct Pool(Vec<u16>);

impl AsRef<[u8]> for Pool {
    fn as_ref(&self) -> &[u8] {
        // SAFETY: any memory of u16 is memory of twice as many bytes.
        unsafe { std::slice::from_raw_parts(self.0.as_ptr().cast(), self.0.len() * 2) }
    }
}
