//! The learning rate over a run.

use serde::{Deserialize, Serialize};

/// Linear warm-up, then half a cosine down to a share of the peak.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Schedule {
    /// The highest learning rate.
    pub peak: f64,
    /// Steps until it is reached.
    pub warmup: usize,
    /// Steps in all.
    pub steps: usize,
    /// The last learning rate, as a share of the peak.
    pub last: f64,
}

impl Schedule {
    /// The learning rate of a step, counted from 0, when `elapsed` (0 to 1) of the run is over: by steps, or by a clock
    /// that ends the run earlier.
    pub fn rate(&self, step: usize, elapsed: f64) -> f64 {
        if step < self.warmup {
            return self.peak * (step + 1) as f64 / self.warmup as f64;
        }
        let by_steps = (step - self.warmup) as f64 / (self.steps.saturating_sub(self.warmup)).max(1) as f64;
        let progress = by_steps.max(elapsed).clamp(0.0, 1.0);
        let cosine = 0.5 * (1.0 + (std::f64::consts::PI * progress).cos());
        self.peak * (self.last + (1.0 - self.last) * cosine)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SCHEDULE: Schedule = Schedule { peak: 2.0, warmup: 4, steps: 104, last: 0.1 };

    #[test]
    fn rate_rises_to_the_peak_and_falls_to_the_last() {
        let rates: Vec<f64> = (0..4).map(|step| SCHEDULE.rate(step, 0.0)).collect();
        assert_eq!(rates, [0.5, 1.0, 1.5, 2.0]);
        assert_eq!(SCHEDULE.rate(4, 0.0), 2.0);
        assert!((SCHEDULE.rate(54, 0.0) - 1.1).abs() < 1e-12);
        assert!((SCHEDULE.rate(104, 0.0) - 0.2).abs() < 1e-12);
        assert!((4..104).all(|step| SCHEDULE.rate(step + 1, 0.0) < SCHEDULE.rate(step, 0.0)));
    }

    #[test]
    fn clock_that_is_ahead_of_the_steps_decides() {
        assert_eq!(SCHEDULE.rate(10, 0.5), SCHEDULE.rate(54, 0.0));
        assert_eq!(SCHEDULE.rate(54, 0.1), SCHEDULE.rate(54, 0.0));
    }
}
