//! The cache against forward passes without one, around the window of 8 and across several windows.

use gemma_burn::Dtype;
use gemma_burn::cache::{KvCache, bytes_per_token};
use gemma_burn::engine::{prefill, step};
use gemma_burn::model::{Gemma, Output};

use crate::support::{FIXTURES, cpu, ids, max_difference, model, prompt, rms_ratio, rows, uncached};

/// Logits reach about 18; two orders of adding in f32 differ by less than this.
const CLOSE: f32 = 5e-4;

fn assert_close(got: &[f32], want: &[f32], what: &str) {
    let difference = max_difference(got, want);
    assert!(difference < CLOSE, "{what}: logits differ by {difference:.2e}");
}

#[test]
fn prefill_then_decode_matches_full_forward_at_every_length() {
    for name in FIXTURES {
        let model = model(name);
        let tokens = prompt(44, 1);
        let want = uncached(&model, &tokens);
        for len in 1..=40 {
            let mut cache = KvCache::new(model.config());
            let last = prefill(&model, &cpu(), &mut cache, &tokens[..len], 512).expect("prefill");
            assert_close(&last, &want[len - 1], &format!("{name}, prompt of {len}"));
            for at in len..len + 4 {
                let next = step(&model, &cpu(), &mut cache, &tokens[at..=at]).expect("step");
                assert_close(&next, &want[at], &format!("{name}, prompt of {len}, token {at}"));
            }
            assert_eq!(cache.position(), len + 4);
        }
    }
}

#[test]
fn every_chunk_size_gives_the_same_logits() {
    for name in FIXTURES {
        let model = model(name);
        let tokens = prompt(41, 2);
        let want = uncached(&model, &tokens);
        for chunk in 1..=20 {
            let mut cache = KvCache::new(model.config());
            let last = prefill(&model, &cpu(), &mut cache, &tokens[..37], chunk).expect("prefill");
            assert_close(&last, &want[36], &format!("{name}, chunks of {chunk}"));
            for at in 37..41 {
                let next = step(&model, &cpu(), &mut cache, &tokens[at..=at]).expect("step");
                assert_close(&next, &want[at], &format!("{name}, chunks of {chunk}, token {at}"));
            }
        }
    }
}

#[test]
fn decode_across_three_windows_matches_full_forward() {
    for name in FIXTURES {
        let model = model(name);
        let tokens = prompt(64, 3);
        let want = uncached(&model, &tokens);
        let mut cache = KvCache::new(model.config());
        for (at, token) in tokens.iter().enumerate() {
            let next = step(&model, &cpu(), &mut cache, &[*token]).expect("step");
            assert_close(&next, &want[at], &format!("{name}, token {at}"));
        }
    }
}

#[test]
fn several_tokens_behind_a_full_ring_match_full_forward() {
    let model = model("tiny-e2b");
    let tokens = prompt(60, 4);
    let want = uncached(&model, &tokens);
    for chunk in [2, 3, 7, 8, 9, 17] {
        let mut cache = KvCache::new(model.config());
        prefill(&model, &cpu(), &mut cache, &tokens[..21], 512).expect("prefill");
        let mut at = 21;
        while at + chunk <= tokens.len() {
            let got = rows(model.forward(ids(&tokens[at..at + chunk]), &mut cache, Output::All));
            for (row, want) in got.iter().zip(&want[at..]) {
                assert_close(row, want, &format!("{chunk} tokens at {at}"));
            }
            at += chunk;
        }
    }
}

#[test]
fn forked_conversations_do_not_see_each_other() {
    let model = model("tiny-e2b");
    let common = prompt(13, 5);
    let (left, right) = ([130, 131, 132, 133], [140, 141, 142, 143]);
    let alone = |tail: &[u32]| uncached(&model, &[&common[..], tail].concat());
    let mut first = KvCache::new(model.config());
    prefill(&model, &cpu(), &mut first, &common, 512).expect("prefill");
    let mut second = first.fork();
    let (want_left, want_right) = (alone(&left), alone(&right));
    for i in 0..left.len() {
        let l = step(&model, &cpu(), &mut first, &left[i..=i]).expect("step");
        let r = step(&model, &cpu(), &mut second, &right[i..=i]).expect("step");
        assert_close(&l, &want_left[common.len() + i], "left");
        assert_close(&r, &want_right[common.len() + i], "right");
    }
}

#[test]
fn reset_cache_is_as_new() {
    let model = model("tiny-e2b");
    let tokens = prompt(20, 6);
    let mut cache = KvCache::new(model.config());
    prefill(&model, &cpu(), &mut cache, &prompt(30, 7), 512).expect("prefill");
    assert!(cache.bytes() > 0);
    cache.reset();
    assert_eq!((cache.position(), cache.bytes()), (0, 0));
    let got = prefill(&model, &cpu(), &mut cache, &tokens, 512).expect("prefill");
    assert_eq!(got, last_of_fresh(&model, &tokens));
}

fn last_of_fresh(model: &Gemma, tokens: &[u32]) -> Vec<f32> {
    prefill(model, &cpu(), &mut KvCache::new(model.config()), tokens, 512).expect("prefill")
}

#[test]
fn rings_stop_growing_and_full_slots_keep_every_token() {
    let model = model("tiny-e2b");
    let cost = bytes_per_token(model.config(), Dtype::F32);
    let mut cache = KvCache::new(model.config());
    for (count, token) in prompt(300, 8).into_iter().enumerate() {
        step(&model, &cpu(), &mut cache, &[token]).expect("step");
        let tokens = count + 1;
        let least = cost.growing * tokens + cost.fixed * tokens.min(8) / 8;
        let most = cost.growing * (tokens + tokens / 2 + 64) + cost.fixed;
        assert!(
            (least..=most).contains(&cache.bytes()),
            "{} bytes after {tokens} tokens, not {least} to {most}",
            cache.bytes()
        );
    }
}

#[test]
fn a_cache_kept_in_another_format_rounds_once_and_takes_its_bytes() {
    for name in FIXTURES {
        let model = model(name);
        let tokens = prompt(40, 9);
        let all = |cache: &mut KvCache| rows(model.forward(ids(&tokens), cache, Output::All));
        let mut own = KvCache::new(model.config());
        let want = all(&mut own);
        let mut same = KvCache::kept_in(model.config(), Dtype::F32);
        assert_eq!(all(&mut same), want);
        let mut narrow = KvCache::kept_in(model.config(), Dtype::Bf16);
        let got = all(&mut narrow);
        assert_eq!(2 * narrow.bytes(), own.bytes());
        let ratio = rms_ratio(&got.concat(), &want.concat());
        assert!((1e-4..3e-2).contains(&ratio), "{name}: rounded keys and values change logits by {ratio}");
        // Token by token it rounds the same values.
        let mut stepped = KvCache::kept_in(model.config(), Dtype::Bf16);
        for (token, want) in tokens.iter().zip(&got) {
            let logits = step(&model, &cpu(), &mut stepped, &[*token]).expect("step");
            let ratio = rms_ratio(&logits, want);
            assert!(ratio <= 5e-3, "{name}: {ratio}");
        }
    }
}
