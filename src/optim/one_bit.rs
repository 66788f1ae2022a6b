//! 1-bit Adam (arXiv 2102.02888): AdamW for a warm-up, then descent along the momentum with the variance frozen.
//!
//! An error-compensated codec may stand in for a mean only in what is linear; Adam's variance is not. The paper
//! observes that the variance hardly changes after a while: frozen, it is a fixed scale per parameter, and momentum
//! under a fixed scale is linear in the gradients. So, from then on, momenta travel with 1 bit per element.
//!
//! ```text
//! warm-up      mean of the gradients in f32; AdamW, to the bit
//! afterwards   m = mean over ranks of decode(encode(m_j)), each rank's own momentum
//!              x = x (1 - lr * weight_decay) - lr / (1 - beta1^t) * m / (sqrt(v / (1 - beta2^warmup)) + epsilon)
//! ```
//!
//! Where this is not the paper:
//!
//! - *Own momenta.* The paper's ranks mix their gradient into the mean momentum, which comes back to all of them. Here
//!   parameters come back, so that each rank keeps a momentum of its own: `m_j = beta1 m_j + (1 - beta1) g_j`. The mean
//!   of these is the momentum of the mean as long as every rank's share of the samples is constant; what a codec
//!   loses stays in the encoder's state alone. The parameters are not compressed on their way back, so that there is
//!   no second error to compensate.
//! - *Bias.* The paper leaves Adam's bias corrections out. Here the first moment's goes on, the second moment's is frozen
//!   with it: after a warm-up of fewer steps than `1 / (1 - beta2)` a bare variance would be too small, and the first
//!   compressed step would be a leap.
//! - *Codec.* Any. One that clamps makes momenta smaller, and nothing makes up for that: AdamW measures the clamped ones
//!   and divides by them, a frozen variance does not. So a codec with a scale per block, or a coarse scale; and error feedback.
//! - *Mask.* An element without a gradient in the whole warm-up has variance 0: its momentum counts as 0, whatever
//!   was decoded, because a code of one bit can't say 0 and epsilon is no scale. (The paper's authors ask the user for
//!   this mask.) Such a parameter only decays, as it would under AdamW without a gradient, also if a gradient comes later.
//! - *Cut.* A decoded momentum counts up to `(1 - beta1) / sqrt(1 - beta2)` roots of its variance, the most that a single
//!   gradient can make of Adam's step. Where gradients are rare and small, one bit per element says more than that.

use std::num::NonZeroU32;

use super::saved::Parts;
use super::zero_one::ZeroOneAdam;
use super::{AdamW, Config, Exchanged, adam};

/// Parameters of 1-bit Adam.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct OneBitAdam {
    /// Adam's.
    pub adam: AdamW,
    /// Steps of AdamW on f32 gradients before the variance is frozen. Default 1000; the paper takes 15 to 20 % of a run,
    /// and at least as many as the learning rate needs to reach its height.
    pub warmup: NonZeroU32,
}

impl Default for OneBitAdam {
    fn default() -> Self {
        Self { adam: AdamW::default(), warmup: const { NonZeroU32::new(1000).expect("not zero") } }
    }
}

impl OneBitAdam {
    pub(super) fn schedule(&self) -> Schedule {
        Schedule::Warmup(self.warmup)
    }
}

/// Which steps measure the variance.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Schedule {
    /// The first so many.
    Warmup(NonZeroU32),
    /// Those of 0/1 Adam.
    ZeroOne(ZeroOneAdam),
}

impl Schedule {
    /// Whether step `step`, counted from 1, measures the variance.
    fn measures(&self, step: u64) -> bool {
        match self {
            Self::Warmup(steps) => step <= u64::from(steps.get()),
            Self::ZeroOne(config) => config.measures(step),
        }
    }
}

/// Moments of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    schedule: Schedule,
    adam: adam::State,
    /// Steps taken.
    taken: u64,
}

impl State {
    pub(super) fn new(adam: AdamW, schedule: Schedule, elements: usize) -> Self {
        Self { schedule, adam: adam::State::new(adam, elements), taken: 0 }
    }

    pub(super) fn elements(&self) -> usize {
        self.adam.mean.len()
    }

    pub(super) fn config(&self) -> Config {
        match self.schedule {
            Schedule::Warmup(warmup) => Config::OneBitAdam(OneBitAdam { adam: self.adam.config, warmup }),
            Schedule::ZeroOne(config) => Config::ZeroOneAdam(config),
        }
    }

    pub(super) fn exchanged(&self) -> Exchanged {
        if self.schedule.measures(self.taken.saturating_add(1)) {
            Exchanged::ExactGradient
        } else {
            Exchanged::Momentum
        }
    }

