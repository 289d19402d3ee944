//! Decode attention against its reference, on every device of this build.

use cube_kernels::attention::{
    Attention, AttentionBuffers, AttentionScratch, AttentionSpec, KvType, ReferenceCache, ReferenceToken, RopeTable,
    Tuning, append_reference, attention_reference,
};
use cube_kernels::{Buffer, Caps, state};
use cubecl::client::Client;

use crate::support::{Numbers, each_gpu, unwritten};

const EPS: f32 = 1e-6;
/// Of the largest expected output.
const TOLERANCE: f64 = 2e-5;

/// One layer on a device next to its reference.
struct Rig {
    client: Client,
    layer: Attention,
    qkv: Buffer<f32>,
    places: [usize; 3],
    norms: [Buffer<f32>; 2],
    norms_host: [Vec<f32>; 2],
    table: RopeTable,
    rope: Buffer<f32>,
    inv_freq: Vec<f32>,
    state: Buffer<u32>,
    caches: [Buffer<u32>; 2],
    scratch: AttentionScratch,
    out: Buffer<f32>,
    reference: ReferenceCache,
    random: Numbers,
}

fn scaled(x: &[f32], scale: f32) -> Vec<f32> {
    x.iter().map(|v| v * scale).collect()
}

fn spec(heads: usize, kv_heads: usize, head_dim: usize, slots: usize, kv: KvType) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, slots, kv, owns_kv: true }
}

impl Rig {
    fn new(client: &Client, caps: Caps, spec: AttentionSpec) -> Self {
        Self::with(client, spec, Attention::new(spec, &caps).unwrap(), false)
    }

    fn with(client: &Client, spec: AttentionSpec, layer: Attention, value_is_raw_key: bool) -> Self {
        let d = spec.head_dim;
        let mut random = Numbers::new((d * 31 + spec.heads) as u64);
        // A place in front of q and a gap behind it: layers pick their part of a larger buffer.
        let q_at = 4;
        let k_at = q_at + spec.heads * d + 8;
        let v_at = if value_is_raw_key { k_at } else { k_at + spec.kv_heads * d };
        // Half of the pairs turn, as in a proportional embedding; the table is the second of two.
        let turning = |i: usize| 10_000f64.powf(-2.0 * i as f64 / d as f64) as f32;
        let inv_freq: Vec<f32> = (0..d / 2).map(|i| if i % (d / 2) < d / 4 { turning(i) } else { 0.0 }).collect();
        let mut both = vec![1.0f32; 8];
        both.extend(&inv_freq);
        let table = RopeTable::new(Buffer::from_slice(client, &both), 8).unwrap();
        // Scores with a spread of about 2: many keys count.
        let q_scale = 3.0 / (d as f32).sqrt();
        let norms_host = [scaled(&random.f32s(d), q_scale), random.f32s(d).iter().map(|w| 1.0 + 0.5 * w).collect()];
        let words = spec.cache_words();
        Self {
            client: client.clone(),
            qkv: Buffer::empty(client, v_at + spec.kv_heads * d),
            places: [q_at, k_at, v_at],
            norms: [Buffer::from_slice(client, &norms_host[0]), Buffer::from_slice(client, &norms_host[1])],
            norms_host,
            rope: Buffer::empty(client, table.out_len()),
            table,
            inv_freq,
            state: Buffer::from_slice(client, &[0u32; state::LEN]),
            // Never-written slots must not matter: fill them with NaN.
            caches: [0, 1].map(|_| Buffer::from_slice(client, &vec![u32::MAX; words])),
            scratch: AttentionScratch::new(client, [&layer]),
            out: unwritten(client, spec.heads * d),
            reference: ReferenceCache::new(&spec),
            random,
            layer,
        }
    }

    fn write_token(&mut self, position: usize) -> Vec<f32> {
        let qkv = scaled(&self.random.f32s(self.qkv.len()), 2.0);
        self.qkv.write(&self.client, qkv.clone());
        let mut words = vec![0u32; state::LEN];
        words[state::POSITION] = position as u32;
        self.state.write(&self.client, words);
        qkv
    }

    fn launch(&self) {
        self.table.launch(&self.client, &self.state, &self.rope).unwrap();
        self.layer.launch(&self.client, &self.io()).unwrap();
    }

