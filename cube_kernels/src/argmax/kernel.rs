use cubecl::prelude::*;

use crate::gemv::NO_ROW;
use crate::overlap::{after_wait, wait_for_previous};
use crate::state;

const MINUS_INFINITY: u32 = 0xff80_0000;

/// One cube of `units` units over `partials` = `[value bits, row]` pairs.
#[cube(launch_unchecked)]
pub(super) fn argmax_kernel(
    partials: &mut [u32],
    words: &mut [u32],
    ring: &mut [u32],
    ends: &[u32],
    #[comptime] units: u32,
    #[comptime] overlaps: bool,
) {
    wait_for_previous(overlaps);
    after_wait(partials, ring.len() == 0usize, overlaps);
    let unit = UNIT_POS as usize;
    let count = partials.len() / 2;
    let mut best = f32::reinterpret(MINUS_INFINITY);
    let mut best_row = u32::cast_from(NO_ROW);
    let mut broken = u32::cast_from(0u32);
    let mut at = unit;
    while at < count {
        let value = f32::reinterpret(partials[2 * at]);
        let row = partials[2 * at + 1];
        if row == NO_ROW {
            broken = 1u32;
        } else if value > best || (value == best && row < best_row) {
            best = value;
            best_row = row;
        }
        at += comptime!(units as usize);
    }
    let mut found = Shared::<[f32]>::new_slice(comptime!(units as usize));
    let mut found_row = Shared::<[u32]>::new_slice(comptime!(units as usize));
    let mut found_broken = Shared::<[u32]>::new_slice(comptime!(units as usize));
    found[unit] = best;
    found_row[unit] = best_row;
    found_broken[unit] = broken;
    sync_cube();
    // `units` is a power of two.
    #[unroll]
    for level in 0..comptime!(units.ilog2()) {
        let half = comptime!((units >> (level + 1)) as usize);
        if unit < half {
            let other = found[unit + half];
            let other_row = found_row[unit + half];
            if other > found[unit] || (other == found[unit] && other_row < found_row[unit]) {
                found[unit] = other;
                found_row[unit] = other_row;
            }
            found_broken[unit] = found_broken[unit] | found_broken[unit + half];
        }
        sync_cube();
    }
    if unit == 0 && words[comptime!(state::HALTED)] == 0u32 {
        let broken = found_broken[0] != 0u32 || found_row[0] == NO_ROW;
        let token = select(broken, 0u32, found_row[0]);
        if broken {
            words[comptime!(state::ERROR)] = comptime!(state::NOT_FINITE);
        }
        let step = words[comptime!(state::STEP)];
        ring[step as usize % ring.len()] = token;
        words[comptime!(state::TOKEN)] = token;
        words[comptime!(state::STEP)] = step + 1u32;
        words[comptime!(state::POSITION)] = words[comptime!(state::POSITION)] + 1u32;
        for end in 0..ends.len() {
            if ends[end] == token {
                words[comptime!(state::HALTED)] = 1u32;
            }
        }
    }
}
