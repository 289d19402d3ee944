//! Sums and maxima over neighbouring units by butterflies: correct for every power of two up to the plane size.

use cubecl::prelude::*;

/// The sum of `value` over each `width` neighbouring units, in each of them.
#[cube]
pub(super) fn group_sum(value: f32, #[comptime] width: usize) -> f32 {
    let mut sum = value;
    #[unroll]
    for step in 0..comptime!(width.ilog2()) {
        sum += plane_shuffle_xor(sum, comptime!(1u32 << step));
    }
    sum
}

/// The maximum of `value` over each `width` neighbouring units, in each of them.
#[cube]
pub(super) fn group_max(value: f32, #[comptime] width: usize) -> f32 {
    let mut most = value;
    #[unroll]
    for step in 0..comptime!(width.ilog2()) {
        most = max(most, plane_shuffle_xor(most, comptime!(1u32 << step)));
    }
    most
}

/// Exchange steps of [`spread_sum`] that halve the number of sums per unit.
pub(super) fn halvings(count: usize, width: usize) -> usize {
    count.ilog2().min(width.ilog2()) as usize
}

/// Sums `count` values over `width` neighbouring units, and spreads the sums over the units instead of repeating them:
/// 9 shuffles for 8 values over 32 units, not 40. Unit `lane` then holds sums `spread_first(lane)..` in the first
/// `count >> halvings` elements. Both sizes are powers of two.
#[cube]
pub(super) fn spread_sum(values: &mut Array<f32>, lane: usize, #[comptime] count: usize, #[comptime] width: usize) {
    let halving = comptime!(halvings(count, width));
    #[unroll]
    for step in 0..halving {
        let half = comptime!(count >> (step + 1));
        let distance = comptime!(width >> (step + 1));
        let upper = (lane & distance) != 0usize;
        #[unroll]
        for i in 0..half {
            let low = values[i];
            let high = values[comptime!(i + half)];
            let sent = plane_shuffle_xor(select(upper, low, high), comptime!(distance as u32));
            values[i] = select(upper, high, low) + sent;
        }
    }
    let left = comptime!(count >> halving);
    #[unroll]
    for step in halving..comptime!(width.ilog2() as usize) {
        #[unroll]
        for i in 0..left {
            let value = values[i];
            values[i] = value + plane_shuffle_xor(value, comptime!((width >> (step + 1)) as u32));
        }
    }
}

/// The first sum that unit `lane` holds after [`spread_sum`].
#[cube]
pub(super) fn spread_first(lane: usize, #[comptime] count: usize, #[comptime] width: usize) -> usize {
    let mut first = 0usize;
    #[unroll]
    for step in 0..comptime!(halvings(count, width)) {
        first += ((lane / comptime!(width >> (step + 1))) & 1usize) * comptime!(count >> (step + 1));
    }
    first
}