    fn io(&self) -> AttentionBuffers<'_> {
        AttentionBuffers {
            qkv: &self.qkv,
            q_at: self.places[0],
            k_at: self.places[1],
            v_at: self.places[2],
            q_norm: &self.norms[0],
            k_norm: &self.norms[1],
            rope: &self.rope,
            rope_at: self.table.second_at(),
            state: &self.state,
            k_cache: &self.caches[0],
            v_cache: &self.caches[1],
            scratch: &self.scratch,
            out: &self.out,
            eps: EPS,
        }
    }

    fn read(&self) -> Vec<f32> {
        self.out.read_blocking(&self.client).unwrap()
    }

    /// Expected output. The new key and value are taken from the device once they are found to be right, so that a tie
    /// in rounding to bf16 is not counted again in every later position.
    fn expect(&mut self, qkv: &[f32], position: usize, compare: bool) -> Vec<f32> {
        let spec = *self.layer.spec();
        let d = spec.head_dim;
        let [q_at, k_at, v_at] = self.places;
        let own = spec.kv_heads * d;
        let (norms, inv_freq) = (self.norms_host.clone(), self.inv_freq.clone());
        let token = ReferenceToken {
            q: &qkv[q_at..q_at + spec.heads * d],
            k: &qkv[k_at..k_at + own],
            v: &qkv[v_at..v_at + own],
            q_norm: &norms[0],
            k_norm: &norms[1],
            inv_freq: &inv_freq,
            position,
            eps: EPS,
        };
        if spec.owns_kv {
            append_reference(&spec, &token, &mut self.reference);
            self.take_row(position);
        }
        if !compare {
            return vec![];
        }
        attention_reference(&AttentionSpec { owns_kv: false, ..spec }, &token, &mut self.reference)
    }

    /// Compares the new row of both caches with the reference, and takes it over.
    fn take_row(&mut self, position: usize) {
        let spec = *self.layer.spec();
        let d = spec.head_dim;
        for head in 0..spec.kv_heads {
            let row = head * spec.slots + position % spec.slots;
            let [k, v] = self.caches.each_ref().map(|cache| self.read_row(cache, row, spec.slots * spec.kv_heads));
            for (got, want) in [(k, &mut self.reference.k), (v, &mut self.reference.v)] {
                let want = &mut want[row * d..(row + 1) * d];
                for (g, w) in got.iter().zip(want.iter()) {
                    let most =
                        if spec.kv == KvType::Bf16 { w.abs().max(1e-2) / 128.0 } else { w.abs().max(1.0) * 2e-6 };
                    assert!((g - w).abs() <= most, "cache row {row}: {g}, expected {w}");
                }
                want.copy_from_slice(&got);
            }
        }
    }

    fn read_row(&self, cache: &Buffer<u32>, row: usize, rows: usize) -> Vec<f32> {
        let bytes = cache.len() / rows * 4;
        let handle =
            cache.handle().clone().offset_start((row * bytes) as u64).offset_end(((rows - row - 1) * bytes) as u64);
        let raw = self.client.read_one(handle).unwrap();
        match self.layer.spec().kv {
            KvType::F32 => raw.chunks_exact(4).map(|c| f32::from_le_bytes(c.try_into().unwrap())).collect(),
            KvType::Bf16 => raw.chunks_exact(2).map(|c| half::bf16::from_le_bytes([c[0], c[1]]).to_f32()).collect(),
        }
    }

    /// One token of which only the new key and value are compared.
    fn append(&mut self, position: usize) {
        let qkv = self.write_token(position);
        self.launch();
        self.expect(&qkv, position, false);
    }

    /// One token, compared.
    fn step(&mut self, position: usize) -> f64 {
        let qkv = self.write_token(position);
        self.launch();
        let got = self.read();
        let want = self.expect(&qkv, position, true);
        let most = want.iter().fold(0f64, |m, w| m.max(f64::from(w.abs())));
        let error = got.iter().zip(&want).fold(0f64, |e, (g, w)| {
            let difference = f64::from((g - w).abs());
            if difference.is_nan() { f64::INFINITY } else { e.max(difference) }
        });
        let spec = self.layer.spec();
        assert!(error <= TOLERANCE * most, "{spec:?} at position {position}: error {error:.2e} of {most:.2e}");
        error / most
    }
}

fn sweep(spec: AttentionSpec, last: usize) {
    each_gpu(|client, caps| {
        // The long sweeps follow the device's own route; the shorter ones take both.
        if last > 1000 && caps != Caps::of(client) {
            return;
        }
        let started = std::time::Instant::now();
        let mut rig = Rig::new(client, caps, spec);
        let worst = (0..last).map(|position| rig.step(position)).fold(0f64, f64::max);
        println!("{spec:?}: worst relative error {worst:.1e}, {:.1} s", started.elapsed().as_secs_f64());
    });
}

#[test]
fn every_length_up_to_1100_at_256_in_bf16_matches_reference() {
    sweep(spec(2, 1, 256, 1100, KvType::Bf16), 1100);
}

