use std::time::Instant;

use cube_kernels::{Buffer, Caps};
use cubecl::Device;
use cubecl::client::{Client, Graph};
use cubecl::prelude::*;
use half::bf16;

/// The device under test and a buffer to wait on.
pub struct Bench {
    pub client: Client,
    pub caps: Caps,
    pub quick: bool,
    wait: Buffer<u32>,
}

/// Writes bf16 pairs in ±0.5 that no compression and no clock boost profits from.
#[cube(launch_unchecked)]
fn fill_kernel(words: &mut [u32], seed: u32) {
    let i = ABSOLUTE_POS;
    if i < words.len() {
        let mut s = i as u32 * 747796405u32 + seed;
        s = (s ^ (s >> 15u32)) * 2891336453u32;
        s = (s ^ (s >> 13u32)) * 277803737u32;
        s = s ^ (s >> 16u32);
        // Exponents 2^-2 .. 2^-5, random signs and mantissas.
        let low = (s & 0x80ffu32) | 0x3d00u32;
        let high = ((s >> 16u32) & 0x80ffu32) | 0x3d00u32;
        words[i] = low | (high << 16u32);
    }
}

impl Bench {
    pub fn open(quick: bool) -> Option<Self> {
        let opened = [Device::cuda(0), Device::vulkan(Default::default())].into_iter().find_map(Result::ok)?;
        let client = opened.client();
        let (caps, wait) = (Caps::of(&client), Buffer::from_slice(&client, &[0u32]));
        Some(Self { client, caps, quick, wait })
    }

    /// A weight of random values made on the device.
    pub fn weight(&self, len: usize) -> Buffer<bf16> {
        let buffer = Buffer::<bf16>::empty(&self.client, len);
        let units = 256u32.min(self.caps.max_units);
        let cubes = (len as u32 / 2).div_ceil(units);
        // SAFETY: the kernel checks its index against the bound length.
        unsafe {
            fill_kernel::launch_unchecked(
                &self.client,
                CubeCount::Static(cubes.min(32768), cubes.div_ceil(32768), 1),
                CubeDim::new_1d(units),
                BufferArg::from_raw_parts(buffer.handle().clone(), len / 2),
                len as u32,
            );
        }
        buffer
    }

    /// A vector of numbers in [0.5, 1.5).
    pub fn vector(&self, len: usize) -> Buffer<f32> {
        Buffer::from_slice(&self.client, &(0..len).map(|i| 0.5 + (i * 37 % 101) as f32 / 101.0).collect::<Vec<_>>())
    }

    pub fn wait(&self) {
        self.wait.read_blocking(&self.client).expect("the device works");
    }

    /// Captures `step` as a graph after two warm-up runs.
    pub fn graph(&self, step: &dyn Fn()) -> Graph {
        self.client.graph_prepare().expect("graphs");
        step();
        step();
        self.wait();
        self.client.start_capture().expect("capture");
        step();
        self.client.stop_capture().expect("a graph")
    }

    /// Median seconds of one replay.
    pub fn time(&self, graph: &Graph) -> f64 {
        let (rounds, replays) = if self.quick { (1, 1) } else { (5, 8) };
        // SAFETY: the callers keep every buffer of the graph alive.
        let replay = || unsafe { graph.replay() }.expect("replay");
        replay();
        self.wait();
        let mut seconds: Vec<f64> = (0..rounds)
            .map(|_| {
                let start = Instant::now();
                (0..replays).for_each(|_| replay());
                self.wait();
                start.elapsed().as_secs_f64() / replays as f64
            })
            .collect();
        seconds.sort_by(f64::total_cmp);
        seconds[rounds / 2]
    }
}
