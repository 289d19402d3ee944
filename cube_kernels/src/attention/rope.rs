//! cos and sin of the current position for every rotary frequency of the model: one launch per token, not one per layer.

use cubecl::client::Client;
use cubecl::prelude::*;

use crate::overlap::wait_for_previous;
use crate::state::POSITION;
use crate::{Buffer, Caps, Rejected};

const KERNEL: &str = "rope_table";
const UNITS: u32 = 64;
// 2/π in three 14-bit digits: their products with an integer below 2^18 fit 32 bits.
const QUADRANTS: [u32; 3] = [10430, 6198, 14649];
const HALF_PI: f32 = 1.570_796_4;
/// What [`HALF_PI`] is above π/2.
const HALF_PI_EXCESS: f32 = 4.371_139e-8;

/// cos and sin of an angle from 0 to 2^18, within 2e-7.
///
/// The whole part of the angle is reduced in integers: drivers merge the steps of a reduction in floats, which loses its
/// accuracy (Mesa does; the error grows to 1e-5 at 65,537).
#[cube]
fn cos_sin(angle: f32) -> (f32, f32) {
    let whole = angle.floor();
    let n = u32::cast_from(whole);
    // Quarter turns of the whole part, modulo 16, in units of 2^-28.
    let turns = ((n * comptime!(QUADRANTS[0])) << 14u32)
        + n * comptime!(QUADRANTS[1])
        + ((n * comptime!(QUADRANTS[2])) >> 14u32);
    let nearest = (turns + 0x0800_0000u32) >> 28u32;
    let rest = i32::reinterpret(turns - (nearest << 28u32));
    let sum = f32::cast_from(rest) * comptime!(HALF_PI / 268_435_456.0) + (angle - whole);
    let past = sum > core::f32::consts::FRAC_PI_4;
    let r = select(past, (sum - HALF_PI) + HALF_PI_EXCESS, sum);
    let quadrant = (nearest + select(past, 1u32, 0u32)) % 4u32;
    let z = r * r;
    let mut s = fma(-1.951_529_6e-4f32, z, 8.332_161e-3f32);
    s = fma(s, z, -1.666_665_5e-1f32);
    let sin = fma(s * z, r, r);
    let mut c = fma(2.443_315_7e-5f32, z, -1.388_731_6e-3f32);
    c = fma(c, z, 4.166_664_6e-2f32);
    let cos = fma(c * z, z, fma(-0.5f32, z, 1.0f32));
    let odd = quadrant % 2u32 == 1u32;
    let x = select(odd, sin, cos);
    let y = select(odd, cos, sin);
    (select(quadrant == 1u32 || quadrant == 2u32, -x, x), select(quadrant >= 2u32, -y, y))
}

/// Frequency i of the first table goes to `out[i]` and `out[first + i]`; the second table follows in the same way.
#[cube(launch_unchecked)]
fn rope_table_kernel(
    inv_freq: &[f32],
    state: &[u32],
    out: &mut [f32],
    first: u32,
    all: u32,
    #[comptime] overlaps: bool,
) {
    wait_for_previous(overlaps);
    let i = ABSOLUTE_POS as u32;
    if i < all {
        // max keeps the compiler from fusing the product into the reduction: the angle is rounded to f32 first.
        let (cos, sin) = cos_sin(max(f32::cast_from(state[POSITION]) * inv_freq[i as usize], 0.0f32));
        let second = i >= first;
        let at = select(second, first + i, i);
        let width = select(second, all - first, first);
        out[at as usize] = cos;
        out[(at + width) as usize] = sin;
    }
}

/// The rotary angles of one step, for the (one or two) frequency tables of a model.
///
/// `inv_freq` holds the D/2 frequencies of the first kind of layer, then those of the second. The output is
/// `[cos | sin]` of the first, then `[cos | sin]` of the second: [`RopeTable::second_at`] is where that begins.
/// A frequency of 0 leaves its pair of dimensions as it is. The angle is position · frequency in f32, as the reference has it.
#[derive(Clone, Debug)]
pub struct RopeTable {
    inv_freq: Buffer<f32>,
    first: usize,
}

impl RopeTable {
    /// Tables of `first` and `inv_freq.len() - first` frequencies.
    ///
    /// # Errors
    /// [`Rejected`] unless both are multiples of 4 (a head is read 4 dimensions at a time).
    pub fn new(inv_freq: Buffer<f32>, first: usize) -> Result<Self, Rejected> {
        let len = inv_freq.len();
        let ok = first > 0 && first <= len && first.is_multiple_of(4) && len.is_multiple_of(4);
        Rejected::unless(ok, KERNEL, || {
            format!("{len} frequencies, the first table {first}: expected multiples of 4")
        })?;
        Ok(Self { inv_freq, first })
    }

    /// Elements of the output.
    pub fn out_len(&self) -> usize {
        2 * self.inv_freq.len()
    }

    /// Element of the output at which the second table begins.
    pub fn second_at(&self) -> usize {
        2 * self.first
    }

    /// Computes the table of the position in `state` (see [`crate::state`]).
    ///
    /// # Errors
    /// [`Rejected`] if a buffer is too small.
    pub fn launch(&self, client: &Client, caps: Caps, state: &Buffer<u32>, out: &Buffer<f32>) -> Result<(), Rejected> {
        let need = self.out_len();
        Rejected::unless(out.len() >= need, KERNEL, || {
            format!("the output has {} elements, expected {need}", out.len())
        })?;
        Rejected::unless(state.len() > POSITION, KERNEL, || "the state buffer is empty".into())?;
        let all = self.inv_freq.len() as u32;
        // SAFETY: the checks above; the kernel stays below `all`.
        unsafe {
            rope_table_kernel::launch_unchecked(
                client,
                CubeCount::Static(all.div_ceil(UNITS), 1, 1),
                CubeDim::new_1d(UNITS),
                self.inv_freq.arg(),
                state.arg(),
                out.arg(),
                self.first as u32,
                all,
                caps.overlaps,
            );
        }
        Ok(())
    }
}
