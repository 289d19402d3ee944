//! Choosing tokens: every filter against a plain full sort, the draw against the softmax, the seed against itself.

use gemma_burn::Error;
use gemma_burn::sampler::filters::{self, Candidate};
use gemma_burn::sampler::{Sampler, Sampling};
use proptest::collection::vec;
use proptest::prelude::*;

fn drawing(temperature: f32, seed: u64) -> Sampling {
    Sampling { temperature, seed: Some(seed), ..Sampling::greedy() }
}

fn sampler(sampling: Sampling) -> Sampler {
    Sampler::new(sampling).expect("the settings are in range")
}

fn draws(sampling: Sampling, logits: &[f32], count: usize) -> Vec<u32> {
    let mut sampler = sampler(sampling);
    (0..count).map(|_| sampler.sample(logits, &[]).expect("the logits are finite")).collect()
}

fn message(error: Error) -> String {
    let message = error.to_string();
    assert!(!message.contains('\n'), "{message:?} is one line");
    message
}

#[test]
fn greedy_takes_the_largest_logit_and_the_lowest_id_of_a_tie() {
    assert_eq!(sampler(Sampling::greedy()).sample(&[-4.0, 2.0, 7.5, 7.5, 1.0], &[]).unwrap(), 2);
    assert_eq!(sampler(Sampling::greedy()).sample(&[-4.0, -4.0], &[]).unwrap(), 0);
}

#[test]
fn drawn_frequencies_follow_the_softmax() {
    const DRAWS: usize = 40_000;
    let logits = [1.5, -0.5, 0.0, 2.0, 1.9, -2.0, 0.7, 0.7];
    for (temperature, seed) in [(1.0, 1), (0.7, 2), (2.5, 3)] {
        let mut counts = [0.0; 8];
        for id in draws(drawing(temperature, seed), &logits, DRAWS) {
            counts[id as usize] += 1.0;
        }
        let exps = logits.map(|logit: f32| (f64::from(logit) / f64::from(temperature)).exp());
        let sum: f64 = exps.iter().sum();
        let expected = exps.map(|exp| exp / sum * DRAWS as f64);
        let chi_squared: f64 = counts.iter().zip(expected).map(|(n, e): (&f64, f64)| (n - e).powi(2) / e).sum();
        // 99.9 % of honest samplers stay below 24.3 with 7 degrees of freedom.
        assert!(chi_squared < 24.3, "temperature {temperature}: {counts:?} instead of {expected:?}");
    }
}

#[test]
fn same_seed_draws_the_same_tokens_and_another_seed_others() {
    let logits: Vec<f32> = (0..500).map(|i| (i * 37 % 101) as f32 / 25.0).collect();
    let sampling = Sampling { top_k: 64, top_p: 0.95, ..drawing(1.0, 7) };
    let first = draws(sampling.clone(), &logits, 50);
    assert_eq!(first, draws(sampling.clone(), &logits, 50));
    assert_ne!(first, draws(Sampling { seed: Some(8), ..sampling }, &logits, 50));
}

/// The ids were computed with a separate ChaCha12 (key: the seed in the first 8 bytes, counter and nonce 0), one
/// `⌊u · 1000⌋` per 64 bits, `u` from the upper 53: what a seed means may never change.
#[test]
fn seed_means_these_tokens_on_every_platform() {
    assert_eq!(draws(drawing(1.0, 42), &[0.0; 1000], 6), PINNED);
}

const PINNED: [u32; 6] = [432, 161, 672, 686, 68, 143];

#[test]
fn without_a_seed_one_is_drawn_that_repeats_the_choices() {
    let logits = [0.0; 1000];
    let unseeded = Sampling { seed: None, ..drawing(1.0, 0) };
    let (mut first, second) = (sampler(unseeded.clone()), sampler(unseeded));
    assert_ne!(first.seed(), second.seed());
    let tokens: Vec<u32> = (0..20).map(|_| first.sample(&logits, &[]).unwrap()).collect();
    assert_eq!(tokens, draws(drawing(1.0, first.seed()), &logits, 20));
}

