//! Device buffers of one sequence: what a captured graph reads and writes in place.

use burn::tensor::DType;
use burn_cubecl::kernel::into_contiguous;
use cube_kernels::attention::{Attention, AttentionScratch, AttentionSpec, KvType, RopeTable};
use cube_kernels::kv_import::{KvImport, kv_import};
use cube_kernels::{Buffer, Caps, gemv, state};
use cubecl::client::Client;

use super::weights::primitive;
use crate::cache::KvView;
use crate::config::{GemmaConfig, LayerSpec};
use crate::device::Dtype;
use crate::{Error, Result};

/// Tokens that the device keeps for the host to fetch.
pub const RING: usize = 64;

/// An end token that never occurs.
const NO_TOKEN: u32 = u32::MAX;

/// Keys and values of one owning layer, `[K, slots, D]` each.
#[derive(Clone)]
pub(super) struct KvBuffers {
    spec: AttentionSpec,
    pub(super) k: Buffer<u32>,
    pub(super) v: Buffer<u32>,
}

/// Copies what the plain path stored, `[1, K, tokens, D]`.
pub(super) fn import(client: &Client, caps: Caps, kv: &KvBuffers, view: KvView) -> Result<()> {
    for (tensor, cache) in [(view.k, &kv.k), (view.v, &kv.v)] {
        let [_, kv_heads, tokens, head_dim] = tensor.dims();
        let from = match tensor.dtype() {
            DType::F32 => KvType::F32,
            DType::BF16 => KvType::Bf16,
            other => return Err(Error::Fused(format!("keys are {other:?}, expected F32 or BF16"))),
        };
        let source = into_contiguous(primitive(tensor)?);
        let source = Buffer::new(source.handle, kv_heads * tokens * head_dim / from.per_word())?;
        let op = KvImport { kv_heads, head_dim, tokens, slots: kv.spec.slots, from, to: kv.spec.kv };
        kv_import(client, caps, &op, &source, cache)?;
    }
    Ok(())
}

/// Everything a step writes.
pub(super) struct Buffers {
    /// The residual stream, in turns.
    pub(super) h: [Buffer<f32>; 2],
    pub(super) qkv: Buffer<f32>,
    pub(super) attended: Buffer<f32>,
    pub(super) y: Buffer<f32>,
    /// Feed-forward activations, and the gated per-layer input.
    pub(super) activations: Buffer<f32>,
    pub(super) context: Buffer<f32>,
    pub(super) per_layer: Buffer<f32>,
    pub(super) rope: Buffer<f32>,
    pub(super) partials: Buffer<u32>,
    pub(super) logits: Buffer<f32>,
    pub(super) state: Buffer<u32>,
    pub(super) ring: Buffer<u32>,
    /// Tokens after which a sequence stands still.
    pub(super) ends: Buffer<u32>,
    /// The token's row of a per-layer table that stays on the host.
    pub(super) row: Buffer<u32>,
    pub(super) kv: Vec<KvBuffers>,
    pub(super) scratch: AttentionScratch,
}

impl Buffers {
    /// Allocates for one sequence of a context's length.
    pub(super) fn new(
        config: &GemmaConfig,
        attention: &[Attention],
        rope: &RopeTable,
        ends: &[u32],
        client: &Client,
        caps: &Caps,
    ) -> Self {
        let f32s = |len: usize| Buffer::<f32>::empty(client, len.max(1));
        let u32s = |len: usize| Buffer::<u32>::empty(client, len.max(1));
        let widest = |f: &dyn Fn(&LayerSpec) -> usize| config.layers.iter().map(f).max().unwrap_or(0);
        let hidden = config.hidden_size;
        let per_layer = config.per_layer.map_or(0, |spec| spec.dim * config.layers.len());
        let kv = attention.iter().filter(|a| a.spec().owns_kv).map(|a| {
            // Slots that were never written must not hold NaN: masked keys still meet a weight of zero.
            let zeros = || Buffer::from_slice(client, &vec![0u32; a.spec().cache_words()]);
            KvBuffers { spec: *a.spec(), k: zeros(), v: zeros() }
        });
        Self {
            h: [f32s(hidden), f32s(hidden)],
            qkv: f32s(widest(&|l| (l.heads + 2 * l.kv_heads) * l.head_dim)),
            attended: f32s(widest(&|l| l.heads * l.head_dim)),
            y: f32s(hidden),
            activations: f32s(widest(&|l| l.ffn).max(config.per_layer.map_or(0, |spec| spec.dim))),
            context: f32s(per_layer),
            per_layer: f32s(per_layer),
            rope: f32s(rope.out_len()),
            partials: u32s(gemv::partials_len(config.vocab_size, hidden, None, caps)),
            logits: f32s(config.vocab_size),
            state: Buffer::from_slice(client, &[0u32; state::LEN]),
            ring: Buffer::from_slice(client, &[0u32; RING]),
            ends: Buffer::from_slice(client, &[&[NO_TOKEN], ends].concat()),
            row: u32s(per_layer / 2),
            kv: kv.collect(),
            scratch: AttentionScratch::new(client, attention),
        }
    }
}

/// The attention kernels of all layers, cut up for a device and a context.
pub(super) fn attention(config: &GemmaConfig, context: usize, kv: Dtype, caps: &Caps) -> Result<Vec<Attention>> {
    let kv = match kv {
        Dtype::F32 => KvType::F32,
        Dtype::Bf16 => KvType::Bf16,
    };
    let specs = config.layers.iter().map(|layer| AttentionSpec {
        heads: layer.heads,
        kv_heads: layer.kv_heads,
        head_dim: layer.head_dim,
        slots: layer.window.unwrap_or(context).min(context),
        kv,
        owns_kv: !layer.kv.is_shared(),
    });
    specs.map(|spec| Ok(Attention::new(spec, caps)?)).collect()
}
