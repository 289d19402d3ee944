use cube_kernels::embed::Row;
use cube_kernels::ple_combine::{PleCombine, ple_combine, ple_combine_reference};
use cube_kernels::{Buffer, state};

use crate::support::{Numbers, assert_close, each_device, unwritten};

#[test]
fn ple_combine_matches_reference() {
    each_device(|client, caps| {
        for (segments, width) in [(1, 2), (3, 16), (2, 90), (35, 256)] {
            let mut numbers = Numbers::new(width as u64);
            let all = segments * width;
            let (context, weight) = (numbers.f32s(all), numbers.f32s(width));
            let table = numbers.bf16s(3 * all);
            let scales = (1536f32.powf(-0.5), 16.0, 0.5f32.sqrt());
            let want = ple_combine_reference(&context, &weight, &table[all..2 * all], scales, 1e-6);
            let packed: Vec<u32> =
                table[all..2 * all].chunks(2).map(|p| p[0].to_bits() as u32 | (p[1].to_bits() as u32) << 16).collect();
            let (uploaded, table) = (Buffer::from_slice(client, &packed), Buffer::from_slice(client, &table));
            let mut words = [0u32; state::LEN];
            words[state::TOKEN] = 1;
            let words = Buffer::from_slice(client, &words);
            let (context, weight) = (Buffer::from_slice(client, &context), Buffer::from_slice(client, &weight));
            for row in [Row::Table { parts: &[&table], rows_per_part: 3 }, Row::Uploaded(&uploaded)] {
                let out = unwritten(client, all);
                let (context_scale, row_scale, scale) = scales;
                let op = PleCombine {
                    context: &context,
                    weight: &weight,
                    row,
                    state: &words,
                    out: &out,
                    context_scale,
                    row_scale,
                    scale,
                    eps: 1e-6,
                };
                ple_combine(client, caps, &op).unwrap();
                assert_close("ple", &out.read_blocking(client).unwrap(), &want, 2e-6);
            }
        }
    });
}
