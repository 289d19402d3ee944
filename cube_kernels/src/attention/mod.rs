//! Attention of one new token over a K/V cache, in two launches: split over the keys, merge.
//!
//! **Fuses**: RMS norm of q and k per head (weighted) and of v (without weight), rotary embedding of q and k, the write of
//! the new key and value into the cache, scores (scale 1), online softmax, weighted sum. Every cube of the split kernel
//! norms and rotates its q again while its first keys and values are on their way; one more cube per group of heads
//! handles the new token, so that nobody reads what this launch writes.
//!
//! **Layout**: `qkv` f32, one buffer with q `[H, D]`, k `[K, D]`, v `[K, D]` at places of the caller's choice; caches
//! `[K, slots, D]` as packed bf16 pairs or f32 bits in `u32`; out `[H, D]` f32. A token at position p lives in slot
//! p mod slots: a ring of W slots is a sliding window of W keys, and a full layer has as many slots as the context.
//! Position is read from the [`crate::state`] buffer: one captured graph serves every position.
//!
//! **Supported**: D a power of two from 16 to 512; any H/K (groups of up to 8 query heads share one pass over K and V);
//! K/V in bf16 or f32; layers that write K/V and layers that read another layer's; v = raw k (the same place for both).
//! Devices without plane operations run the same kernels with shared memory in place of shuffles.
//!
//! **Rejected**: other head sizes, more heads per cube than 8, tunings that do not fit the device's units or shared
//! memory (so CubeCL's CPU runtime, which has too few units), buffers that are too small.
//!
//! **Bytes moved** for S visible keys: 2·K·S·D·(2 or 4) of cache, once per group of heads (from L2 after the first), plus
//! 4·H·D·(splits + 1) partial results, written and read once.
//!
//! **Measured** (H200, CUDA through LLVM, 8 heads on one KV head, bf16 K/V, in a captured graph, caches beyond L2, both
//! launches; `attention_bench`): D 256, window 512: 4.4 µs (2.9 + 1.5); D 512, 8 heads per cube: 7.6 µs at 512 keys, 8.7
//! at 2,048, 13.9 at 8,192, 37 at 32,768; 4 heads per cube: 6.1, 8.8, 16.6. Merging by the last cube to arrive (atomics, one launch) took 5.4 µs and more where two take 4.4.

mod kernel;
mod lanes;
mod launch;
mod merge;
mod output;
mod prologue;
mod reference;
mod rope;
mod spec;
mod tile;

pub use launch::{Attention, AttentionBuffers, AttentionScratch};
pub use merge::{merge_scale, merge_weights};
pub use reference::{ReferenceCache, ReferenceToken, append_reference, attention_reference};
pub use rope::RopeTable;
pub use spec::{AttentionSpec, Blueprint, KvType, Tuning};
