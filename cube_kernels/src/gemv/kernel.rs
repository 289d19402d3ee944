use cubecl::prelude::*;

use super::GemvConfig;
use super::prologue::{load_norm, norm_factor, residual_input};
use crate::Caps;
use crate::math::{add_up, gelu_tanh, hi, is_not_finite, lanes_scratch, lanes_sum, lo, softcap};
use crate::overlap::{after_wait, release_next, wait_for_previous};

/// Eight bf16 weights in one 16-byte load.
pub(super) type Packed = Vector<u32, Const<4>>;
/// Four f32 activations.
pub(super) type Quad = Vector<f32, Const<4>>;

const MINUS_INFINITY: u32 = 0xff80_0000;
const PLUS_INFINITY: u32 = 0x7f80_0000;
/// The row of a partial result that is no result.
pub(crate) const NO_ROW: u32 = u32::MAX;

/// What happens to the sums.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum Epilogue {
    /// Stored as they are.
    Plain,
    /// gelu(first weight) · second weight.
    GeluMul,
    /// gelu(y) · factor.
    GeluScale,
    /// The cube's largest value and its row.
    Argmax,
    /// The same after cap · tanh(y / cap).
    SoftcapArgmax,
}

/// All that changes the generated code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Blueprint {
    /// K / 8: 16-byte loads per row.
    pub k_vec: u32,
    pub epilogue: Epilogue,
    pub config: GemvConfig,
    pub caps: Caps,
}

impl Blueprint {
    /// Loads that one lane makes for one row.
    pub(super) fn loads(&self) -> usize {
        self.k_vec.div_ceil(self.config.split * self.caps.lanes) as usize
    }
    /// 16-byte loads of one plane's part of a row.
    pub(super) fn segment(&self) -> usize {
        self.k_vec.div_ceil(self.config.split) as usize
    }
    /// Whether every lane's every load falls inside the row.
    pub(super) fn exact(&self) -> bool {
        self.k_vec.is_multiple_of(self.config.split * self.caps.lanes)
    }
    /// Weight rows that belong to one output.
    pub(super) fn streams(&self) -> usize {
        if self.epilogue == Epilogue::GeluMul { 2 } else { 1 }
    }
    /// Weight rows of one group of planes.
    pub(super) fn steps(&self) -> usize {
        (self.config.ahead * self.config.blocks) as usize
    }
    /// Outputs of one group.
    pub(super) fn outputs(&self) -> usize {
        self.steps() / self.streams()
    }
    pub(super) fn groups(&self) -> usize {
        (self.config.planes / self.config.split) as usize
    }
    pub(super) fn units(&self) -> usize {
        (self.config.planes * self.caps.lanes) as usize
    }
    /// Rounds in which the cube's units touch each of `n` things once.
    pub(super) fn rounds(&self, n: usize) -> usize {
        n.div_ceil(self.units())
    }
}

#[cube]
fn dot8(w: Packed, x0: Quad, x1: Quad, even: f32, odd: f32) -> (f32, f32) {
    let mut a = fma(lo(w.extract(0usize)), x0.extract(0usize), even);
    let mut b = fma(hi(w.extract(0usize)), x0.extract(1usize), odd);
    a = fma(lo(w.extract(1usize)), x0.extract(2usize), a);
    b = fma(hi(w.extract(1usize)), x0.extract(3usize), b);
    a = fma(lo(w.extract(2usize)), x1.extract(0usize), a);
    b = fma(hi(w.extract(2usize)), x1.extract(1usize), b);
    a = fma(lo(w.extract(3usize)), x1.extract(2usize), a);
    b = fma(hi(w.extract(3usize)), x1.extract(3usize), b);
    (a, b)
}

/// This lane's place in the row for its load `u`, clamped into the row.
#[cube]
pub(super) fn place(#[comptime] u: usize, #[comptime] b: Blueprint) -> usize {
    let part = UNIT_POS_Y as usize % comptime!(b.config.split as usize);
    let at = part * comptime!(b.segment()) + UNIT_POS_X as usize + comptime!(u * b.caps.lanes as usize);
    if comptime!(b.exact()) { at } else { min(at, comptime!(b.k_vec as usize - 1)) }
}