#[test]
fn logits_that_are_not_finite_are_an_error_that_says_where() {
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        for sampling in [Sampling::greedy(), drawing(1.0, 0)] {
            let error = sampler(sampling).sample(&[1.0, 0.0, bad, 2.0], &[0, 1, 0, 1, 0]).unwrap_err();
            assert!(matches!(error, Error::NonFinite(_)));
            let message = message(error);
            assert!(message.contains("position 5") && message.contains("token id 2"), "{message}");
        }
    }
}

#[test]
fn suppressed_tokens_are_never_chosen() {
    let logits = [9.0, 1.0, 8.0, 0.5];
    assert_eq!(sampler(Sampling::greedy()).suppressing(&[0, 2, 70_000]).sample(&logits, &[]).unwrap(), 1);
    let mut drawing = sampler(drawing(1.0, 5)).suppressing(&[0, 2]);
    assert!((0..200).all(|_| [1, 3].contains(&drawing.sample(&logits, &[]).unwrap())));
    let error = sampler(Sampling::greedy()).suppressing(&[0, 1, 2, 3]).sample(&logits, &[]).unwrap_err();
    assert!(message(error).contains("no token to choose from"));
}

#[test]
fn repeat_penalty_weakens_each_token_of_the_history_once() {
    let mut logits = [3.0, -1.0, 2.0, 0.0];
    filters::repetition_penalty(&mut logits, &[0, 1, 0, 0, 3], 2.0).unwrap();
    assert_eq!(logits, [1.5, -2.0, 2.0, 0.0]);
    let mut penalizing = sampler(Sampling { repeat_penalty: 2.0, ..Sampling::greedy() });
    assert_eq!(penalizing.sample(&[3.0, -1.0, 2.0, 0.0], &[0]).unwrap(), 2);
    assert!(message(penalizing.sample(&[3.0, -1.0], &[9]).unwrap_err()).contains("token id 9"));
}

#[test]
fn filters_leave_only_the_tokens_they_should() {
    let logits = [4.0, 3.9, 3.8, 3.7, 0.0, -1.0];
    let seen = |sampling: Sampling| {
        let mut ids = draws(sampling, &logits, 500);
        ids.sort_unstable();
        ids.dedup();
        ids
    };
    let all = drawing(1.0, 11);
    assert_eq!(seen(Sampling { top_k: 2, ..all.clone() }), [0, 1]);
    assert_eq!(seen(Sampling { top_k: 1, ..all.clone() }), [0]);
    // The first two have 0.275 and 0.249 of the probability.
    assert_eq!(seen(Sampling { top_p: 0.5, ..all.clone() }), [0, 1]);
    assert_eq!(seen(Sampling { top_p: 0.0, ..all.clone() }), [0]);
    // exp(-0.2) is 0.82, exp(-0.3) is 0.74.
    assert_eq!(seen(Sampling { min_p: 0.8, ..all.clone() }), [0, 1, 2]);
    // top-p counts what top-k left: 0.36, 0.33 and 0.30 of it.
    assert_eq!(seen(Sampling { top_k: 3, top_p: 0.68, ..all.clone() }), [0, 1]);
    // The temperature comes before top-p: at 0.1 the first two have 0.64 and 0.24.
    assert_eq!(seen(Sampling { top_p: 0.7, temperature: 0.1, seed: Some(1), ..all }), [0, 1]);
}

#[test]
fn extreme_temperatures_do_not_overflow() {
    let logits = [30.0, -30.0, 29.0];
    assert!(draws(drawing(f32::MIN_POSITIVE, 3), &logits, 50).iter().all(|&id| id == 0));
    let hot = draws(drawing(f32::MAX, 3), &logits, 300);
    assert!((0..3).all(|id| hot.contains(&id)));
}

