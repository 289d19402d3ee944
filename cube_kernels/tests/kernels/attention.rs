//! Decode attention against its reference, on every device of this build.

mod rig;

use cube_kernels::attention::{Attention, AttentionSpec, KvType, RopeTable, Tuning};
use cube_kernels::{Buffer, Caps};
use cubecl::client::Client;

use crate::support::{each_device, is_software};
use rig::{Rig, spec};

/// Each spec over so many tokens; on software devices, which need 10 s to compile one kernel, the first `on_software`.
fn sweeps(specs: &[(AttentionSpec, usize)], on_software: usize) {
    each_device(|client, caps| {
        let count = if is_software(client) { on_software } else { specs.len() };
        specs.iter().take(count).for_each(|(spec, last)| sweep_on(client, caps, *spec, *last));
    });
}

fn sweep_on(client: &Client, caps: Caps, spec: AttentionSpec, last: usize) {
    // The long sweeps follow the device's own route; the shorter ones take both.
    if last > 1000 && caps != Caps::of(client) {
        return;
    }
    let started = std::time::Instant::now();
    let mut rig = Rig::new(client, caps, spec);
    let worst = (0..last).map(|position| rig.step(position)).fold(0f64, f64::max);
    println!("{spec:?}: worst relative error {worst:.1e}, {:.1} s", started.elapsed().as_secs_f64());
}

#[test]
fn every_length_up_to_1100_matches_reference() {
    let specs = [
        spec(2, 1, 256, 1100, KvType::Bf16),
        spec(2, 1, 512, 1100, KvType::Bf16),
        spec(1, 1, 256, 1100, KvType::F32),
        spec(1, 1, 512, 1100, KvType::F32),
    ];
    sweeps(&specs.map(|spec| (spec, 1100)), 2);
}

#[test]
fn eight_heads_in_a_window_of_512_match_reference_across_two_wraps() {
    each_device(|client, caps| {
        if is_software(client) && caps != Caps::of(client) {
            return;
        }
        let mut rig = Rig::new(client, caps, spec(8, 1, 256, 512, KvType::Bf16));
        for position in 0..1100 {
            // All tokens are written; the expensive comparison with 8 heads happens at the edges and now and then.
            if position % 37 == 0 || [1, 2, 510, 511, 512, 513, 1023, 1024, 1025].contains(&position) {
                rig.step(position);
            } else {
                rig.append(position);
            }
        }
    });
}

#[test]
fn smallest_ring_matches_reference_on_every_device() {
    each_device(|client, caps| sweep_on(client, caps, spec(4, 1, 16, 8, KvType::F32), 53));
}

#[test]
fn small_rings_match_reference_over_many_wraps() {
    let specs = [
        (2, 2, 512, 33, KvType::Bf16),
        (4, 2, 32, 16, KvType::Bf16),
        (8, 2, 64, 24, KvType::Bf16),
        (4, 1, 128, 40, KvType::F32),
        (2, 1, 256, 1, KvType::Bf16),
    ];
    sweeps(&specs.map(|(heads, kv_heads, d, window, kv)| (spec(heads, kv_heads, d, window, kv), 6 * window + 5)), 1);
}

#[test]
fn every_group_size_matches_reference() {
    let groups = [(3, 1), (8, 2), (1, 1), (2, 1), (4, 1), (5, 1), (6, 1), (7, 1), (8, 1), (16, 8), (16, 1), (12, 1)];
    let specs =
        groups.map(|(heads, kv_heads)| [KvType::Bf16, KvType::F32].map(|kv| (spec(heads, kv_heads, 64, 50, kv), 60)));
    sweeps(&specs.concat(), 1);
}

#[test]
fn shapes_of_the_family_match_reference() {
    let specs = [
        (8, 1, 512, KvType::Bf16),
        (8, 2, 256, KvType::F32),
        (8, 2, 512, KvType::Bf16),
        (16, 8, 256, KvType::Bf16),
        (16, 1, 512, KvType::Bf16),
        (32, 16, 256, KvType::Bf16),
        (32, 4, 512, KvType::Bf16),
    ];
    sweeps(&specs.map(|(heads, kv_heads, d, kv)| (spec(heads, kv_heads, d, 70, kv), 76)), 0);
}

#[test]
fn raw_key_as_value_matches_reference() {
    each_device(|client, caps| {
        let kinds = if is_software(client) { &[KvType::Bf16][..] } else { &[KvType::Bf16, KvType::F32] };
        for kv in kinds.iter().copied() {
            let spec = spec(8, 2, 128, 64, kv);
            let mut rig = Rig::with(client, spec, Attention::new(spec, &caps).unwrap(), true);
            for position in 0..80 {
                rig.step(position);
            }
        }
    });
}

#[test]
fn reader_of_another_layers_cache_sees_the_new_token() {
    each_device(|client, caps| {
        for (d, slots) in if is_software(client) { &[(64, 48)][..] } else { &[(256, 48), (512, 200)] }.iter().copied() {
            let owner = spec(8, 1, d, slots, KvType::Bf16);
            let mut donor = Rig::new(client, caps, owner);
            let mut reader = Rig::new(client, caps, AttentionSpec { owns_kv: false, ..owner });
            reader.caches = donor.caches.clone();
            for position in 0..110 {
                donor.step(position);
                reader.reference = donor.reference.clone();
                reader.step(position);
            }
        }
    });
}

