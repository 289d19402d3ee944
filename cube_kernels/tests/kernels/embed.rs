use cube_kernels::embed::{Row, embed, embed_reference};
use cube_kernels::{Buffer, state};

use crate::support::{Numbers, each_device, unwritten};

fn state_with(client: &cubecl::client::Client, token: u32) -> Buffer<u32> {
    let mut words = [0u32; state::LEN];
    words[state::TOKEN] = token;
    Buffer::from_slice(client, &words)
}

#[test]
fn embed_reads_the_row_of_the_token_from_any_part() {
    each_device(|client, caps| {
        for (width, rows, rows_per_part) in [(2, 3, 3), (96, 7, 3), (1536, 40, 16), (8960, 5, 2)] {
            let table = Numbers::new(width as u64).bf16s(rows * width);
            let parts: Vec<_> = table.chunks(rows_per_part * width).map(|c| Buffer::from_slice(client, c)).collect();
            let parts: Vec<_> = parts.iter().collect();
            for token in [0, rows / 2, rows - 1] {
                let out = unwritten(client, width);
                let words = state_with(client, token as u32);
                embed(client, caps, Row::Table { parts: &parts, rows_per_part }, &words, &out, 39.191_837).unwrap();
                assert_eq!(out.read_blocking(client).unwrap(), embed_reference(&table, width, token, 39.191_837));
            }
        }
    });
}

#[test]
fn embed_reads_an_uploaded_row() {
    each_device(|client, caps| {
        let row = Numbers::new(3).bf16s(160);
        let words: Vec<u32> = row.chunks(2).map(|p| p[0].to_bits() as u32 | (p[1].to_bits() as u32) << 16).collect();
        let (uploaded, out) = (Buffer::from_slice(client, &words), unwritten(client, 160));
        embed(client, caps, Row::Uploaded(&uploaded), &state_with(client, 77), &out, 16.0).unwrap();
        assert_eq!(out.read_blocking(client).unwrap(), embed_reference(&row, 160, 0, 16.0));
    });
}

#[test]
fn embed_refuses_parts_of_other_shapes() {
    each_device(|client, caps| {
        let (table, out) = (Buffer::from_slice(client, &Numbers::new(1).bf16s(96)), unwritten(client, 32));
        let row = Row::Table { parts: &[&table, &table], rows_per_part: 4 };
        let error = embed(client, caps, row, &state_with(client, 0), &out, 1.0).unwrap_err();
        assert!(error.to_string().contains("part 0 has 96 elements"), "{error}");
    });
}