#[test]
fn settings_out_of_range_are_refused_by_their_flag() {
    let good = Sampling::greedy();
    let bad = [
        ("--temperature", Sampling { temperature: -0.5, ..good.clone() }),
        ("--temperature", Sampling { temperature: f32::NAN, ..good.clone() }),
        ("--temperature", Sampling { temperature: f32::INFINITY, ..good.clone() }),
        ("--top-p", Sampling { top_p: 1.5, ..good.clone() }),
        ("--top-p", Sampling { top_p: f32::NAN, ..good.clone() }),
        ("--min-p", Sampling { min_p: -0.1, ..good.clone() }),
        ("--repeat-penalty", Sampling { repeat_penalty: 0.0, ..good.clone() }),
        ("--repeat-penalty", Sampling { repeat_penalty: f32::INFINITY, ..good }),
    ];
    for (flag, sampling) in bad {
        assert!(message(sampling.validate().unwrap_err()).starts_with(flag));
        assert!(Sampler::new(sampling).is_err());
    }
}

/// Few different values, so that ties are common.
fn logits() -> impl Strategy<Value = Vec<f32>> {
    vec((-8i8..8).prop_map(f32::from), 1..700)
}

/// Multiples of 1/64: every sum is exact in whatever order it is taken.
fn candidates() -> impl Strategy<Value = Vec<Candidate>> {
    vec(1u16..=64, 1..700).prop_map(|parts| {
        let max = parts.iter().copied().max().unwrap_or(1);
        let weigh = |(id, part)| Candidate { id, weight: if part == max { 1.0 } else { f64::from(part) / 64.0 } };
        (0..).zip(parts).map(weigh).collect()
    })
}

fn sorted(mut candidates: Vec<Candidate>) -> Vec<Candidate> {
    candidates.sort_by(|a, b| b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id)));
    candidates
}

proptest! {
    #[test]
    fn top_k_equals_a_full_sort(logits in logits(), k in 1usize..800) {
        let mut expected: Vec<(u32, f32)> = (0..).zip(logits.iter().copied()).collect();
        expected.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
        expected.truncate(k);
        expected.sort_by_key(|&(id, _)| id);
        prop_assert_eq!(filters::top_k(&logits, k), expected);
    }

    #[test]
    fn top_p_equals_a_full_sort(candidates in candidates(), sixtyfourths in 0u8..=64) {
        let p = f32::from(sixtyfourths) / 64.0;
        let all = sorted(candidates.clone());
        let wanted = all.iter().map(|c| c.weight).sum::<f64>() * f64::from(p);
        let enough = (1..=all.len()).find(|&n| all[..n].iter().map(|c| c.weight).sum::<f64>() >= wanted);
        prop_assert_eq!(filters::top_p(candidates, p), all[..enough.unwrap_or(all.len())].to_vec());
    }

    #[test]
    fn min_p_keeps_what_reaches_the_share_of_the_best(candidates in candidates(), p in 0.0f32..=1.0) {
        let kept = filters::min_p(candidates.clone(), p);
        prop_assert!(kept.iter().all(|c| c.weight >= f64::from(p)));
        prop_assert!(candidates.iter().all(|c| kept.contains(c) || c.weight < f64::from(p)));
    }

    #[test]
    fn picked_token_is_where_the_summed_weights_pass_the_fraction(candidates in candidates(), part in 0u16..1024) {
        let unit = f64::from(part) / 1024.0;
        let target = unit * candidates.iter().map(|c| c.weight).sum::<f64>();
        let passed = (1..=candidates.len()).find(|&n| candidates[..n].iter().map(|c| c.weight).sum::<f64>() > target);
        prop_assert_eq!(filters::pick(&candidates, unit), passed.map(|n| candidates[n - 1].id));
    }

    #[test]
    fn any_settings_choose_a_token_of_the_vocabulary(
        logits in logits(), temperature in 0.0f32..3.0, top_k in 0usize..70, top_p in 0.0f32..=1.0, min_p in 0.0f32..=1.0,
        repeat_penalty in 0.5f32..2.0, seed: u64,
    ) {
        let sampling = Sampling { temperature, top_k, top_p, min_p, repeat_penalty, seed: Some(seed) };
        let chosen = sampler(sampling).sample(&logits, &[0, 0]).unwrap();
        prop_assert!((chosen as usize) < logits.len());
    }
}
