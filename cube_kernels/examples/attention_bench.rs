//! Times decode attention inside captured graphs and searches for the best tuning, one parameter at a time.
//!
//! Each graph launches one layer after the other on caches of their own (more than an L2 holds in all), as a token does.
//! Usage: `attention_bench [quick]`: without the search, the defaults alone.

#![allow(clippy::type_complexity, reason = "one table of variations")]

use std::time::Instant;

use cube_kernels::attention::{
    Attention, AttentionBuffers, AttentionScratch, AttentionSpec, KvType, RopeTable, Tuning,
};
use cube_kernels::{Buffer, Caps, state};
use cubecl::client::Client;

const CACHE_BYTES: usize = 192 << 20;
const REPLAYS: usize = 10;
const ROUNDS: usize = 5;

struct Layers {
    client: Client,
    spec: AttentionSpec,
    caches: Vec<[Buffer<u32>; 2]>,
    qkv: Buffer<f32>,
    norm: Buffer<f32>,
    table: RopeTable,
    rope: Buffer<f32>,
    state: Buffer<u32>,
    out: Buffer<f32>,
}

impl Layers {
    fn new(client: &Client, spec: AttentionSpec) -> Self {
        let d = spec.head_dim;
        let words = spec.cache_words();
        let count = (CACHE_BYTES / (8 * words)).clamp(3, 96);
        let mut s = 1u32;
        // Pairs of bf16 between -1 and 1.
        let host: Vec<u32> = (0..words)
            .map(|_| {
                s = s.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                (s & 0x807f_807f) | 0x3f00_3f00
            })
            .collect();
        let table = RopeTable::new(Buffer::from_slice(client, &vec![0.01f32; d / 2]), d / 2).unwrap();
        let numbers: Vec<f32> =
            (0..d * (spec.heads + 2 * spec.kv_heads)).map(|i| ((i * 37 % 101) as f32) / 101.0 - 0.5).collect();
        Self {
            client: client.clone(),
            caches: (0..count).map(|_| [0, 1].map(|_| Buffer::from_slice(client, &host))).collect(),
            qkv: Buffer::from_slice(client, &numbers),
            norm: Buffer::from_slice(client, &vec![0.1f32; d]),
            rope: Buffer::empty(client, table.out_len()),
            table,
            state: Buffer::from_slice(client, &[0u32; state::LEN]),
            out: Buffer::empty(client, d * spec.heads),
            spec,
        }
    }

    /// Microseconds per layer at each position: [both kernels, the split kernel alone].
    fn time(&self, layer: &Attention, positions: &[u32]) -> Vec<[f64; 2]> {
        let scratch = AttentionScratch::new(&self.client, [layer]);
        let io = |caches: &[Buffer<u32>; 2], run: &dyn Fn(&AttentionBuffers<'_>)| {
            let d = self.spec.head_dim;
            run(&AttentionBuffers {
                qkv: &self.qkv,
                q_at: 0,
                k_at: self.spec.heads * d,
                v_at: (self.spec.heads + self.spec.kv_heads) * d,
                q_norm: &self.norm,
                k_norm: &self.norm,
                rope: &self.rope,
                rope_at: 0,
                state: &self.state,
                k_cache: &caches[0],
                v_cache: &caches[1],
                scratch: &scratch,
                out: &self.out,
                eps: 1e-6,
            });
        };
        let chain = |merge: bool| {
            for caches in &self.caches {
                io(caches, &|io| {
                    if merge { layer.launch(&self.client, io) } else { layer.launch_without_merge(&self.client, io) }
                        .unwrap();
                });
            }
        };
        self.table.launch(&self.client, Caps::of(&self.client), &self.state, &self.rope).unwrap();
        let graphs = [true, false].map(|merge| {
            self.client.graph_prepare().unwrap();
            chain(merge);
            self.wait();
            self.client.start_capture().unwrap();
            chain(merge);
            self.client.stop_capture().unwrap()
        });
        let mut times = vec![];
        for position in positions {
            let mut words = vec![0u32; state::LEN];
            words[state::POSITION] = *position;
            self.state.write(&self.client, words);
            times.push(graphs.each_ref().map(|graph| {
                let replay = || unsafe { graph.replay() }.unwrap();
                replay();
                self.wait();
                let mut rounds: Vec<f64> = (0..ROUNDS)
                    .map(|_| {
                        let start = Instant::now();
                        (0..REPLAYS).for_each(|_| replay());
                        self.wait();
                        start.elapsed().as_secs_f64()
                    })
                    .collect();
                rounds.sort_by(f64::total_cmp);
                rounds[ROUNDS / 2] / (REPLAYS * self.caches.len()) as f64 * 1e6
            }));
        }
        times
    }

