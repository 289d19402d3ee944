//! The steps between logits and a draw, as pure functions on plain slices.
//!
//! Their order is the one of HF `generate`: [`suppress`] and [`repetition_penalty`] on the logits, then temperature,
//! [`top_k`], [`top_p`] and [`min_p`] on candidates. Ties always go to the lower id, so the result never depends on how
//! a sort happens to move equal values.

use std::cmp::Ordering;

/// A token that may be drawn.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Candidate {
    /// The token's id.
    pub id: u32,
    /// Its probability relative to the most probable token, which has 1.
    pub weight: f64,
}

/// Makes the tokens `ids` impossible. Ids past the vocabulary cannot be drawn anyway and are left alone.
pub fn suppress(logits: &mut [f32], ids: &[u32]) {
    for &id in ids {
        if let Some(logit) = logits.get_mut(id as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Makes each token of `history` less likely, once however often it occurs: a positive logit is divided by `penalty`,
/// a negative one multiplied (HF `RepetitionPenaltyLogitsProcessor`).
///
/// Returns the first id of `history` that `logits` has no place for.
pub fn repetition_penalty(logits: &mut [f32], history: &[u32], penalty: f32) -> Result<(), u32> {
    let mut seen = vec![false; logits.len()];
    for &id in history {
        let seen = seen.get_mut(id as usize).ok_or(id)?;
        if !std::mem::replace(seen, true) {
            let logit = &mut logits[id as usize];
            *logit = if *logit > 0.0 { *logit / penalty } else { *logit * penalty };
        }
    }
    Ok(())
}

/// The id of the largest logit, the lowest one if several are equal; `None` if there is no logit above -∞.
pub fn argmax(logits: &[f32]) -> Option<u32> {
    let mut best = (None, f32::NEG_INFINITY);
    for (id, &logit) in logits.iter().enumerate() {
        if logit > best.1 {
            best = (Some(id as u32), logit);
        }
    }
    best.0
}

/// The ids and logits of the `k` largest logits in order of their ids, without those at -∞.
pub fn top_k(logits: &[f32], k: usize) -> Vec<(u32, f32)> {
    let possible = logits.iter().enumerate().filter(|(_, logit)| **logit > f32::NEG_INFINITY);
    let possible = possible.map(|(id, &logit)| (id as u32, logit));
    if k >= logits.len() {
        return possible.collect();
    }
    // Almost every logit is turned away by one comparison: the vocabulary is read once, and only `2 k` places are kept.
    let mut kept = Vec::with_capacity(2 * k);
    let mut floor = f32::NEG_INFINITY;
    for candidate in possible {
        if candidate.1 > floor {
            kept.push(candidate);
            if kept.len() == 2 * k {
                keep_largest(&mut kept, k);
                floor = kept[k - 1].1;
            }
        }
    }
    if kept.len() > k {
        keep_largest(&mut kept, k);
    }
    kept.sort_unstable_by_key(|&(id, _)| id);
    kept
}

/// Divides the logits by `temperature` and exponentiates them relative to their largest, in f64: no temperature above
/// zero overflows.
pub fn weigh(logits: &[(u32, f32)], temperature: f32) -> Vec<Candidate> {
    let max = logits.iter().map(|&(_, logit)| logit).fold(f32::NEG_INFINITY, f32::max);
    let weight = |logit: f32| ((f64::from(logit) - f64::from(max)) / f64::from(temperature)).exp();
    logits.iter().map(|&(id, logit)| Candidate { id, weight: weight(logit) }).collect()
}

/// The most probable candidates whose probabilities together reach `p`, at least one, the most probable first.
pub fn top_p(mut candidates: Vec<Candidate>, p: f32) -> Vec<Candidate> {
    let total = candidates.iter().map(|candidate| candidate.weight).sum::<f64>();
    let wanted = f64::from(p) * total;
    // Candidates below their part of what may be missing cannot be needed; the margin covers rounding.
    let negligible = 0.999 * (total - wanted) / candidates.len() as f64;
    candidates.retain(|candidate| candidate.weight >= negligible);
    let (mut sorted, mut mass) = (0, 0.0);
    // The set is small as a rule, so sort ever larger heads of the list rather than all of it.
    let mut head = 64;
    while sorted < candidates.len() {
        let rest = &mut candidates[sorted..];
        let len = head.min(rest.len());
        if len < rest.len() {
            rest.select_nth_unstable_by(len - 1, by_weight);
        }
        rest[..len].sort_unstable_by(by_weight);
        for i in sorted..sorted + len {
            mass += candidates[i].weight;
            if mass >= wanted {
                candidates.truncate(i + 1);
                return candidates;
            }
        }
        sorted += len;
        head *= 8;
    }
    candidates
}

/// The candidates at least `p` times as probable as the most probable one.
pub fn min_p(mut candidates: Vec<Candidate>, p: f32) -> Vec<Candidate> {
    let max = candidates.iter().map(|candidate| candidate.weight).fold(0.0, f64::max);
    candidates.retain(|candidate| candidate.weight >= f64::from(p) * max);
    candidates
}

/// The candidate at the fraction `unit` (from 0 up to but without 1) of the summed weights, counted in list order;
/// `None` if nothing has a weight.
pub fn pick(candidates: &[Candidate], unit: f64) -> Option<u32> {
    let mut rest = unit * candidates.iter().map(|candidate| candidate.weight).sum::<f64>();
    let possible = || candidates.iter().filter(|candidate| candidate.weight > 0.0);
    for candidate in possible() {
        rest -= candidate.weight;
        if rest < 0.0 {
            return Some(candidate.id);
        }
    }
    possible().next_back().map(|candidate| candidate.id)
}

fn keep_largest(candidates: &mut Vec<(u32, f32)>, k: usize) {
    candidates.select_nth_unstable_by(k - 1, |a, b| b.1.total_cmp(&a.1).then(a.0.cmp(&b.0)));
    candidates.truncate(k);
}

fn by_weight(a: &Candidate, b: &Candidate) -> Ordering {
    b.weight.total_cmp(&a.weight).then(a.id.cmp(&b.id))
}
