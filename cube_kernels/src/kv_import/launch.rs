use cubecl::client::Client;
use cubecl::prelude::*;

use super::kernel::kv_import_kernel;
use crate::attention::KvType;
use crate::{Buffer, Caps, Rejected};

const KERNEL: &str = "kv_import";
const UNITS: u32 = 256;

/// Shapes and formats of one import.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvImport {
    /// K.
    pub kv_heads: usize,
    /// D.
    pub head_dim: usize,
    /// Tokens in the source.
    pub tokens: usize,
    /// Slots of the cache.
    pub slots: usize,
    /// Format of the source.
    pub from: KvType,
    /// Format of the cache.
    pub to: KvType,
}

/// Copies `source` into the first slots of `cache`.
///
/// # Shapes
/// `source` `[K, tokens, D]` and `cache` `[K, slots, D]`, in words: bf16 packed in pairs, or f32 bits.
///
/// # Errors
/// [`Rejected`] for shapes outside **Supported** in the [module's documentation](super); nothing was launched.
pub fn kv_import(
    client: &Client,
    caps: Caps,
    op: &KvImport,
    source: &Buffer<u32>,
    cache: &Buffer<u32>,
) -> Result<(), Rejected> {
    let KvImport { kv_heads, head_dim, tokens, slots, from, to } = *op;
    Rejected::unless(head_dim > 0 && head_dim.is_multiple_of(2), KERNEL, || {
        format!("head_dim {head_dim}, expected an even one")
    })?;
    Rejected::unless(tokens > 0 && tokens <= slots, KERNEL, || format!("{tokens} tokens for {slots} slots"))?;
    for (name, buffer, rows, kv) in [("source", source, tokens, from), ("cache", cache, slots, to)] {
        let expected = kv_heads * rows * head_dim / kv.per_word();
        Rejected::unless(buffer.len() == expected, KERNEL, || {
            format!("{name} has {} words, expected {expected}", buffer.len())
        })?;
    }
    let pairs = tokens * head_dim / 2;
    let total = kv_heads * pairs;
    let units = UNITS.min(caps.max_units);
    // SAFETY: both buffers were compared with the shapes that the kernel indexes.
    unsafe {
        kv_import_kernel::launch_unchecked(
            client,
            CubeCount::Static((total as u32).div_ceil(units), 1, 1),
            CubeDim::new_1d(units),
            source.arg(),
            cache.arg(),
            pairs as u32,
            (slots * head_dim / 2) as u32,
            total as u32,
            from,
            to,
        );
    }
    Ok(())
}