    fn wait(&self) {
        self.out.read_blocking(&self.client).unwrap();
    }

    fn row(&self, name: &str, tuning: Tuning, positions: &[u32]) -> Option<f64> {
        let layer = Attention::with_tuning(self.spec, tuning, &Caps::of(&self.client)).ok()?;
        let times = self.time(&layer, positions);
        let mut line = String::new();
        for (position, [both, split]) in positions.iter().zip(&times) {
            let keys = (*position as usize + 1).min(self.spec.slots);
            let bytes = 2 * self.spec.kv_heads * keys * self.spec.head_dim * 4 / self.spec.kv.per_word();
            line += &format!(" | {keys}: {both:.2} us ({split:.2} split), {:.2} TB/s", bytes as f64 / both / 1e6);
        }
        let Tuning { units, group, lanes, tile, value_dims, splits, min_keys, merge_dims, .. } = tuning;
        println!("{name} u{units} g{group} l{lanes} t{tile} v{value_dims} s{splits} k{min_keys} m{merge_dims}{line}");
        Some(times.iter().map(|t| t[0]).sum())
    }

    fn search(&self, name: &str, positions: &[u32]) {
        let mut best = Tuning::of(&self.spec, &Caps::of(&self.client));
        let Some(mut least) = self.row(name, best, positions) else {
            return println!("{name}: the default does not fit");
        };
        let values: [(fn(&mut Tuning, usize), &[usize]); 8] = [
            (|t, v| t.min_keys = v, &[8, 16, 32, 64]),
            (|t, v| t.group = v, &[2, 4, 8]),
            (|t, v| t.splits = v, &[16, 32, 64, 128, 256]),
            (|t, v| t.tile = v, &[8, 16, 32, 64]),
            (|t, v| t.units = v, &[128, 256, 512]),
            (|t, v| t.lanes = v, &[8, 16, 32, 64]),
            (|t, v| t.value_dims = v, &[2, 4]),
            (|t, v| t.merge_dims = v, &[16, 32, 64, 128, 256]),
        ];
        for (set, values) in values.iter().chain(&values[..4]) {
            let start = best;
            for value in *values {
                let mut tuning = start;
                set(&mut tuning, *value);
                if tuning == start {
                    continue;
                }
                if let Some(time) = self.row(name, tuning, positions).filter(|time| *time < least * 0.995) {
                    (best, least) = (tuning, time);
                }
            }
        }
        println!("{name} BEST {best:?}");
        self.row(name, best, positions);
    }
}

fn main() {
    let quick = std::env::args().any(|a| a == "quick");
    let client = client();
    println!("{}: {:?}", client.name(), Caps::of(&client));
    let spec =
        |head_dim, slots| AttentionSpec { heads: 8, kv_heads: 1, head_dim, slots, kv: KvType::Bf16, owns_kv: true };
    let cases: [(&str, AttentionSpec, &[u32]); 3] = [
        ("window 512, D 256", spec(256, 512), &[100, 5000]),
        ("context 8192, D 512", spec(512, 8192), &[511, 2047, 8191]),
        ("context 32768, D 512", spec(512, 32768), &[511, 2047, 8191, 32767]),
    ];
    for (name, spec, positions) in cases {
        let layers = Layers::new(&client, spec);
        if quick || spec.slots > 8192 {
            layers.row(name, Tuning::of(&spec, &Caps::of(&client)), positions);
        } else {
            layers.search(name, positions);
        }
    }
}

#[cfg(feature = "cuda")]
fn client() -> Client {
    cubecl::Device::Cuda(Default::default()).client()
}

#[cfg(all(feature = "vulkan", not(feature = "cuda")))]
fn client() -> Client {
    cubecl::Device::Wgpu(Default::default()).client()
}

#[cfg(not(any(feature = "cuda", feature = "vulkan")))]
fn client() -> Client {
    panic!("build with feature cuda or vulkan")
}
