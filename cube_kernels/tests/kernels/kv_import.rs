//! Imported keys against their source, in all four pairs of formats.

use cube_kernels::Buffer;
use cube_kernels::attention::KvType;
use cube_kernels::kv_import::{KvImport, kv_import, kv_import_reference};
use half::bf16;

use crate::support::each_device;

fn packed(values: &[f32], kv: KvType) -> Vec<u32> {
    match kv {
        KvType::F32 => values.iter().map(|x| x.to_bits()).collect(),
        KvType::Bf16 => {
            let bits = |x: f32| u32::from(bf16::from_f32(x).to_bits());
            values.chunks(2).map(|pair| bits(pair[0]) | bits(pair[1]) << 16).collect()
        }
    }
}

#[test]
fn imported_rows_equal_the_reference_in_every_format() {
    each_device(|client, caps| {
        for (kv_heads, tokens, slots, head_dim) in [(1, 1, 1, 2), (1, 5, 8, 16), (2, 8, 8, 32), (4, 37, 100, 256)] {
            let values: Vec<f32> =
                (0..kv_heads * tokens * head_dim).map(|i| ((i * 37 % 1001) as f32 - 500.0) / 77.0).collect();
            for (from, to) in
                [KvType::F32, KvType::Bf16].into_iter().flat_map(|from| [(from, KvType::F32), (from, KvType::Bf16)])
            {
                let seen: Vec<f32> = match from {
                    KvType::F32 => values.clone(),
                    KvType::Bf16 => values.iter().map(|x| bf16::from_f32(*x).to_f32()).collect(),
                };
                let mut want = vec![7.0; kv_heads * slots * head_dim];
                let cache = Buffer::from_slice(client, &packed(&want, to));
                kv_import_reference(&seen, &mut want, kv_heads, head_dim, slots);
                let op = KvImport { kv_heads, head_dim, tokens, slots, from, to };
                let source = Buffer::from_slice(client, &packed(&values, from));
                kv_import(client, caps, &op, &source, &cache).expect("a supported shape");
                let got = cache.read_blocking(client).expect("the kernel ran");
                assert_eq!(got, packed(&want, to), "{op:?}");
            }
        }
    });
}

#[test]
fn impossible_imports_are_rejected() {
    each_device(|client, caps| {
        let good = KvImport { kv_heads: 1, head_dim: 4, tokens: 2, slots: 4, from: KvType::F32, to: KvType::F32 };
        let words = |len: usize| Buffer::from_slice(client, &vec![0u32; len]);
        assert!(kv_import(client, caps, &good, &words(8), &words(16)).is_ok());
        for op in
            [KvImport { tokens: 5, ..good }, KvImport { head_dim: 3, ..good }, KvImport { to: KvType::Bf16, ..good }]
        {
            assert!(kv_import(client, caps, &op, &words(8), &words(16)).is_err(), "{op:?}");
        }
    });
}