/// Whether this lane's load `u` is part of its plane's part of the row.
#[cube]
fn inside(#[comptime] u: usize, #[comptime] b: Blueprint) -> bool {
    let part = UNIT_POS_Y as usize % comptime!(b.config.split as usize);
    let local = UNIT_POS_X as usize + comptime!(u * b.caps.lanes as usize);
    let at = part * comptime!(b.segment()) + local;
    local < comptime!(b.segment()) && at < comptime!(b.k_vec as usize)
}

/// Requests this lane's part of one row into the registers `slot * loads ..`.
#[cube]
fn load_row(w: &[Packed], row: usize, buffer: &mut Array<Packed>, #[comptime] slot: usize, #[comptime] b: Blueprint) {
    #[unroll]
    for u in 0..comptime!(b.loads()) {
        buffer[comptime!(slot * b.loads() + u)] = w[row * comptime!(b.k_vec as usize) + place(u, b)];
    }
}

/// Requests the row that `step` stands for: of both weights in turn for pairs, else counted through all weights.
#[cube]
fn load_step(
    weights: &Sequence<Box<[Packed]>>,
    ends: &Sequence<u32>,
    first: usize,
    step: usize,
    buffer: &mut Array<Packed>,
    #[comptime] slot: usize,
    #[comptime] b: Blueprint,
) {
    if comptime!(b.epilogue == Epilogue::GeluMul) {
        let row = min(first + step / 2usize, ends[0] as usize - 1usize);
        if comptime!(slot % 2 == 0) {
            load_row(&weights[0], row, buffer, slot, b);
        } else {
            load_row(&weights[1], row, buffer, slot, b);
        }
    } else {
        let count = comptime!(weights.len());
        let row = first + step;
        if comptime!(count == 1) {
            load_row(&weights[0], min(row, ends[0] as usize - 1usize), buffer, slot, b);
        } else if comptime!(count == 2) {
            if row < ends[0] as usize {
                load_row(&weights[0], row, buffer, slot, b);
            } else {
                load_row(&weights[1], min(row, ends[1] as usize - 1usize) - ends[0] as usize, buffer, slot, b);
            }
        } else {
            if row < ends[0] as usize {
                load_row(&weights[0], row, buffer, slot, b);
            } else if row < ends[1] as usize {
                load_row(&weights[1], row - ends[0] as usize, buffer, slot, b);
            } else {
                load_row(&weights[2], min(row, ends[2] as usize - 1usize) - ends[1] as usize, buffer, slot, b);
            }
        }
    }
}

