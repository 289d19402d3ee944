//! What one attention layer looks like, how its work is cut up on a device, and what is refused.

use crate::{Caps, Rejected};

/// The kernel's name in errors.
pub(super) const KERNEL: &str = "attention";
/// Head dimensions of one 16-byte-per-lane step along a row of K.
pub(super) const CHUNK: usize = 8;
const MAX_GROUP: usize = 8;
const WIDE_PLANE: u32 = 16;
const WIDE_HEAD: usize = 512;
const LONG_CONTEXT: usize = 4096;

/// How keys and values are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum KvType {
    /// Two values in one `u32`, the even dimension in the low half.
    Bf16,
    /// One value in one `u32`.
    F32,
}

impl KvType {
    /// Values packed in one `u32`.
    pub const fn per_word(self) -> usize {
        match self {
            Self::Bf16 => 2,
            Self::F32 => 1,
        }
    }
}

/// Facts of one attention layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct AttentionSpec {
    /// H, query heads.
    pub heads: usize,
    /// K, key/value heads.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Slots of the K/V cache: W of a sliding layer (a ring), the context size of a full one.
    pub slots: usize,
    /// How the cache stores keys and values.
    pub kv: KvType,
    /// Whether the layer writes the new token's key and value (false: it reads what another layer wrote in this step).
    pub owns_kv: bool,
}

impl AttentionSpec {
    /// Words of one cache (K or V): `[K, slots, D]` packed.
    pub fn cache_words(&self) -> usize {
        self.kv_heads * self.slots * self.head_dim / self.kv.per_word()
    }

    fn check(&self) -> Result<(), Rejected> {
        let Self { heads, kv_heads, head_dim, slots, .. } = *self;
        Rejected::unless(kv_heads > 0 && heads > 0 && heads.is_multiple_of(kv_heads), KERNEL, || {
            format!("{heads} query heads cannot share {kv_heads} key/value heads evenly")
        })?;
        Rejected::unless(head_dim.is_power_of_two() && (16..=512).contains(&head_dim), KERNEL, || {
            format!("head_dim is {head_dim}, expected a power of two from 16 to 512")
        })?;
        Rejected::unless(slots > 0 && self.cache_words() <= u32::MAX as usize, KERNEL, || {
            format!("{slots} cache slots of {kv_heads} x {head_dim}: expected 1 or more, and at most 2^32 words")
        })
    }
}

/// How the work of one layer is cut up. The defaults of [`Tuning::of`] are the measured ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuning {
    /// Units of one cube of the split kernel.
    pub units: usize,
    /// Query heads of one cube; divides H/K. Fewer heads mean more cubes that each read K and V again (from L2).
    pub group: usize,
    /// Units that share one row of K; divides D/8.
    pub lanes: usize,
    /// Keys that a cube holds in registers at once.
    pub tile: usize,
    /// Dimensions of one row of V per unit: 2 or 4.
    pub value_dims: usize,
    /// Most cubes along the keys.
    pub splits: usize,
    /// Fewest keys of one cube, where there are enough.
    pub min_keys: usize,
    /// Dimensions that one cube of the merge kernel finishes.
    pub merge_dims: usize,
    /// Write out the loops over keys, heads and dimensions: registers in place of arrays.
    pub unroll: bool,
}

impl Tuning {
    /// The default for `spec` on a device with `caps`.
    pub fn of(spec: &AttentionSpec, caps: &Caps) -> Self {
        let d = spec.head_dim;
        let per_kv = spec.heads / spec.kv_heads.max(1);
        // Narrow planes are processors that play GPU: they compile long code for minutes.
        let unroll = caps.plane_ops && caps.lanes >= WIDE_PLANE;
        let wide = unroll && d >= WIDE_HEAD;
        let units = if wide { 256 } else { 128 }.min(power_of_two_at_most(caps.max_units as usize));
        let (value_dims, most_lanes) = if wide { (2, 64) } else { (4, 16) };
        // More heads per cube read K and V less often; fewer finish sooner. The balance turns at about 4,096 keys.
        let most_heads = match (wide, spec.slots > LONG_CONTEXT) {
            (true, true) => MAX_GROUP,
            (true, false) => 4,
            (false, _) => 2,
        };
        let group = (1..=most_heads.min(per_kv)).rev().find(|g| per_kv.is_multiple_of(*g)).unwrap_or(1);
        let lanes = (d / CHUNK).min(units).min(most_lanes);
        let rows = units / lanes;
        let (least, most_merged) = if wide { (32, 64) } else { (16, 128) };
        let tile = least.max(rows).max(units * value_dims / d);
        let min_keys = least;
        let splits = spec.slots.div_ceil(min_keys).clamp(1, 128);
        Self { units, group, lanes, tile, value_dims, splits, min_keys, merge_dims: d.min(most_merged), unroll }
    }
}

/// Everything that changes the generated code; sizes that need not be here are run-time arguments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Blueprint {
    pub(super) head_dim: usize,
    pub(super) kv: KvType,
    pub(super) owns_kv: bool,
    /// Cubes that share one KV head.
    pub(super) cubes_per_kv: usize,
    /// Units that exchange values without barriers (1 where there are no plane operations).
    pub(super) plane: usize,
    /// As in [`Caps`].
    pub(super) overlaps: bool,
    pub(super) tuning: Tuning,
}

