//! Checks and launches on the host.

use cubecl::client::Client;
use cubecl::prelude::*;

use super::kernel::{PlacesLaunch, attention_split_kernel};
use super::merge::attention_merge_kernel;
use super::spec::{AttentionSpec, Blueprint, KERNEL, Tuning};
use crate::state::POSITION;
use crate::{Buffer, Caps, Rejected};

const MERGE_UNITS: usize = 256;

/// The attention of one layer for one new token, checked and cut up for one device.
#[derive(Clone, Copy, Debug)]
pub struct Attention {
    spec: AttentionSpec,
    blueprint: Blueprint,
    merge_units: usize,
}

/// What the splits hand to the merge; layers that run one after the other share it.
#[derive(Clone, Debug)]
pub struct AttentionScratch {
    /// [H, partials, D] of the largest layer.
    pub partial: Buffer<f32>,
    /// [H, partials, 2] of the largest layer.
    pub stats: Buffer<f32>,
}

impl AttentionScratch {
    /// Room for each of `layers`.
    pub fn new<'a>(client: &Client, layers: impl IntoIterator<Item = &'a Attention>) -> Self {
        let (partial, stats) = layers
            .into_iter()
            .fold((4, 2), |(partial, stats), layer| (partial.max(layer.partial_len()), stats.max(layer.stats_len())));
        Self { partial: Buffer::empty(client, partial), stats: Buffer::empty(client, stats) }
    }
}

/// The buffers of one launch. Places are elements and multiples of 4.
#[derive(Clone, Copy, Debug)]
pub struct AttentionBuffers<'a> {
    /// Raw projections: q [H, D] from `q_at` on, and for a layer that owns its K/V, k and v [K, D] from `k_at` and `v_at`
    /// on (`v_at == k_at` where the value is the raw key).
    pub qkv: &'a Buffer<f32>,
    pub q_at: usize,
    pub k_at: usize,
    pub v_at: usize,
    /// [D].
    pub q_norm: &'a Buffer<f32>,
    /// [D]; any [D] where the layer owns no K/V.
    pub k_norm: &'a Buffer<f32>,
    /// [cos (D/2) | sin (D/2)] of the current position from `rope_at` on: see [`super::RopeTable`].
    pub rope: &'a Buffer<f32>,
    pub rope_at: usize,
    /// [`crate::state`].
    pub state: &'a Buffer<u32>,
    /// [K, slots, D], packed as [`super::KvType`] says.
    pub k_cache: &'a Buffer<u32>,
    /// As `k_cache`.
    pub v_cache: &'a Buffer<u32>,
    pub scratch: &'a AttentionScratch,
    /// [H, D].
    pub out: &'a Buffer<f32>,
    /// Added to the mean square in the norms.
    pub eps: f32,
}

impl Attention {
    /// With the default tuning.
    ///
    /// # Errors
    /// [`Rejected`] for shapes or devices that the kernel does not serve.
    pub fn new(spec: AttentionSpec, caps: &Caps) -> Result<Self, Rejected> {
        Self::with_tuning(spec, Tuning::of(&spec, caps), caps)
    }

    /// With a tuning of one's own.
    ///
    /// # Errors
    /// As [`Attention::new`], and for a tuning that does not fit.
    pub fn with_tuning(spec: AttentionSpec, tuning: Tuning, caps: &Caps) -> Result<Self, Rejected> {
        let blueprint = Blueprint::new(&spec, tuning, caps)?;
        let merge_units = MERGE_UNITS.min(tuning.units).max(tuning.merge_dims / 4);
        Ok(Self { spec, blueprint, merge_units })
    }

    /// The layer.
    pub fn spec(&self) -> &AttentionSpec {
        &self.spec
    }

    /// How it is cut up.
    pub fn tuning(&self) -> &Tuning {
        &self.blueprint.tuning
    }

    /// Elements of [`AttentionScratch::partial`] that this layer uses.
    pub fn partial_len(&self) -> usize {
        self.spec.heads * self.blueprint.partials() * self.spec.head_dim
    }

    /// Elements of [`AttentionScratch::stats`] that this layer uses.
    pub fn stats_len(&self) -> usize {
        self.spec.heads * self.blueprint.partials() * 2
    }