/// One cube computes `groups · outputs` outputs. See the module's documentation; `ends` are the running row counts.
#[cube(launch_unchecked)]
#[allow(clippy::too_many_arguments)]
pub(super) fn gemv_kernel(
    weights: &Sequence<Box<[Packed]>>,
    x: &mut [Quad],
    y_previous: ComptimeOption<&mut [Quad]>,
    post: ComptimeOption<&[Quad]>,
    layer_scale: ComptimeOption<&[f32]>,
    pre: ComptimeOption<&[Quad]>,
    factor: ComptimeOption<&[f32]>,
    h_out: ComptimeOption<&mut [Quad]>,
    y: ComptimeOption<&mut [f32]>,
    partials: ComptimeOption<&mut [u32]>,
    ends: Sequence<u32>,
    factor_offset: u32,
    scale: f32,
    eps: f32,
    cap: f32,
    #[comptime] b: Blueprint,
) {
    let unit = UNIT_POS as usize;
    let planes = comptime!(b.config.planes);
    let split = comptime!(b.config.split as usize);
    let loads = comptime!(b.loads());
    let ahead = comptime!(b.config.ahead as usize);
    let blocks = comptime!(b.config.blocks as usize);
    let per_cube = comptime!(b.groups() * b.outputs());
    let cube_first = CUBE_POS_X as usize * per_cube;
    let group = UNIT_POS_Y as usize / split;
    let first = cube_first + group * comptime!(b.outputs());
    let rows = ends[comptime!(if b.epilogue == Epilogue::GeluMul { 0usize } else { weights.len() - 1 })] as usize;

    // 1. The first weights, before anything that waits.
    let mut buffer = Array::<Packed>::new(comptime!(ahead * loads));
    #[unroll]
    for i in 0..ahead {
        load_step(weights, &ends, first, i, &mut buffer, i, b);
    }
    let quads = comptime!(b.k_vec as usize * 2);
    let is_residual = comptime!(y_previous.is_some());
    let mut pre_weights = Array::<Quad>::new(comptime!(b.rounds(quads)));
    let mut post_weights = Array::<Quad>::new(comptime!(b.rounds(quads)));
    let mut layer_gain = 1.0f32;
    if comptime!(is_residual) {
        #[comptime]
        if let ComptimeOption::Some(pre) = pre {
            load_norm(pre, &mut pre_weights, b);
        }
        #[comptime]
        if let ComptimeOption::Some(post) = post {
            load_norm(post, &mut post_weights, b);
        }
        #[comptime]
        if let ComptimeOption::Some(layer_scale) = layer_scale {
            layer_gain = layer_scale[0];
        }
    }
    wait_for_previous(comptime!(b.caps.overlaps));
    after_wait(x, eps < 0.0f32, comptime!(b.caps.overlaps));
    let mut factors = Array::<f32>::new(comptime!(b.rounds(per_cube)));
    #[comptime]
    if let ComptimeOption::Some(factor) = factor {
        #[unroll]
        for j in 0..comptime!(b.rounds(per_cube)) {
            let row = min(cube_first + unit + comptime!(j * b.units()), rows - 1);
            factors[j] = factor[factor_offset as usize + row];
        }
    }

    // 2. The input: each lane's part of x in registers. The last norm's factor is a scalar, applied to the sums.
    let mut scratch = lanes_scratch(comptime!(b.config.planes * b.caps.lanes), b.caps);
    let mut xr = Array::<Quad>::new(comptime!(2 * loads));
    let mut gain = scale;
    if comptime!(!is_residual) {
        #[unroll]
        for u in 0..loads {
            let at = place(u, b) * 2usize;
            xr[comptime!(2 * u)] = x[at];
            xr[comptime!(2 * u + 1)] = x[at + 1usize];
        }
        #[comptime]
        if let ComptimeOption::Some(pre) = pre {
            #[unroll]
            for u in 0..loads {
                let at = place(u, b) * 2usize;
                xr[comptime!(2 * u)] = xr[comptime!(2 * u)] * pre[at];
                xr[comptime!(2 * u + 1)] = xr[comptime!(2 * u + 1)] * pre[at + 1usize];
            }
            gain = norm_factor(&*x, &mut scratch, eps, b);
        }
    }
    #[comptime]
    if let ComptimeOption::Some(y_previous) = y_previous {
        after_wait(y_previous, eps < 0.0f32, comptime!(b.caps.overlaps));
        let has_pre = comptime!(pre.is_some());
        #[comptime]
        if let ComptimeOption::Some(h_out) = h_out {
            let factor = residual_input(
                &*x,
                &*y_previous,
                h_out,
                &post_weights,
                &pre_weights,
                layer_gain,
                &mut xr,
                &mut scratch,
                eps,
                has_pre,
                b,
            );
            if comptime!(has_pre) {
                gain = factor;
            }
        }
    }
    if comptime!(!b.exact()) {
        #[unroll]
        for u in 0..loads {
            if !inside(u, b) {
                xr[comptime!(2 * u)] = Quad::new(0.0f32);
                xr[comptime!(2 * u + 1)] = Quad::new(0.0f32);
            }
        }
    }

    release_next(comptime!(b.caps.overlaps));
    // 3. Stream the rows.
    let mut red = Shared::<[f32]>::new_slice(comptime!(planes as usize * b.steps()));
    #[unroll(blocks <= 4)]
    for block in 0..blocks {
        #[unroll]
        for i in 0..ahead {
            let mut even = 0.0f32;
            let mut odd = 0.0f32;
            #[unroll]
            for u in 0..loads {
                let (e, o) =
                    dot8(buffer[comptime!(i * loads + u)], xr[comptime!(2 * u)], xr[comptime!(2 * u + 1)], even, odd);
                even = e;
                odd = o;
            }
            if block + 1 < blocks {
                load_step(weights, &ends, first, (block + 1) * ahead + i, &mut buffer, i, b);
            }
            let sum = lanes_sum(even + odd, &mut scratch, b.caps);
            if UNIT_POS_X == 0 {
                red[(block * ahead + i) * planes as usize + UNIT_POS_Y as usize] = sum;
            }
        }
    }
    sync_cube();

    // 4. Add the planes' parts and finish, one output per unit and round.
    let mut values = Array::<f32>::new(comptime!(b.rounds(per_cube)));
    #[unroll]
    for j in 0..comptime!(b.rounds(per_cube)) {
        let t = min(unit + comptime!(j * b.units()), per_cube - 1);
        let g = t / comptime!(b.outputs());
        let step = (t % comptime!(b.outputs())) * comptime!(b.streams());
        let value = add_up(&red, step * planes as usize + g * split, comptime!(b.config.split)) * gain;
        if comptime!(b.epilogue == Epilogue::GeluMul) {
            let at = (step + 1usize) * planes as usize + g * split;
            values[j] = gelu_tanh(value) * (add_up(&red, at, comptime!(b.config.split)) * gain);
        } else if comptime!(b.epilogue == Epilogue::GeluScale) {
            values[j] = gelu_tanh(value) * factors[j];
        } else if comptime!(b.epilogue == Epilogue::SoftcapArgmax) {
            // A broken value stays visible: the cap would hide an infinity.
            values[j] = select(is_not_finite(value), value, softcap(value, cap));
        } else {
            values[j] = value;
        }
    }
    #[comptime]
    if let ComptimeOption::Some(y) = y {
        #[unroll]
        for j in 0..comptime!(b.rounds(per_cube)) {
            let t = unit + comptime!(j * b.units());
            if t < per_cube && cube_first + t < rows {
                y[cube_first + t] = values[j];
            }
        }
    }
    #[comptime]
    if let ComptimeOption::Some(partials) = partials {
        store_largest(&values, cube_first, rows, partials, b);
    }
}