impl Blueprint {
    pub(super) fn new(spec: &AttentionSpec, tuning: Tuning, caps: &Caps) -> Result<Self, Rejected> {
        spec.check()?;
        let per_kv = spec.heads / spec.kv_heads;
        let plane = if caps.plane_ops { caps.lanes as usize } else { 1 };
        let bp = Self {
            head_dim: spec.head_dim,
            kv: spec.kv,
            owns_kv: spec.owns_kv,
            cubes_per_kv: per_kv / tuning.group.clamp(1, per_kv),
            plane,
            overlaps: caps.overlaps,
            tuning,
        };
        bp.check(per_kv, caps)?;
        Ok(bp)
    }

    fn check(&self, per_kv: usize, caps: &Caps) -> Result<(), Rejected> {
        let t = self.tuning;
        let need = |ok: bool, what: String| Rejected::unless(ok, KERNEL, || what);
        let units = t.units;
        need(units.is_power_of_two() && units <= caps.max_units as usize, {
            format!("{units} units per cube, expected a power of two of at most {}", caps.max_units)
        })?;
        need(t.group > 0 && t.group <= MAX_GROUP && per_kv.is_multiple_of(t.group), {
            format!("{} query heads per cube, expected a divisor of {per_kv} of at most {MAX_GROUP}", t.group)
        })?;
        let rows_of_k = self.head_dim / CHUNK;
        need(t.lanes > 0 && rows_of_k.is_multiple_of(t.lanes) && t.lanes.is_power_of_two() && t.lanes <= units, {
            format!(
                "{} lanes per key, expected a power of two that divides {rows_of_k} and fits {units} units",
                t.lanes
            )
        })?;
        need(matches!(t.value_dims, 2 | 4) && self.head_dim / t.value_dims <= units, {
            format!(
                "head_dim {} at {} value dimensions per unit needs more than {units} units",
                self.head_dim, t.value_dims
            )
        })?;
        let rows = self.key_rows().max(self.value_rows());
        need(t.tile.is_power_of_two() && t.tile >= rows, {
            format!("a tile of {} keys, expected a power of two of at least {rows}", t.tile)
        })?;
        need(t.splits > 0 && t.min_keys > 0, "splits and min_keys must be 1 or more".into())?;
        let merge_ok = t.merge_dims.is_power_of_two() && t.merge_dims >= 4 && t.merge_dims <= self.head_dim;
        need(
            merge_ok,
            format!("{} dimensions per merge cube, expected a power of two from 4 to head_dim", t.merge_dims),
        )?;
        let bytes = self.shared_bytes();
        need(bytes <= caps.shared_bytes as usize, {
            format!("needs {bytes} bytes of shared memory, the device has {}", caps.shared_bytes)
        })
    }

    fn shared_bytes(&self) -> usize {
        let t = self.tuning;
        let q = t.group * self.head_dim;
        let new = if self.owns_kv { 2 * self.head_dim } else { 0 };
        let scores = self.heads_pow2() * self.parts() * t.tile;
        let weights = t.tile * self.heads_pow2() + self.heads_pow2();
        let sums = if self.value_rows() > 1 { t.units * t.value_dims * t.group } else { 0 };
        4 * (q + new + scores + weights + sums + 3 * t.units / self.reach(t.units))
    }

    /// Query heads of one cube, rounded up to a power of two.
    pub(super) fn heads_pow2(&self) -> usize {
        self.tuning.group.next_power_of_two()
    }

    /// Of `units` units that sum together, those that do so without a barrier.
    pub(super) fn reach(&self, units: usize) -> usize {
        self.plane.min(units)
    }

    /// Sums in shared memory that make up one score.
    pub(super) fn parts(&self) -> usize {
        self.tuning.lanes / self.reach(self.tuning.lanes)
    }

    /// Keys that the cube multiplies at once.
    pub(super) fn key_rows(&self) -> usize {
        self.tuning.units / self.tuning.lanes
    }

    /// Values that the cube adds at once.
    pub(super) fn value_rows(&self) -> usize {
        self.tuning.units * self.tuning.value_dims / self.head_dim
    }

    /// 8-dimension pieces of a K row per unit.
    pub(super) fn chunks(&self) -> usize {
        self.head_dim / CHUNK / self.tuning.lanes
    }

    /// 16-byte vectors of one such piece.
    pub(super) fn chunk_vectors(&self) -> usize {
        CHUNK / 4 / self.kv.per_word()
    }

    /// `u32` words of V per unit and row.
    pub(super) fn value_words(&self) -> usize {
        self.tuning.value_dims / self.kv.per_word()
    }

    /// Partial results per head: one per split, and one of the new token where this layer writes it.
    pub(super) fn partials(&self) -> usize {
        self.tuning.splits + usize::from(self.owns_kv)
    }
}

fn power_of_two_at_most(n: usize) -> usize {
    1 << n.max(1).ilog2()
}
