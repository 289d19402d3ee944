//! The fused step against the plain path and the reference dumps, on every CubeCL device of the build.

use gemma_burn::cache::KvCache;
use gemma_burn::engine::{ComputePath, EngineOptions};
use gemma_burn::fused::{FusedOptions, FusedStep, RING};
use gemma_burn::model::{Output, ids_tensor};
use gemma_burn::parity::{Reference, Subject, Tolerance, argmax, run};
use gemma_burn::sampler::Sampling;
use gemma_burn::weights::{LoadOptions, PerLayerPlacement, Storage, load};
use gemma_burn::{Device, Dtype, Engine, Error, Gemma, Request};

use crate::cubecl_devices::each_device;
use crate::support::{FIXTURES, cpu, fixture, max_difference, model, prompt, rms_ratio, rows, uncached};

/// Largest difference of logits (up to 18) computed in f32 in two orders of adding.
const CLOSE: f32 = 1e-3;
/// Largest relative RMS of logits after a prompt that Burn took in: on CUDA it multiplies f32 as tf32 (2e-3).
const CLOSE_AFTER_BURN: f64 = 1e-2;

fn weights(name: &str, device: &Device, per_layer: PerLayerPlacement) -> Gemma {
    let options = LoadOptions { dtype: Some(Dtype::F32), storage: Storage::AsFile, per_layer, ..Default::default() };
    load(fixture(name), device, &options).expect("the fixture loads").0
}

fn step(model: &Gemma, context: usize, kv: Dtype, graph: bool) -> FusedStep {
    FusedStep::new(model, &FusedOptions { context, kv, end_ids: vec![], graph }).expect("the kernels serve the fixture")
}

fn next(step: &mut FusedStep, id: u32) -> Vec<f32> {
    Subject::step(step, id).expect("a step")
}

#[test]
fn logits_are_within_the_tolerances_of_the_dumps() {
    each_device(|device| {
        for name in FIXTURES {
            let model = weights(name, &device, PerLayerPlacement::Device);
            let reference = Reference::open(&fixture(name).join("reference")).expect("a dump");
            for kv in [Dtype::F32, Dtype::Bf16] {
                let mut subject = step(&model, 128, kv, true);
                let report = run(&mut subject, &reference, &Tolerance::fused(kv)).expect("it runs");
                assert!(report.pass, "{name}, {kv} keys: {:?} {:?}", report.first_divergent, report.summary);
                assert!(report.prompts.iter().all(|p| p.tensors.iter().any(|t| t.name == "greedy_logits")));
            }
        }
    });
}

#[test]
fn six_hundred_steps_across_many_windows_match_the_plain_path() {
    each_device(|device| {
        for name in FIXTURES {
            let tokens = prompt(640, 11);
            let want = uncached(&model(name), &tokens);
            let model = weights(name, &device, PerLayerPlacement::Device);
            let mut fused = step(&model, 640, Dtype::F32, true);
            fused.prefill(&tokens[..40]).expect("prefill");
            let first = fused.read_logits_blocking().expect("logits");
            assert!(max_difference(&first, &want[39]) < CLOSE, "{name}: the prompt");
            for (at, token) in tokens.iter().enumerate().skip(40) {
                let difference = max_difference(&next(&mut fused, *token), &want[at]);
                assert!(difference < CLOSE, "{name}, token {at}: {difference}");
            }
        }
    });
}

#[test]
fn keys_kept_in_bf16_match_a_plain_path_that_keeps_the_same() {
    each_device(|device| {
        for name in FIXTURES {
            let plain = model(name);
            let tokens = prompt(640, 21);
            let mut cache = KvCache::kept_in(plain.config(), Dtype::Bf16);
            let want = rows(plain.forward(ids_tensor(&tokens, &cpu()), &mut cache, Output::All));
            let model = weights(name, &device, PerLayerPlacement::Device);
            let mut fused = step(&model, 640, Dtype::Bf16, true);
            let got: Vec<Vec<f32>> = tokens.iter().map(|&token| next(&mut fused, token)).collect();
            let ratio = rms_ratio(&got.concat(), &want.concat());
            assert!(ratio <= 5e-3, "{name}: {ratio}");
        }
    });
}

