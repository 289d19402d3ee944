//! How fast a device reads memory, measured.

use std::time::Instant;

use burn::tensor::Device;
use rayon::prelude::*;

use crate::device::is_host_memory;

/// Far larger than any cache.
const BUFFER_BYTES: usize = 1 << 30;
const REPETITIONS: usize = 5;

/// Bytes per nanosecond that all cores or all multiprocessors together read; `None` where nothing tells.
pub fn read_bandwidth(device: &Device) -> Option<f64> {
    if is_host_memory(device) {
        return Some(host_bandwidth());
    }
    #[cfg(feature = "cube")]
    {
        use cubecl::throughput::{MemoryAccess, ThroughputKey, ThroughputMode};
        let key = ThroughputKey { mode: ThroughputMode::memory(MemoryAccess::Read) };
        let value = device.performance_stats(&[key]).pop()?.value.ok()?;
        Some(value.bytes_per_s(&key) / 1e9)
    }
    #[cfg(not(feature = "cube"))]
    None
}

fn host_bandwidth() -> f64 {
    let buffer = vec![1u64; BUFFER_BYTES / size_of::<u64>()];
    let read = || {
        let started = Instant::now();
        let sum: u64 =
            buffer.par_chunks(1 << 17).map(|chunk| chunk.iter().fold(0, |a, b| a ^ b)).reduce(|| 0, |a, b| a ^ b);
        std::hint::black_box(sum);
        started.elapsed().as_secs_f64()
    };
    let best = (0..REPETITIONS).map(|_| read()).fold(f64::INFINITY, f64::min);
    BUFFER_BYTES as f64 / best / 1e9
}