    pub(super) fn step(&mut self, learning_rate: f32, mean: &[f32], parameters: &mut [f32]) {
        match self.exchanged() {
            Exchanged::Momentum => self.adam.step_frozen(learning_rate, mean, parameters),
            _ => self.adam.step(learning_rate, mean, parameters),
        }
        self.taken = self.taken.saturating_add(1);
    }

    pub(super) fn parts(&mut self) -> Parts<'_> {
        let mut parts = self.adam.parts();
        parts.counters.push(&mut self.taken);
        parts
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "tests")]
mod tests {
    use super::*;

    fn config(warmup: u32) -> OneBitAdam {
        OneBitAdam { adam: AdamW::default(), warmup: NonZeroU32::new(warmup).unwrap() }
    }

    fn gradient(step: u64) -> [f32; 4] {
        let x = [0.7, -0.25, 1.5, 0.1, -0.9];
        [x[(step % 5) as usize], x[(step % 3) as usize], 1e-3 * x[(step % 4) as usize], 0.0]
    }

    #[test]
    fn warm_up_is_adamw_and_then_the_variance_stays() {
        let mut state = Config::OneBitAdam(config(7)).state(4);
        let mut adam = Config::AdamW(AdamW::default()).state(4);
        let (mut ours, mut theirs) = ([0.5; 4], [0.5; 4]);
        for step in 1..=7 {
            assert_eq!(state.exchanged(), Exchanged::ExactGradient, "step {step}");
            state.step(0.01, &gradient(step), &mut ours);
            adam.step(0.01, &gradient(step), &mut theirs);
            assert_eq!(ours, theirs, "step {step}");
        }
        let config = Config::OneBitAdam(config(7));
        let frozen = state.save(&config);
        for step in 8..=20 {
            assert_eq!(state.exchanged(), Exchanged::Momentum, "step {step}");
            state.step(0.01, &gradient(step), &mut ours);
            let now = state.save(&config);
            assert_eq!(now.vectors[1], frozen.vectors[1], "variance in step {step}");
            assert_eq!(now.scalars[1], frozen.scalars[1], "the variance's bias in step {step}");
            assert_ne!(now.vectors[0], frozen.vectors[0], "momentum in step {step}");
        }
    }

    #[test]
    fn after_the_warm_up_it_is_momentum_descent_under_a_fixed_scale() {
        let AdamW { beta1, beta2, epsilon, weight_decay } = AdamW::default();
        let mut state = Config::OneBitAdam(config(3)).state(4);
        let mut parameters = [0.5_f32; 4];
        let mut own = [0.0_f32; 4];
        let (mut m, mut v, mut x) = ([0.0_f64; 4], [0.0_f64; 4], [0.5_f64; 4]);
        let (b1, b2) = (f64::from(beta1), f64::from(beta2));
        for t in 1..=40_i32 {
            let g = gradient(t.unsigned_abs().into());
            for (own, g) in own.iter_mut().zip(g) {
                *own = beta1 * *own + (1.0 - beta1) * g;
            }
            let exact = state.exchanged() == Exchanged::ExactGradient;
            state.step(0.01, if exact { &g } else { &own }, &mut parameters);
            for i in 0..4 {
                m[i] = b1 * m[i] + (1.0 - b1) * f64::from(g[i]);
                if t <= 3 {
                    v[i] = b2 * v[i] + (1.0 - b2) * f64::from(g[i]).powi(2);
                }
                let root = (v[i] / (1.0 - b2.powi(t.min(3)))).sqrt() + f64::from(epsilon);
                x[i] -= 0.01 * (m[i] / (1.0 - b1.powi(t)) / root + f64::from(weight_decay) * x[i]);
            }
        }
        for i in 0..4 {
            assert!((f64::from(parameters[i]) - x[i]).abs() < 1e-5, "{parameters:?} instead of {x:?}");
        }
    }

    #[test]
    fn an_element_without_a_gradient_in_the_warm_up_takes_no_noise() {
        let adam = AdamW { weight_decay: 0.0, ..AdamW::default() };
        let mut state = Config::OneBitAdam(OneBitAdam { adam, ..config(2) }).state(4);
        let mut parameters = [0.5; 4];
        for step in 1..=10 {
            let noise = if step % 2 == 0 { 0.3 } else { -0.3 };
            let mean = if step <= 2 { gradient(step) } else { [noise; 4] };
            let before = parameters;
            state.step(0.01, &mean, &mut parameters);
            assert_eq!(parameters[3], 0.5, "step {step}");
            assert!((0..3).all(|i| parameters[i] != before[i]), "step {step}: {parameters:?}");
        }
    }
}