#[test]
fn replayed_graphs_give_the_bits_of_single_launches() {
    each_device(|device| {
        for name in FIXTURES {
            let model = weights(name, &device, PerLayerPlacement::Device);
            let (mut eager, mut captured) = (step(&model, 64, Dtype::Bf16, false), step(&model, 64, Dtype::Bf16, true));
            assert!(captured.is_captured() && !eager.is_captured());
            for token in prompt(30, 12) {
                assert_eq!(next(&mut eager, token), next(&mut captured, token), "{name}");
            }
        }
    });
}

#[test]
fn tokens_chosen_on_the_device_are_those_of_the_host() {
    each_device(|device| {
        let model = weights("tiny-e2b", &device, PerLayerPlacement::Device);
        let tokens = prompt(9, 13);
        let mut by_host = step(&model, 128, Dtype::F32, true);
        by_host.prefill(&tokens).expect("prefill");
        let mut want = vec![argmax(&by_host.read_logits_blocking().expect("logits")) as u32];
        while want.len() < 50 {
            let logits = next(&mut by_host, *want.last().expect("a token"));
            want.push(argmax(&logits) as u32);
        }
        let mut ahead = step(&model, 128, Dtype::F32, true);
        ahead.prefill(&tokens).expect("prefill");
        ahead.run_ahead(49).expect("room");
        assert_eq!(ahead.read_tokens_blocking().expect("tokens"), want);
        assert_eq!(ahead.position(), tokens.len() + 49);

        let end = want[20];
        let stops_at = want.iter().position(|&id| id == end).expect("it is there");
        let options = FusedOptions { context: 128, kv: Dtype::F32, end_ids: vec![end], graph: true };
        let mut halting = FusedStep::new(&model, &options).expect("the kernels serve the fixture");
        halting.prefill(&tokens).expect("prefill");
        halting.run_ahead(49).expect("room");
        assert_eq!(halting.read_tokens_blocking().expect("tokens"), want[..=stops_at]);
        assert_eq!(halting.position(), tokens.len() + stops_at);
        let continued = next(&mut halting, end);
        assert_eq!(argmax(&continued) as u32, want[stops_at + 1], "what ran on changed nothing");
    });
}

#[test]
fn table_on_the_host_gives_the_bits_of_one_on_the_device() {
    each_device(|device| {
        let (on_host, on_device) = (PerLayerPlacement::Host, PerLayerPlacement::Device);
        let [host, device] = [on_host, on_device].map(|place| weights("tiny-e2b", &device, place));
        let (mut host, mut device) = (step(&host, 64, Dtype::F32, true), step(&device, 64, Dtype::F32, true));
        assert!(!host.runs_ahead() && device.runs_ahead());
        for token in prompt(20, 14) {
            assert_eq!(next(&mut host, token), next(&mut device, token));
        }
        assert!(host.run_ahead(1).is_err());
    });
}

#[test]
fn prompts_taken_over_from_the_plain_path_continue_alike() {
    each_device(|device| {
        for name in FIXTURES {
            let plain = LoadOptions { dtype: Some(Dtype::F32), ..Default::default() };
            let (plain, _) = load(fixture(name), &device, &plain).expect("the fixture loads");
            let model = weights(name, &device, PerLayerPlacement::Device);
            for len in [1, 5, 8, 9, 20, 37] {
                let tokens = prompt(len + 12, 15);
                let mut cache = KvCache::new(plain.config());
                plain.fill(ids_tensor(&tokens[..len], &device), &mut cache);
                let mut imported = step(&model, 64, Dtype::F32, true);
                imported.import(&cache).expect("it fits");
                let mut own = step(&model, 64, Dtype::F32, true);
                own.prefill(&tokens[..len]).expect("prefill");
                assert_eq!(imported.position(), own.position());
                for token in &tokens[len..] {
                    let ratio = rms_ratio(&next(&mut imported, *token), &next(&mut own, *token));
                    assert!(ratio < CLOSE_AFTER_BURN, "{name}, {len} tokens: {ratio}");
                }
            }
        }
    });
}