#[test]
fn every_length_up_to_1100_at_512_in_bf16_matches_reference() {
    sweep(spec(2, 1, 512, 1100, KvType::Bf16), 1100);
}

#[test]
fn every_length_up_to_1100_at_256_in_f32_matches_reference() {
    sweep(spec(1, 1, 256, 1100, KvType::F32), 1100);
}

#[test]
fn every_length_up_to_1100_at_512_in_f32_matches_reference() {
    sweep(spec(1, 1, 512, 1100, KvType::F32), 1100);
}

#[test]
fn eight_heads_in_a_window_of_512_match_reference_across_two_wraps() {
    each_gpu(|client, caps| {
        let mut rig = Rig::new(client, caps, spec(8, 1, 256, 512, KvType::Bf16));
        for position in 0..1100 {
            // All tokens are written; the expensive comparison with 8 heads happens at the edges and now and then.
            if position % 37 == 0 || [1, 2, 510, 511, 512, 513, 1023, 1024, 1025].contains(&position) {
                rig.step(position);
            } else {
                rig.append(position);
            }
        }
    });
}

#[test]
fn small_rings_match_reference_over_many_wraps() {
    for (heads, kv_heads, d, window, kv) in [
        (4, 1, 16, 8, KvType::F32),
        (4, 2, 32, 16, KvType::Bf16),
        (8, 2, 64, 24, KvType::Bf16),
        (4, 1, 128, 40, KvType::F32),
        (2, 1, 256, 1, KvType::Bf16),
        (2, 2, 512, 33, KvType::Bf16),
    ] {
        sweep(spec(heads, kv_heads, d, window, kv), 6 * window + 5);
    }
}

