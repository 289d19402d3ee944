use cubecl::prelude::*;

use super::kernel::{Blueprint, Quad, place};
use crate::math::{add_up, cube_sum, lanes_sum};

#[cube]
fn squares(v: Quad, sum: f32) -> f32 {
    let mut s = fma(v.extract(0usize), v.extract(0usize), sum);
    s = fma(v.extract(1usize), v.extract(1usize), s);
    s = fma(v.extract(2usize), v.extract(2usize), s);
    fma(v.extract(3usize), v.extract(3usize), s)
}

#[cube]
fn inverse_rms(sum_of_squares: f32, eps: f32, #[comptime] b: Blueprint) -> f32 {
    f32::inverse_sqrt(sum_of_squares / comptime!((b.k_vec * 8) as f32) + eps)
}

/// 1 / rms(x), computed by the whole cube.
#[cube]
pub(super) fn norm_factor(x: &[Quad], scratch: &mut Shared<[f32]>, eps: f32, #[comptime] b: Blueprint) -> f32 {
    let quads = comptime!(b.k_vec as usize * 2);
    let mut sums = Shared::<[f32]>::new_slice(comptime!(b.config.planes as usize));
    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..comptime!(b.rounds(quads)) {
        let at = UNIT_POS as usize + comptime!(j * b.units());
        if at < quads {
            sum = squares(x[at], sum);
        }
    }
    inverse_rms(cube_sum(sum, &mut sums, scratch, comptime!(b.config.planes), b.caps), eps, b)
}

/// Loads what this unit needs of the K weights of a norm.
#[cube]
pub(super) fn load_norm(weights: &[Quad], out: &mut Array<Quad>, #[comptime] b: Blueprint) {
    let quads = comptime!(b.k_vec as usize * 2);
    #[unroll]
    for j in 0..comptime!(b.rounds(quads)) {
        out[j] = weights[min(UNIT_POS as usize + comptime!(j * b.units()), quads - 1)];
    }
}

/// h' = (h + rms(y) · post) · layer_gain, stored to `h_out` by cube 0. Leaves this lane's part of h' (times the pre-norm
/// weights where there are some) in `xr` and returns 1 / rms(h').
///
/// The cube computes each element once; both norms' weights are this unit's, as [`load_norm`] leaves them.
#[cube]
#[allow(clippy::too_many_arguments)]
pub(super) fn residual_input(
    h: &[Quad],
    y: &[Quad],
    h_out: &mut [Quad],
    post_weights: &Array<Quad>,
    pre_weights: &Array<Quad>,
    layer_gain: f32,
    xr: &mut Array<Quad>,
    scratch: &mut Shared<[f32]>,
    eps: f32,
    #[comptime] has_pre: bool,
    #[comptime] b: Blueprint,
) -> f32 {
    let unit = UNIT_POS as usize;
    let quads = comptime!(b.k_vec as usize * 2);
    let rounds = comptime!(b.rounds(quads));
    let planes = comptime!(b.config.planes as usize);
    let mut sums = Shared::<[f32]>::new_slice(comptime!(2 * planes));
    let mut staged = Shared::<[Quad]>::new_slice(quads);

    // All loads first, so that they are under way together.
    let mut hs = Array::<Quad>::new(rounds);
    let mut ys = Array::<Quad>::new(rounds);
    #[unroll]
    for j in 0..rounds {
        let at = min(unit + comptime!(j * b.units()), quads - 1);
        hs[j] = h[at];
        ys[j] = y[at];
    }
    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..rounds {
        if unit + comptime!(j * b.units()) < quads {
            sum = squares(ys[j], sum);
        }
    }
    let y_factor = inverse_rms(cube_sum(sum, &mut sums, scratch, comptime!(b.config.planes), b.caps), eps, b);

    let mut sum = 0.0f32;
    #[unroll]
    for j in 0..rounds {
        let at = unit + comptime!(j * b.units());
        if at < quads {
            let updated = (hs[j] + ys[j] * Quad::new(y_factor) * post_weights[j]) * Quad::new(layer_gain);
            if CUBE_POS_X == 0 {
                h_out[at] = updated;
            }
            sum = squares(updated, sum);
            if comptime!(has_pre) {
                staged[at] = updated * pre_weights[j];
            } else {
                staged[at] = updated;
            }
        }
    }
    let mut factor = 1.0f32;
    if comptime!(has_pre) {
        let part = lanes_sum(sum, scratch, b.caps);
        if UNIT_POS_X == 0 {
            sums[planes + UNIT_POS_Y as usize] = part;
        }
    }
    sync_cube();
    if comptime!(has_pre) {
        factor = inverse_rms(add_up(&sums, planes, comptime!(b.config.planes)), eps, b);
    }
    #[unroll]
    for u in 0..comptime!(b.loads()) {
        let at = place(u, b) * 2usize;
        xr[comptime!(2 * u)] = staged[at];
        xr[comptime!(2 * u + 1)] = staged[at + 1usize];
    }
    factor
}