    /// Launches both kernels: `out` holds the attention of the token at `state[POSITION]`, the cache its key and value.
    ///
    /// The position must be below the context size of a full layer: past it the oldest keys are replaced.
    ///
    /// # Errors
    /// [`Rejected`] if a buffer does not fit the shapes.
    pub fn launch(&self, client: &Client, io: &AttentionBuffers<'_>) -> Result<(), Rejected> {
        self.check(io)?;
        self.launch_split(client, io);
        self.launch_merge(client, io);
        Ok(())
    }

    /// The first kernel alone, for a consumer that merges by itself ([`super::merge_weights`]).
    ///
    /// # Errors
    /// As [`Attention::launch`].
    pub fn launch_without_merge(&self, client: &Client, io: &AttentionBuffers<'_>) -> Result<(), Rejected> {
        self.check(io)?;
        self.launch_split(client, io);
        Ok(())
    }

    fn launch_split(&self, client: &Client, io: &AttentionBuffers<'_>) {
        let bp = self.blueprint;
        let places = PlacesLaunch::new(
            (io.q_at / 4) as u32,
            (io.k_at / 4) as u32,
            (io.v_at / 4) as u32,
            (io.rope_at / 4) as u32,
            self.spec.slots as u32,
            io.eps,
        );
        let cubes_y = self.spec.heads / bp.tuning.group;
        // SAFETY: `check` compared every buffer with the shapes, and the kernel clamps keys to the cache's slots.
        unsafe {
            attention_split_kernel::launch_unchecked(
                client,
                CubeCount::Static(bp.partials() as u32, cubes_y as u32, 1),
                CubeDim::new_1d(bp.tuning.units as u32),
                bp.value_words(),
                io.qkv.arg_of(16),
                io.q_norm.arg_of(16),
                io.k_norm.arg_of(16),
                io.rope.arg_of(16),
                io.state.arg(),
                io.k_cache.arg_of(16),
                io.v_cache.arg_of(4 * bp.value_words()),
                io.scratch.partial.arg(),
                io.scratch.stats.arg(),
                places,
                bp,
            );
        }
    }

    fn launch_merge(&self, client: &Client, io: &AttentionBuffers<'_>) {
        let bp = self.blueprint;
        let cubes_x = self.spec.head_dim / bp.tuning.merge_dims;
        // SAFETY: as above.
        unsafe {
            attention_merge_kernel::launch_unchecked(
                client,
                CubeCount::Static(cubes_x as u32, self.spec.heads as u32, 1),
                CubeDim::new_1d(self.merge_units as u32),
                io.scratch.partial.arg_of(16),
                io.scratch.stats.arg(),
                io.state.arg(),
                io.out.arg_of(16),
                self.spec.slots as u32,
                self.merge_units,
                bp,
            );
        }
    }

    fn check(&self, io: &AttentionBuffers<'_>) -> Result<(), Rejected> {
        let AttentionSpec { heads, kv_heads, head_dim, owns_kv, .. } = self.spec;
        let holds = |name: &str, have: usize, need: usize| {
            Rejected::unless(have >= need, KERNEL, || format!("{name} has {have} elements, expected {need} or more"))
        };
        let mut ends = vec![("q", io.q_at, heads * head_dim)];
        if owns_kv {
            ends.push(("k", io.k_at, kv_heads * head_dim));
            ends.push(("v", io.v_at, kv_heads * head_dim));
        }
        for (name, at, len) in ends {
            Rejected::unless(at.is_multiple_of(4), KERNEL, || {
                format!("{name} begins at {at}, expected a multiple of 4")
            })?;
            holds(&format!("qkv ({name})"), io.qkv.len(), at + len)?;
        }
        Rejected::unless(io.rope_at.is_multiple_of(4), KERNEL, || {
            format!("rope begins at {}, expected a multiple of 4", io.rope_at)
        })?;
        holds("q_norm", io.q_norm.len(), head_dim)?;
        holds("k_norm", io.k_norm.len(), head_dim)?;
        holds("rope", io.rope.len(), io.rope_at + head_dim)?;
        holds("state", io.state.len(), POSITION + 1)?;
        holds("k_cache", io.k_cache.len(), self.spec.cache_words())?;
        holds("v_cache", io.v_cache.len(), self.spec.cache_words())?;
        holds("partial", io.scratch.partial.len(), self.partial_len())?;
        holds("stats", io.scratch.stats.len(), self.stats_len())?;
        holds("out", io.out.len(), heads * head_dim)
    }
}