#[test]
fn a_reset_step_is_as_new() {
    each_device(|device| {
        let model = weights("tiny-e2b", &device, PerLayerPlacement::Device);
        let (mut used, mut fresh) = (step(&model, 64, Dtype::F32, true), step(&model, 64, Dtype::F32, true));
        used.prefill(&prompt(40, 16)).expect("prefill");
        used.reset();
        for token in prompt(25, 17) {
            assert_eq!(next(&mut used, token), next(&mut fresh, token));
        }
    });
}

#[test]
fn logits_that_are_not_finite_are_an_error() {
    each_device(|device| {
        let mut model = weights("tiny-e2b", &device, PerLayerPlacement::Device);
        model.norm.weight = model.norm.weight.clone().map(|weight| weight * f32::NAN);
        let mut fused = step(&model, 64, Dtype::F32, true);
        fused.prefill(&prompt(5, 18)).expect("prefill");
        assert!(matches!(fused.read_tokens_blocking(), Err(Error::NonFinite(_))));
    });
}

#[test]
fn what_does_not_fit_is_refused() {
    each_device(|device| {
        let model = weights("tiny-e2b", &device, PerLayerPlacement::Device);
        let mut fused = step(&model, 16, Dtype::F32, true);
        assert!(fused.prefill(&prompt(17, 19)).is_err());
        fused.reset();
        assert!(fused.step(640).is_err_and(|e| e.to_string().contains("640")));
        fused.prefill(&prompt(16, 19)).expect("just fits");
        assert!(fused.run_ahead(1).is_err());
    });
    let on_cpu =
        FusedStep::new(&model("tiny-e2b"), &FusedOptions { context: 16, kv: Dtype::F32, end_ids: vec![], graph: true });
    assert!(on_cpu.is_err_and(|e| e.to_string().contains("plain path")), "{:?}", cpu());
}

#[test]
fn the_engine_writes_the_same_text_on_both_paths() {
    let text = |device: &Device, path: ComputePath, max_tokens: usize| {
        let options = EngineOptions { dtype: Some(Dtype::F32), path: Some(path), ..Default::default() };
        let engine = Engine::load_with(fixture("tiny-e2b"), device, &options).expect("the fixture loads");
        let greedy =
            Sampling { temperature: 0.0, top_k: 0, top_p: 1.0, min_p: 0.0, repeat_penalty: 1.0, seed: Some(1) };
        let mut session = engine.session();
        let mut all = vec![];
        for prompt in ["Hello, world!", " And then?"] {
            let request =
                Request { sampling: Some(greedy.clone()), max_tokens: Some(max_tokens), ..Request::from(prompt) };
            let events = session.generate(request).expect("a good request");
            all.extend(events.map(|event| event.expect("an event").id()));
        }
        all
    };
    each_device(|device| {
        for max_tokens in [1, 15, 40] {
            let plain = text(&cpu(), ComputePath::Plain, max_tokens);
            assert_eq!(text(&device, ComputePath::Fused { kv: Dtype::F32 }, max_tokens), plain);
        }
    });
}

#[test]
fn ten_thousand_tokens_leave_memory_flat_and_no_drift() {
    const TOKENS: usize = 10_000;
    const AT_ONCE: usize = RING;
    const CONTEXT: usize = TOKENS + 2 * AT_ONCE;
    each_device(|device| {
        let model = weights("tiny-e2b", &device, PerLayerPlacement::Device);
        let (mut long, mut fresh) = (step(&model, CONTEXT, Dtype::F32, true), step(&model, CONTEXT, Dtype::F32, true));
        let mut tokens = prompt(9, 20);
        long.prefill(&tokens).expect("prefill");
        let held = || device.memory_pool_usage().expect("the device tells").bytes_in_use;
        let mut before = None;
        while tokens.len() < TOKENS {
            tokens.extend(long.read_tokens_blocking().expect("tokens"));
            long.run_ahead(AT_ONCE).expect("room");
            assert_eq!(held(), *before.get_or_insert_with(held), "{} tokens", tokens.len());
        }
        tokens.extend(long.read_tokens_blocking().expect("tokens"));
        let (last, earlier) = tokens.split_last().expect("tokens");
        let logits = long.read_logits_blocking().expect("logits");
        assert_eq!(argmax(&logits) as u32, *last);
        fresh.prefill(earlier).expect("prefill");
        assert_eq!(fresh.read_logits_blocking().expect("logits"), logits);
    });
}
