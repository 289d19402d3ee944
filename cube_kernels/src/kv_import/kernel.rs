use cubecl::prelude::*;

use crate::attention::KvType;
use crate::math::{hi, lo, pack};

/// One unit per pair of elements.
#[cube(launch_unchecked)]
pub(super) fn kv_import_kernel(
    source: &[u32],
    cache: &mut [u32],
    pairs_per_head: u32,
    cache_pairs_per_head: u32,
    total: u32,
    #[comptime] from: KvType,
    #[comptime] to: KvType,
) {
    let at = ABSOLUTE_POS as u32;
    if at < total {
        let head = at / pairs_per_head;
        let target = (head * cache_pairs_per_head + at % pairs_per_head) as usize;
        let at = at as usize;
        let low = if comptime!(from == KvType::Bf16) { lo(source[at]) } else { f32::reinterpret(source[2 * at]) };
        let high = if comptime!(from == KvType::Bf16) { hi(source[at]) } else { f32::reinterpret(source[2 * at + 1]) };
        if comptime!(to == KvType::Bf16) {
            cache[target] = pack(low, high);
        } else {
            cache[2 * target] = u32::reinterpret(low);
            cache[2 * target + 1] = u32::reinterpret(high);
        }
    }
}
