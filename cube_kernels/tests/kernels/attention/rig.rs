//! One attention layer on a device next to its reference.

use cube_kernels::attention::{
    Attention, AttentionBuffers, AttentionScratch, AttentionSpec, KvType, ReferenceCache, ReferenceToken, RopeTable,
    append_reference, attention_reference,
};
use cube_kernels::{Buffer, Caps, state};
use cubecl::client::Client;

use crate::support::{Numbers, unwritten};

const EPS: f32 = 1e-6;
/// Of the largest expected output.
const TOLERANCE: f64 = 2e-5;

/// One layer on a device next to its reference.
pub(super) struct Rig {
    pub(super) client: Client,
    pub(super) layer: Attention,
    qkv: Buffer<f32>,
    pub(super) places: [usize; 3],
    pub(super) norms: [Buffer<f32>; 2],
    pub(super) norms_host: [Vec<f32>; 2],
    table: RopeTable,
    rope: Buffer<f32>,
    inv_freq: Vec<f32>,
    state: Buffer<u32>,
    pub(super) caches: [Buffer<u32>; 2],
    scratch: AttentionScratch,
    pub(super) out: Buffer<f32>,
    pub(super) reference: ReferenceCache,
    random: Numbers,
}

fn scaled(x: &[f32], scale: f32) -> Vec<f32> {
    x.iter().map(|v| v * scale).collect()
}

pub(super) fn spec(heads: usize, kv_heads: usize, head_dim: usize, slots: usize, kv: KvType) -> AttentionSpec {
    AttentionSpec { heads, kv_heads, head_dim, slots, kv, owns_kv: true }
}

impl Rig {
    pub(super) fn new(client: &Client, caps: Caps, spec: AttentionSpec) -> Self {
        Self::with(client, spec, Attention::new(spec, &caps).unwrap(), false)
    }

    pub(super) fn with(client: &Client, spec: AttentionSpec, layer: Attention, value_is_raw_key: bool) -> Self {
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

    pub(super) fn write_token(&mut self, position: usize) -> Vec<f32> {
        let qkv = scaled(&self.random.f32s(self.qkv.len()), 2.0);
        self.qkv.write(&self.client, qkv.clone());
        let mut words = vec![0u32; state::LEN];
        words[state::POSITION] = position as u32;
        self.state.write(&self.client, words);
        qkv
    }

    pub(super) fn launch(&self) {
        self.table.launch(&self.client, Caps::of(&self.client), &self.state, &self.rope).unwrap();
        self.layer.launch(&self.client, &self.io()).unwrap();
    }

    pub(super) fn io(&self) -> AttentionBuffers<'_> {
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

    pub(super) fn read(&self) -> Vec<f32> {
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
    pub(super) fn append(&mut self, position: usize) {
        let qkv = self.write_token(position);
        self.launch();
        self.expect(&qkv, position, false);
    }

    /// One token, compared.
    pub(super) fn step(&mut self, position: usize) -> f64 {
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