/// The largest of the cube's values (the lowest row of equals) as `[bits, row]`; the row is `u32::MAX` if any value was
/// NaN or infinite.
#[cube]
fn store_largest(values: &Array<f32>, cube_first: usize, rows: usize, partials: &mut [u32], #[comptime] b: Blueprint) {
    let unit = UNIT_POS as usize;
    let per_cube = comptime!(b.groups() * b.outputs());
    let candidates = comptime!(b.units().min(per_cube));
    let mut best = f32::reinterpret(MINUS_INFINITY);
    let mut best_row = u32::cast_from(NO_ROW);
    #[unroll]
    for j in 0..comptime!(b.rounds(per_cube)) {
        let t = unit + comptime!(j * b.units());
        let row = cube_first + t;
        if t < per_cube && row < rows {
            if is_not_finite(values[j]) {
                best = f32::reinterpret(PLUS_INFINITY);
                best_row = u32::cast_from(NO_ROW);
            } else if values[j] > best {
                // A unit's rows only grow, so `>` keeps the lowest of equals.
                best = values[j];
                best_row = row as u32;
            }
        }
    }
    let mut found = Shared::<[f32]>::new_slice(comptime!(b.units()));
    let mut found_row = Shared::<[u32]>::new_slice(comptime!(b.units()));
    found[unit] = best;
    found_row[unit] = best_row;
    sync_cube();
    #[unroll]
    for level in 0..comptime!(candidates.next_power_of_two().ilog2()) {
        let left = comptime!(candidates.div_ceil(1 << level));
        let half = comptime!(left.div_ceil(2));
        if unit + half < left {
            let other = found[unit + half];
            let other_row = found_row[unit + half];
            if other > found[unit] || (other == found[unit] && other_row < found_row[unit]) {
                found[unit] = other;
                found_row[unit] = other_row;
            }
        }
        sync_cube();
    }
    if unit == 0 {
        partials[CUBE_POS_X as usize * 2] = u32::reinterpret(found[0]);
        partials[CUBE_POS_X as usize * 2 + 1] = found_row[0];
    }
}
