use cube_kernels::math::{cube_sum, exp, gelu_tanh, hi, lanes_scratch, lanes_sum, lo, pack, softcap, tanh};
use cube_kernels::{Buffer, Caps};
use cubecl::prelude::*;
use half::bf16;

use crate::support::each_device;

const UNITS: u32 = 64;

#[cube(launch_unchecked)]
fn map_kernel(x: &[f32], y: &mut [f32], #[comptime] which: u32) {
    let i = ABSOLUTE_POS;
    if i < x.len() {
        if comptime!(which == 0) {
            y[i] = exp(x[i]);
        } else if comptime!(which == 1) {
            y[i] = tanh(x[i]);
        } else if comptime!(which == 2) {
            y[i] = gelu_tanh(x[i]);
        } else {
            y[i] = softcap(x[i], 30.0f32);
        }
    }
}

fn map(client: &cubecl::client::Client, x: &[f32], which: u32) -> Vec<f32> {
    let (input, output) = (Buffer::from_slice(client, x), Buffer::<f32>::empty(client, x.len()));
    let units = UNITS.min(Caps::of(client).max_units);
    unsafe {
        map_kernel::launch_unchecked(
            client,
            CubeCount::Static((x.len() as u32).div_ceil(units), 1, 1),
            CubeDim::new_1d(units),
            BufferArg::from_raw_parts(input.handle().clone(), x.len()),
            BufferArg::from_raw_parts(output.handle().clone(), x.len()),
            which,
        );
    }
    output.read_blocking(client).unwrap()
}

#[test]
fn functions_match_f64_and_keep_nan() {
    each_device(|client, _| {
        let mut x: Vec<f32> = (-4000..=4000).map(|i| i as f32 * 0.02).collect();
        x.extend((-400..=400).map(|i| i as f32 * 0.002));
        let exact: [fn(f64) -> f64; 4] =
            [f64::exp, f64::tanh, cube_kernels::gemv::gelu_tanh_reference, |x| 30.0 * (x / 30.0).tanh()];
        for (which, exact) in exact.into_iter().enumerate() {
            for (&x, y) in x.iter().zip(map(client, &x, which as u32)) {
                let want = exact(x as f64);
                let error = (y as f64 - want).abs();
                // Drivers may reassociate the range reduction of exp: that costs up to 6e-8 per unit of x.
                assert!(
                    error <= (1e-6 + 1e-7 * x.abs() as f64) * want.abs() + 1e-10,
                    "function {which} of {x}: {y}, expected {want}"
                );
            }
            let special = map(client, &[f32::NAN, f32::INFINITY, f32::NEG_INFINITY], which as u32);
            assert!(special[0].is_nan(), "function {which} of NaN: {}", special[0]);
        }
        assert_eq!(map(client, &[f32::NEG_INFINITY], 0), [0.0]);
        assert_eq!(map(client, &[f32::INFINITY, f32::NEG_INFINITY], 1), [1.0, -1.0]);
    });
}

#[cube(launch_unchecked)]
fn pack_kernel(x: &[f32], pairs: &mut [u32], back: &mut [f32]) {
    let i = ABSOLUTE_POS;
    if i < pairs.len() {
        let pair = pack(x[2 * i], x[2 * i + 1]);
        pairs[i] = pair;
        back[2 * i] = lo(pair);
        back[2 * i + 1] = hi(pair);
    }
}

#[test]
fn pack_rounds_to_nearest_even_as_half_does() {
    each_device(|client, caps| {
        let mut x: Vec<f32> =
            (0..8190u32).map(|i| f32::from_bits(0x3f80_0000 + i * 0x1000 + (i & 3) * 0x7fff)).collect();
        x.extend([f32::INFINITY, -0.0]);
        let input = Buffer::from_slice(client, &x);
        let (pairs, back) = (Buffer::<u32>::empty(client, x.len() / 2), Buffer::<f32>::empty(client, x.len()));
        let units = UNITS.min(caps.max_units);
        unsafe {
            pack_kernel::launch_unchecked(
                client,
                CubeCount::Static((x.len() as u32 / 2).div_ceil(units), 1, 1),
                CubeDim::new_1d(units),
                BufferArg::from_raw_parts(input.handle().clone(), x.len()),
                BufferArg::from_raw_parts(pairs.handle().clone(), x.len() / 2),
                BufferArg::from_raw_parts(back.handle().clone(), x.len()),
            );
        }
        let want: Vec<f32> = x.iter().map(|&v| bf16::from_f32(v).to_f32()).collect();
        let got = back.read_blocking(client).unwrap();
        for i in 0..x.len() {
            assert!(
                got[i].to_bits() == want[i].to_bits() || (got[i].is_nan() && want[i].is_nan()),
                "{} {}",
                x[i],
                got[i]
            );
        }
    });
}

#[cube(launch_unchecked)]
fn sums_kernel(x: &[f32], lanes: &mut [f32], cube: &mut [f32], #[comptime] planes: u32, #[comptime] caps: Caps) {
    let unit = UNIT_POS as usize;
    let mut scratch = lanes_scratch(comptime!(planes * caps.lanes), caps);
    let mut sums = Shared::<[f32]>::new_slice(comptime!(planes as usize));
    lanes[unit] = lanes_sum(x[unit], &mut scratch, caps);
    cube[unit] = cube_sum(x[unit], &mut sums, &mut scratch, planes, caps);
}

#[test]
fn sums_reach_every_unit() {
    each_device(|client, caps| {
        for planes in [1, 2, 3].into_iter().filter(|&p| p <= caps.max_planes()) {
            let units = (planes * caps.lanes) as usize;
            let x: Vec<f32> = (0..units).map(|i| (i * i) as f32).collect();
            let input = Buffer::from_slice(client, &x);
            let (lanes, cube) = (Buffer::<f32>::empty(client, units), Buffer::<f32>::empty(client, units));
            unsafe {
                sums_kernel::launch_unchecked(
                    client,
                    CubeCount::Static(1, 1, 1),
                    CubeDim::new_2d(caps.lanes, planes),
                    BufferArg::from_raw_parts(input.handle().clone(), units),
                    BufferArg::from_raw_parts(lanes.handle().clone(), units),
                    BufferArg::from_raw_parts(cube.handle().clone(), units),
                    planes,
                    caps,
                );
            }
            let width = caps.lanes as usize;
            let want: Vec<f32> = (0..units).map(|i| x[i / width * width..][..width].iter().sum()).collect();
            assert_eq!(lanes.read_blocking(client).unwrap(), want);
            assert_eq!(cube.read_blocking(client).unwrap(), vec![x.iter().sum::<f32>(); units]);
        }
    });
}
