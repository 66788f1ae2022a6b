//! AdamW (arXiv 1711.05101, algorithm 2).

use super::config::{ConfigError, in_range};
use super::saved::Parts;

/// Parameters of AdamW.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct AdamW {
    /// Decay of the mean of gradients, 0 <= beta1 < 1. Default 0.9.
    pub beta1: f32,
    /// Decay of the mean of squared gradients, 0 <= beta2 < 1. Default 0.999.
    pub beta2: f32,
    /// Added to the root of the second moment, > 0. Default 1e-8.
    pub epsilon: f32,
    /// Decoupled weight decay per unit of learning rate, >= 0. Default 0.01.
    pub weight_decay: f32,
}

impl Default for AdamW {
    fn default() -> Self {
        Self { beta1: 0.9, beta2: 0.999, epsilon: 1e-8, weight_decay: 0.01 }
    }
}

impl AdamW {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        in_range("beta1", self.beta1, (0.0..1.0).contains(&self.beta1), "0..1")?;
        in_range("beta2", self.beta2, (0.0..1.0).contains(&self.beta2), "0..1")?;
        in_range("epsilon", self.epsilon, self.epsilon > 0.0 && self.epsilon.is_finite(), "above 0")?;
        let decay = self.weight_decay;
        in_range("weight_decay", decay, decay >= 0.0 && decay.is_finite(), "0 or above")
    }
}

/// Moments of one shard.
#[derive(Clone, Debug)]
pub struct State {
    config: AdamW,
    mean: Vec<f32>,
    square: Vec<f32>,
    // beta^t as running products: `powf` differs between platforms, a product does not.
    beta1_power: f64,
    beta2_power: f64,
}

impl State {
    pub(super) fn new(config: AdamW, elements: usize) -> Self {
        let zeros = vec![0.0; elements];
        Self { config, mean: zeros.clone(), square: zeros, beta1_power: 1.0, beta2_power: 1.0 }
    }

    pub(super) fn parts(&mut self) -> Parts<'_> {
        let elements = self.mean.len();
        Parts {
            counters: Vec::new(),
            scalars: vec![&mut self.beta1_power, &mut self.beta2_power],
            vectors: vec![&mut self.mean, &mut self.square],
            elements,
        }
    }

    pub(super) fn step(&mut self, learning_rate: f32, gradient: &[f32], parameters: &mut [f32]) {
        assert_eq!(gradient.len(), self.mean.len(), "gradient of another shard");
        let AdamW { beta1, beta2, epsilon, .. } = self.config;
        self.beta1_power *= f64::from(beta1);
        self.beta2_power *= f64::from(beta2);
        let Factors { step_size, square_scale, keep } = self.factors(learning_rate);
        let moments = self.mean.iter_mut().zip(&mut self.square);
        for ((parameter, &g), (mean, square)) in parameters.iter_mut().zip(gradient).zip(moments) {
            *mean = beta1 * *mean + (1.0 - beta1) * g;
            *square = beta2 * *square + (1.0 - beta2) * (g * g);
            let root = (*square * square_scale).sqrt() + epsilon;
            *parameter = *parameter * keep - step_size * (*mean / root);
        }
    }

    /// A step in which `momentum` is the new first moment and the second one stays, with its correction.
    ///
    /// Where the second moment is 0, the first one counts as 0: that element has never had a gradient, and what
    /// stands in `momentum` is the codec's noise, which a division by epsilon would blow up.
    pub(super) fn step_frozen(&mut self, learning_rate: f32, momentum: &[f32], parameters: &mut [f32]) {
        assert_eq!(momentum.len(), self.mean.len(), "momentum of another shard");
        let AdamW { beta1, epsilon, .. } = self.config;
        self.beta1_power *= f64::from(beta1);
        let Factors { step_size, square_scale, keep } = self.factors(learning_rate);
        let moments = self.mean.iter_mut().zip(&self.square);
        for ((parameter, &m), (mean, &square)) in parameters.iter_mut().zip(momentum).zip(moments) {
            *mean = if square == 0.0 { 0.0 } else { m };
            let root = (square * square_scale).sqrt() + epsilon;
            *parameter = *parameter * keep - step_size * (*mean / root);
        }
    }

    #[expect(clippy::cast_possible_truncation, reason = "the two bias corrections are wanted in f32")]
    fn factors(&self, learning_rate: f32) -> Factors {
        Factors {
            step_size: (f64::from(learning_rate) / (1.0 - self.beta1_power)) as f32,
            square_scale: (1.0 / (1.0 - self.beta2_power)) as f32,
            keep: 1.0 - learning_rate * self.config.weight_decay,
        }
    }
}

/// What is the same for all elements of a step.
struct Factors {
    /// Learning rate over the first moment's bias.
    step_size: f32,
    /// 1 over the second moment's bias.
    square_scale: f32,
    /// What weight decay leaves of a parameter.
    keep: f32,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_step_moves_every_parameter_by_the_learning_rate() {
        let mut state = State::new(AdamW { weight_decay: 0.0, ..AdamW::default() }, 3);
        let mut parameters = [1.0, 1.0, 1.0];
        state.step(0.125, &[4.0, -1e-3, 0.0], &mut parameters);
        assert!((parameters[0] - 0.875).abs() < 1e-6, "{parameters:?}");
        assert!((parameters[1] - 1.125).abs() < 1e-5, "{parameters:?}");
        assert_eq!(parameters[2], 1.0);
    }

    #[test]
    fn moments_and_parameters_follow_the_paper_in_double_precision() {
        let config = AdamW::default();
        let (mut state, mut parameters) = (State::new(config, 1), [0.5_f32]);
        let (mut m, mut v, mut p) = (0.0_f64, 0.0_f64, 0.5_f64);
        let (b1, b2) = (f64::from(config.beta1), f64::from(config.beta2));
        for t in 1..=200_i32 {
            let g = [0.7_f32, -0.25, 1.5][t.unsigned_abs() as usize % 3];
            state.step(0.01, &[g], &mut parameters);
            let g = f64::from(g);
            m = b1 * m + (1.0 - b1) * g;
            v = b2 * v + (1.0 - b2) * g * g;
            let (mh, vh) = (m / (1.0 - b1.powi(t)), v / (1.0 - b2.powi(t)));
            p -= 0.01 * (mh / (vh.sqrt() + 1e-8) + 0.01 * p);
        }
        assert!((f64::from(parameters[0]) - p).abs() < 1e-4, "{} instead of {p}", parameters[0]);
    }

    #[test]
    fn parameters_outside_their_range_are_refused_by_name() {
        let refused = AdamW { beta2: 1.0, ..AdamW::default() }.validate();
        assert_eq!(refused.map_err(|e| (e.name, e.value)), Err(("beta2", 1.0)));
        let refused = AdamW { epsilon: f32::NAN, ..AdamW::default() }.validate();
        assert_eq!(refused.map_err(|e| e.name), Err("epsilon"));
        assert!(AdamW::default().validate().is_ok());
    }
}