#[test]
fn every_tuning_matches_reference() {
    each_device(|client, caps| {
        let mut tried = 0;
        for kv in [KvType::Bf16, KvType::F32] {
            let spec = spec(4, 1, 256, 150, kv);
            let base = Tuning::of(&spec, &caps);
            let mut tunings = vec![];
            for group in [1, 2, 4] {
                for lanes in [8, 32] {
                    for (value_dims, tile, min_keys) in [(2, 32, 16), (4, 16, 8), (4, 64, 64)] {
                        tunings.push(Tuning { group, lanes, value_dims, tile, min_keys, splits: 5, ..base });
                    }
                }
            }
            tunings.push(Tuning { unroll: !base.unroll, ..base });
            tunings.push(Tuning { units: 256, ..base });
            tunings.push(Tuning { merge_dims: 256, ..base });
            tunings.push(Tuning { merge_dims: 16, splits: 1, ..base });
            if is_software(client) {
                tunings.truncate(1);
            }
            for tuning in tunings {
                let Ok(layer) = Attention::with_tuning(spec, tuning, &caps) else { continue };
                tried += 1;
                let mut rig = Rig::with(client, spec, layer, false);
                // Every token is written, a few are compared.
                for position in 0..170 {
                    if [0, 1, 40, 149, 150, 169].contains(&position) {
                        rig.step(position);
                    } else {
                        rig.append(position);
                    }
                }
            }
        }
        println!("{tried} tunings");
        assert!(tried > if is_software(client) { 0 } else { 20 });
    });
}

#[test]
fn captured_graph_gives_the_bits_of_eager_launches() {
    each_device(|client, caps| {
        let specs =
            [spec(4, 1, 64, 50, KvType::Bf16), spec(8, 1, 256, 40, KvType::Bf16), spec(8, 1, 512, 100, KvType::F32)];
        for spec in specs.into_iter().take(if is_software(client) { 1 } else { 3 }) {
            let mut eager = Rig::new(client, caps, spec);
            let mut replayed = Rig::new(client, caps, spec);
            client.graph_prepare().unwrap();
            replayed.write_token(0);
            replayed.launch();
            replayed.read();
            client.start_capture().unwrap();
            replayed.launch();
            let graph = client.stop_capture().unwrap();
            eager.write_token(0);
            for position in 0..100 {
                let a = eager.write_token(position);
                let b = replayed.write_token(position);
                assert_eq!(a, b);
                eager.launch();
                // SAFETY: every buffer of the graph is alive in `replayed`.
                unsafe { graph.replay() }.unwrap();
                let (a, b) = (eager.read(), replayed.read());
                assert!(a.iter().zip(&b).all(|(a, b)| a.to_bits() == b.to_bits()), "{spec:?} at {position}");
            }
        }
    });
}

#[test]
fn huge_scores_stay_finite() {
    each_device(|client, caps| {
        let spec = spec(4, 1, 64, 50, KvType::Bf16);
        let mut rig = Rig::new(client, caps, spec);
        rig.norms_host[0] = rig.norms_host[0].iter().map(|w| w * 3e3).collect();
        rig.norms[0] = Buffer::from_slice(client, &rig.norms_host[0]);
        for position in 0..100 {
            rig.write_token(position);
            rig.launch();
            assert!(rig.read().iter().all(|x| x.is_finite()), "position {position}");
        }
    });
}

#[test]
fn rope_table_matches_f64_up_to_position_262143() {
    each_device(|client, _| {
        let inv_freq: Vec<f32> =
            (0..128).map(|i| 10_000f64.powf(-2.0 * f64::from(i) / 256.0) as f32).chain([1.0, 0.25, 0.0, 0.0]).collect();
        let table = RopeTable::new(Buffer::from_slice(client, &inv_freq), 128).unwrap();
        let out = Buffer::empty(client, table.out_len());
        for position in [0u32, 1, 2, 3, 100, 511, 8191, 65_537, 131_071, 200_003, 262_143] {
            let state = Buffer::from_slice(client, &[position]);
            table.launch(client, Caps::of(client), &state, &out).unwrap();
            let got = out.read_blocking(client).unwrap();
            for (i, f) in inv_freq.iter().enumerate() {
                let (at, width) = if i < 128 { (i, 128) } else { (128 + i, 4) };
                let (sin, cos) = f64::from(position as f32 * f).sin_cos();
                let error = (f64::from(got[at]) - cos).abs().max((f64::from(got[at + width]) - sin).abs());
                assert!(error < 2e-7, "position {position}, frequency {i}: {error:e}");
            }
        }
    });
}

#[test]
fn shapes_that_do_not_fit_are_refused_by_name() {
    each_device(|client, caps| {
        let refused = |spec: AttentionSpec, part: &str| {
            let error = Attention::new(spec, &caps).unwrap_err().to_string();
            assert!(error.contains(part), "{error}");
        };
        refused(spec(8, 3, 256, 16, KvType::F32), "8 query heads");
        refused(spec(8, 1, 96, 16, KvType::F32), "head_dim is 96");
        refused(spec(8, 1, 1024, 16, KvType::F32), "head_dim is 1024");
        refused(spec(8, 1, 256, 0, KvType::F32), "0 cache slots");
        let tiny = Caps { max_units: 2, lanes: 1, plane_ops: false, ..caps };
        assert!(Attention::new(spec(8, 1, 256, 16, KvType::F32), &tiny).is_err());
        let mut rig = Rig::new(client, caps, spec(2, 1, 64, 16, KvType::F32));
        rig.places[0] = 6;
        let io = |rig: &Rig| rig.layer.launch(&rig.client, &rig.io()).unwrap_err().to_string();
        assert!(io(&rig).contains("q begins at 6"));
        rig.places[0] = 4;
        rig.out = Buffer::empty(client, 64);
        assert!(io(&rig).contains("out has 64"));
    });
}