#[test]
fn every_group_size_matches_reference() {
    for (heads, kv_heads) in
        [(1, 1), (2, 1), (3, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (8, 2), (16, 8), (16, 1), (12, 1)]
    {
        for kv in [KvType::Bf16, KvType::F32] {
            sweep(spec(heads, kv_heads, 64, 50, kv), 60);
        }
    }
}

#[test]
fn shapes_of_the_family_match_reference() {
    for (heads, kv_heads, d, kv) in [
        (8, 1, 512, KvType::Bf16),
        (8, 2, 256, KvType::F32),
        (8, 2, 512, KvType::Bf16),
        (16, 8, 256, KvType::Bf16),
        (16, 1, 512, KvType::Bf16),
        (32, 16, 256, KvType::Bf16),
        (32, 4, 512, KvType::Bf16),
    ] {
        sweep(spec(heads, kv_heads, d, 70, kv), 76);
    }
}

#[test]
fn raw_key_as_value_matches_reference() {
    each_gpu(|client, caps| {
        for kv in [KvType::Bf16, KvType::F32] {
            let spec = spec(8, 2, 128, 64, kv);
            let mut rig = Rig::with(client, spec, Attention::new(spec, &caps).unwrap(), true);
            for position in 0..80 {
                rig.step(position);
            }
        }
    });
}

#[test]
fn reader_of_another_layers_cache_sees_the_new_token() {
    each_gpu(|client, caps| {
        for (d, slots) in [(256, 48), (512, 200)] {
            let owner = spec(8, 1, d, slots, KvType::Bf16);
            let mut donor = Rig::new(client, caps, owner);
            let mut reader = Rig::new(client, caps, AttentionSpec { owns_kv: false, ..owner });
            reader.caches = donor.caches.clone();
            for position in 0..110 {
                donor.step(position);
                reader.reference = donor.reference.clone();
                reader.step(position);
            }
        }
    });
}

#[test]
fn every_tuning_matches_reference() {
    each_gpu(|client, caps| {
        let mut tried = 0;
        for kv in [KvType::Bf16, KvType::F32] {
            let spec = spec(4, 1, 256, 150, kv);
            let base = Tuning::of(&spec, &caps);
            let mut tunings = vec![];
            for group in [1, 2, 4] {
                for lanes in [4, 8, 16, 32] {
                    for (value_dims, tile, min_keys) in [(2, 32, 16), (4, 16, 8), (4, 64, 64)] {
                        tunings.push(Tuning { group, lanes, value_dims, tile, min_keys, splits: 5, ..base });
                    }
                }
            }
            for (group, splits) in [(1, 5), (2, 9), (4, 17)] {
                tunings.push(Tuning { last_cube_merges: true, group, splits, min_keys: 8, ..base });
            }
            tunings.push(Tuning { units: 128, ..base });
            tunings.push(Tuning { merge_dims: 256, ..base });
            tunings.push(Tuning { merge_dims: 16, splits: 1, ..base });
            for tuning in tunings {
                let Ok(layer) = Attention::with_tuning(spec, tuning, &caps) else { continue };
                tried += 1;
                let mut rig = Rig::with(client, spec, layer, false);
                // Every token is written, a few are compared.
                for position in 0..170 {
                    if [0, 1, 40, 149, 150, 169].contains(&position) {
                        rig.step(position);
                    } else {
                        rig.append(position);
                    }
                }
            }
        }
        println!("{tried} tunings");
        assert!(tried > 20);
    });
}

#[test]
fn captured_graph_gives_the_bits_of_eager_launches() {
    each_gpu(|client, caps| {
        for spec in [spec(8, 1, 256, 40, KvType::Bf16), spec(8, 1, 512, 100, KvType::F32)] {
            let mut eager = Rig::new(client, caps, spec);
            let mut replayed = Rig::new(client, caps, spec);
            client.graph_prepare().unwrap();
            replayed.write_token(0);
            replayed.launch();
            replayed.read();
            client.start_capture().unwrap();
            replayed.launch();
            let graph = client.stop_capture().unwrap();
            eager.write_token(0);
            for position in 0..100 {
                let a = eager.write_token(position);
                let b = replayed.write_token(position);
                assert_eq!(a, b);
                eager.launch();
                // SAFETY: every buffer of the graph is alive in `replayed`.
                unsafe { graph.replay() }.unwrap();
                let (a, b) = (eager.read(), replayed.read());
                assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{spec:?} at {position}");
            }
        }
    });
}

#[test]
fn huge_scores_stay_finite() {
    each_gpu(|client, caps| {
        let spec = spec(4, 1, 256, 64, KvType::F32);
        let mut rig = Rig::new(client, caps, spec);
        rig.norms_host[0] = rig.norms_host[0].iter().map(|w| w * 3e3).collect();
        rig.norms[0] = Buffer::from_slice(client, &rig.norms_host[0]);
        for position in 0..100 {
            rig.write_token(position);
            rig.launch();
            assert!(rig.read().iter().all(|x| x.is_finite()), "position {position}");
        }
    });
}

#[test]
fn rope_table_matches_f64_up_to_position_262143() {
    each_gpu(|client, _| {
        let inv_freq: Vec<f32> =
            (0..128).map(|i| 10_000f64.powf(-2.0 * f64::from(i) / 256.0) as f32).chain([1.0, 0.25, 0.0, 0.0]).collect();
        let table = RopeTable::new(Buffer::from_slice(client, &inv_freq), 128).unwrap();
        let out = Buffer::empty(client, table.out_len());
        for position in [0u32, 1, 2, 3, 100, 511, 8191, 65_537, 131_071, 200_003, 262_143] {
            let state = Buffer::from_slice(client, &[position]);
            table.launch(client, &state, &out).unwrap();
            let got = out.read_blocking(client).unwrap();
            for (i, f) in inv_freq.iter().enumerate() {
                let (at, width) = if i < 128 { (i, 128) } else { (128 + i, 4) };
                let (sin, cos) = f64::from(position as f32 * f).sin_cos();
                let error = (f64::from(got[at]) - cos).abs().max((f64::from(got[at + width]) - sin).abs());
                assert!(error < 2e-7, "position {position}, frequency {i}: {error:e}");
            }
        }
    });
}

#[test]
fn shapes_that_do_not_fit_are_refused_by_name() {
    each_gpu(|client, caps| {
        let refused = |spec: AttentionSpec, part: &str| {
            let error = Attention::new(spec, &caps).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(spec(8, 3, 256, 16, KvType::F32), "8 query heads");
        refused(spec(8, 1, 96, 16, KvType::F32), "head_dim is 96");
        refused(spec(8, 1, 1024, 16, KvType::F32), "head_dim is 1024");
        refused(spec(8, 1, 256, 0, KvType::F32), "0 cache slots");
        let tiny = Caps { max_units: 2, lanes: 1, plane_ops: false, ..caps };
        assert!(Attention::new(spec(8, 1, 256, 16, KvType::F32), &tiny).is_err());
        let mut rig = Rig::new(client, caps, spec(2, 1, 64, 16, KvType::F32));
        rig.places[0] = 6;
        let io = |rig: &Rig| rig.layer.launch(&rig.client, &rig.io()).unwrap_err().to_string();
        assert!(io(&rig).contains("q begins at 6"));
        rig.places[0] = 4;
        rig.out = Buffer::empty(client, 64);
        assert!(io(&rig).contains("out has 64"));
    });
}
