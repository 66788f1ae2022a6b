//! 0/1 Adam (arXiv 2202.06009): the variance is measured at steps that lie farther and farther apart.
//!
//! 1-bit Adam needs a warm-up whose length nobody knows. 0/1 Adam starts to compress at once, and refreshes the variance
//! at steps `k_0 = 1, k_(j+1) = k_j + 2^floor(j / doubling)`: at first in every step, `doubling` times in each of the
//! distances 1, 2, 4, and so on. In these steps gradients travel in f32 and the step is AdamW's, with the momentum
//! that the step before left on the owner; in all others momenta travel in the codec, as in [`OneBitAdam`]
//! (super::OneBitAdam), whose notes on momenta, bias and mask hold here too. The bias of the second moment is that of the
//! measurements so far. A parameter whose variance is 0 does not move before a measurement sees a gradient.
//!
//! **Left out**: the paper's local steps, between which ranks step alone and then exchange the sum of their updates. The
//! ranks' parameters would differ after such a step, and a gradient that is not finite could not be refused by all ranks
//! before any of them uses it: what every other optimizer here keeps. The volume of a step is so that of the codec,
//! never 0.

use std::num::NonZeroU32;

use super::AdamW;
use super::one_bit::Schedule;

/// Parameters of 0/1 Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct ZeroOneAdam {
    /// Adam's.
    pub adam: AdamW,
    /// Measurements before their distance doubles (kappa in the paper). Default 16.
    pub doubling: NonZeroU32,
    /// Step after which the variance is frozen for good; `None`: never. Default `None`: with the distance growing
    /// as it does, n steps have about `doubling * log2(n / doubling)` measurements. The paper freezes where the learning rate
    /// has reached its height.
    pub freeze_after: Option<NonZeroU32>,
}

impl Default for ZeroOneAdam {
    fn default() -> Self {
        Self {
            adam: AdamW::default(),
            doubling: const { NonZeroU32::new(16).expect("not zero") },
            freeze_after: None,
        }
    }
}

impl ZeroOneAdam {
    pub(super) fn schedule(&self) -> Schedule {
        Schedule::ZeroOne(*self)
    }

    /// Whether step `step`, counted from 1 over steps that were taken, measures the variance.
    #[must_use]
    pub fn measures(&self, step: u64) -> bool {
        let Some(before) = step.checked_sub(1) else { return false };
        if self.freeze_after.is_some_and(|last| step > u64::from(last.get())) {
            return false;
        }
        // Distance 2^p begins after doubling * (1 + 2 + ... + 2^(p-1)) = doubling * (2^p - 1) steps.
        let doubling = u64::from(self.doubling.get());
        let p = (before / doubling + 1).ilog2();
        (before - doubling * ((1 << p) - 1)).is_multiple_of(1 << p)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::super::{Config, Exchanged};
    use super::*;

    fn config(doubling: u32, freeze_after: u32) -> ZeroOneAdam {
        ZeroOneAdam {
            doubling: NonZeroU32::new(doubling).unwrap(),
            freeze_after: NonZeroU32::new(freeze_after),
            ..ZeroOneAdam::default()
        }
    }

    #[test]
    fn the_distance_of_measurements_doubles_as_in_the_paper() {
        for doubling in [1, 2, 3, 16, 100] {
            let mut expected = vec![1_u64];
            for j in 0_u32.. {
                let next = expected[j as usize] + (1 << (j / doubling));
                if next > 20_000 {
                    break;
                }
                expected.push(next);
            }
            let config = config(doubling, 0);
            let got: Vec<u64> = (0..=20_000).filter(|step| config.measures(*step)).collect();
            assert_eq!(got, expected, "doubling {doubling}");
        }
        let got: Vec<u64> = (1..=30).filter(|step| config(2, 0).measures(*step)).collect();
        assert_eq!(got, [1, 2, 3, 5, 7, 11, 15, 23]);
        let got: Vec<u64> = (1..=30).filter(|step| config(2, 11).measures(*step)).collect();
        assert_eq!(got, [1, 2, 3, 5, 7, 11]);
        assert!(config(1, 0).measures(1 << 62), "2^62 - 1 steps of distances 1, 2, 4, ...");
        assert!(!config(1, 0).measures(u64::MAX), "half-way to the next one");
    }

    #[test]
    fn the_variance_changes_in_measuring_steps_alone() {
        let config = config(2, 0);
        let mut state = Config::ZeroOneAdam(config).state(3);
        let mut parameters = [1.0; 3];
        let mut variance = state.save(&Config::ZeroOneAdam(config)).vectors[1].clone();
        for step in 1..=40 {
            let measures = config.measures(step);
            assert_eq!(state.exchanged() == Exchanged::ExactGradient, measures, "step {step}");
            state.step(0.01, &[0.5 + 0.01 * step as f32, -1.0, 2.0], &mut parameters);
            let now = state.save(&Config::ZeroOneAdam(config)).vectors[1].clone();
            assert_eq!(now != variance, measures, "step {step}");
            variance = now;
        }
    }

    #[test]
    fn a_measurement_goes_on_with_the_momentum_of_the_step_before() {
        let config = config(1, 0);
        let mut state = Config::ZeroOneAdam(config).state(1);
        let mut parameters = [1.0];
        // Measurements in steps 1, 2, 4.
        for mean in [1.0, 1.0, 0.25, 3.0] {
            state.step(0.01, &[mean], &mut parameters);
        }
        let momentum = state.save(&Config::ZeroOneAdam(config)).vectors[0][0];
        let beta1 = config.adam.beta1;
        assert_eq!(momentum, beta1 * 0.25 + (1.0 - beta1) * 3.0);
    }
}
