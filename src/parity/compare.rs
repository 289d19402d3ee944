//! Measures of agreement between a computed tensor and its reference.

use super::Array;

/// How far `got` is from `want`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Difference {
    /// Largest absolute difference; NaN where anything is not finite.
    pub max_abs: f64,
    /// Largest absolute difference by the reference's largest absolute value.
    pub max_rel: f64,
    /// Root mean square of the difference by that of the reference.
    pub rms: f64,
}

/// Compares values of equal length.
///
/// # Panics
/// Where lengths differ: callers compare shapes first.
pub fn difference(got: &[f32], want: &[f32]) -> Difference {
    assert_eq!(got.len(), want.len(), "compared tensors have one shape");
    if got.iter().any(|x| !x.is_finite()) {
        return Difference { max_abs: f64::NAN, max_rel: f64::NAN, rms: f64::NAN };
    }
    let (mut max_abs, mut max_want, mut square, mut square_want) = (0f64, 0f64, 0f64, 0f64);
    for (&g, &w) in got.iter().zip(want) {
        let (d, w) = ((f64::from(g) - f64::from(w)).abs(), f64::from(w));
        max_abs = max_abs.max(d);
        max_want = max_want.max(w.abs());
        square += d * d;
        square_want += w * w;
    }
    let ratio = |a: f64, b: f64| if a == 0.0 { 0.0 } else { a / b };
    Difference { max_abs, max_rel: ratio(max_abs, max_want), rms: ratio(square, square_want).sqrt() }
}

/// Index of the largest value; the first of equals.
pub fn argmax(row: &[f32]) -> usize {
    let mut best = 0;
    for (i, &x) in row.iter().enumerate() {
        if x > row[best] {
            best = i;
        }
    }
    best
}

/// Distance of the two largest values.
pub fn margin(row: &[f32]) -> f32 {
    let (mut first, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &x in row {
        if x > first {
            (first, second) = (x, first);
        } else if x > second {
            second = x;
        }
    }
    first - second
}

/// Kullback-Leibler divergence of the distributions that two rows of logits stand for, in nats.
pub fn kl_divergence(want: &[f32], got: &[f32]) -> f64 {
    let log_sum = |row: &[f32]| {
        let max = f64::from(row.iter().copied().fold(f32::NEG_INFINITY, f32::max));
        max + row.iter().map(|&x| (f64::from(x) - max).exp()).sum::<f64>().ln()
    };
    let (want_sum, got_sum) = (log_sum(want), log_sum(got));
    let terms = want.iter().zip(got).map(|(&w, &g)| {
        let log_w = f64::from(w) - want_sum;
        log_w.exp() * (log_w - (f64::from(g) - got_sum))
    });
    terms.sum()
}

/// Mean divergence over rows.
pub fn mean_kl(got: &Array, want: &Array) -> f64 {
    let rows = got.rows().zip(want.rows());
    let (sum, count) = rows.fold((0.0, 0), |(sum, count), (g, w)| (sum + kl_divergence(w, g), count + 1));
    sum / f64::from(count.max(1))
}

/// Rows whose best token agrees, and whether all those agree where the reference prefers one by at least `decided`.
pub fn agreement(got: &Array, want: &Array, decided: f32) -> (usize, bool) {
    let mut equal = 0;
    let mut sound = true;
    for (g, w) in got.rows().zip(want.rows()) {
        let same = argmax(g) == argmax(w);
        equal += usize::from(same);
        sound &= same || margin(w) < decided;
    }
    (equal, sound)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn anything_not_finite_differs() {
        let d = difference(&[1.0, f32::NAN], &[1.0, 2.0]);
        assert!(d.max_abs.is_nan() && d.max_rel.is_nan() && d.rms.is_nan());
    }

    #[test]
    fn differences_are_relative_to_the_reference() {
        let d = difference(&[1.0, 4.5], &[1.0, 4.0]);
        assert_eq!(d.max_abs, 0.5);
        assert_eq!(d.max_rel, 0.125);
        assert!((d.rms - (0.25f64 / 17.0).sqrt()).abs() < 1e-12);
    }

    #[test]
    fn equal_logits_diverge_by_nothing() {
        let row = [1.0, -2.0, 0.5];
        assert!(kl_divergence(&row, &row).abs() < 1e-12);
        assert!(kl_divergence(&row, &[0.5, -2.0, 1.0]) > 0.05);
    }

    #[test]
    fn splits_count_only_where_the_reference_is_decided() {
        let (want, got) = (Array { width: 2, values: vec![1.0, 1.1] }, Array { width: 2, values: vec![1.1, 1.0] });
        assert_eq!(agreement(&got, &want, 0.5), (0, true));
        assert_eq!(agreement(&got, &want, 0.05), (0, false));
    }
}
