//! AdamW (arXiv 1711.05101, algorithm 2).

use super::config::{ConfigError, in_range};
use super::saved::{Allowed, Part, Parts};

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

/// beta^t of the two betas: what the bias corrections of step t are made of.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Powers {
    // Running products: `powf` differs between platforms, a product does not.
    beta1: f64,
    beta2: f64,
}

impl Powers {
    /// Before the first step.
    pub const START: Self = Self { beta1: 1.0, beta2: 1.0 };

    /// Goes on by one step, and gives the numbers that the step has for all elements.
    pub fn next(&mut self, config: &AdamW, learning_rate: f32) -> Coefficients {
        self.beta2 *= f64::from(config.beta2);
        self.next_frozen(config, learning_rate)
    }

    /// As [`next`](Self::next), for a step in which the mean square stays, and so does its bias.
    #[expect(clippy::cast_possible_truncation, reason = "the two bias corrections are wanted in f32")]
    pub fn next_frozen(&mut self, config: &AdamW, learning_rate: f32) -> Coefficients {
        let AdamW { beta1, beta2, epsilon, weight_decay } = *config;
        self.beta1 *= f64::from(beta1);
        Coefficients {
            beta1,
            rest1: 1.0 - beta1,
            beta2,
            rest2: 1.0 - beta2,
            epsilon,
            step_size: (f64::from(learning_rate) / (1.0 - self.beta1)) as f32,
            square_scale: (1.0 / (1.0 - self.beta2)) as f32,
            keep: 1.0 - learning_rate * weight_decay,
        }
    }
}

/// What one step does to every element, the same on CPU and device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// Weight of the old mean.
    pub beta1: f32,
    /// Weight of the gradient in the mean.
    pub rest1: f32,
    /// Weight of the old mean square.
    pub beta2: f32,
    /// Weight of the squared gradient in the mean square.
    pub rest2: f32,
    /// Added to the root.
    pub epsilon: f32,
    /// Learning rate, divided by the bias of the mean.
    pub step_size: f32,
    /// 1 / the bias of the mean square.
    pub square_scale: f32,
    /// What weight decay leaves of a parameter.
    pub keep: f32,
}

impl Coefficients {
    /// One step of elements that all four slices have. Shader: `shaders/optim/adamw.wgsl`.
    pub fn step(&self, gradient: &[f32], parameters: &mut [f32], mean: &mut [f32], square: &mut [f32]) {
        let Self { beta1, rest1, beta2, rest2, epsilon, step_size, square_scale, keep } = *self;
        let moments = mean.iter_mut().zip(square);
        for ((parameter, &g), (mean, square)) in parameters.iter_mut().zip(gradient).zip(moments) {
            *mean = beta1 * *mean + rest1 * g;
            *square = beta2 * *square + rest2 * (g * g);
            let root = (*square * square_scale).sqrt() + epsilon;
            *parameter = *parameter * keep - step_size * (*mean / root);
        }
    }

    /// A step in which `momentum` is the new mean, and the mean square stays.
    ///
    /// Where the mean square is 0, the mean counts as 0: that element has never had a gradient, and what
    /// stands in `momentum` is the codec's noise, which a division by epsilon would blow up. Elsewhere it is cut to what
    /// Adam could make of a gradient, for the same reason.
    pub fn step_frozen(&self, momentum: &[f32], parameters: &mut [f32], mean: &mut [f32], square: &[f32]) {
        let Self { rest1, rest2, epsilon, step_size, square_scale, keep, .. } = *self;
        let most = rest1 / rest2.sqrt();
        let moments = mean.iter_mut().zip(square);
        for ((parameter, &m), (mean, &square)) in parameters.iter_mut().zip(momentum).zip(moments) {
            let root = (square * square_scale).sqrt() + epsilon;
            *mean = if square == 0.0 { 0.0 } else { believable(m, most * root) };
            *parameter = *parameter * keep - step_size * (*mean / root);
        }
    }
}

/// `momentum`, cut to plus and minus `most`.
///
/// Adam moves no parameter by more than `(1 - beta1) / sqrt(1 - beta2)` learning rates (arXiv 1412.6980, section 2.1), reached by a
/// single gradient after none. A codec of one bit sends every element of a block as plus or minus the block's mean
/// magnitude; where the own gradients are rare and small, so is the frozen root, and that noise divided by it has no
/// bound. Without the cut, 0/1 Adam over `sign` ended the digits at a loss of 3e15, with it where AdamW does.
pub(super) fn believable(momentum: f32, most: f32) -> f32 {
    // Comparisons and not `min` and `max`, which would make a number of a NaN.
    if momentum > most {
        most
    } else if momentum < -most {
        -most
    } else {
        momentum
    }
}

/// Moments of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The parameters that the moments were made with.
    pub config: AdamW,
    /// How far the bias corrections are.
    pub powers: Powers,
    /// Mean of gradients.
    pub mean: Vec<f32>,
    /// Mean of squared gradients, of the same length.
    pub square: Vec<f32>,
}

impl State {
    pub(super) fn new(config: AdamW, elements: usize) -> Self {
        let zeros = vec![0.0; elements];
        Self { config, powers: Powers::START, mean: zeros.clone(), square: zeros }
    }

    pub(super) fn parts(&mut self) -> Parts<'_> {
        let elements = self.mean.len();
        Parts {
            counters: Vec::new(),
            scalars: vec![
                Part::new("power of beta1", Allowed::Power, &mut self.powers.beta1),
                Part::new("power of beta2", Allowed::Power, &mut self.powers.beta2),
            ],
            vectors: vec![
                Part::new("mean", Allowed::Finite, &mut self.mean),
                Part::new("square", Allowed::NotNegative, &mut self.square),
            ],
            elements,
        }
    }

    pub(super) fn step(&mut self, learning_rate: f32, gradient: &[f32], parameters: &mut [f32]) {
        assert_eq!(gradient.len(), self.mean.len(), "gradient of another shard");
        let coefficients = self.powers.next(&self.config, learning_rate);
        coefficients.step(gradient, parameters, &mut self.mean, &mut self.square);
    }

    /// A step in which `momentum` is the new first moment and the second one stays, with its correction.
    pub(super) fn step_frozen(&mut self, learning_rate: f32, momentum: &[f32], parameters: &mut [f32]) {
        assert_eq!(momentum.len(), self.mean.len(), "momentum of another shard");
        let coefficients = self.powers.next_frozen(&self.config, learning_rate);
        coefficients.step_frozen(momentum, parameters, &mut self.mean, &self.square);
    }
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

    #[test]
    fn under_a_frozen_variance_no_decoded_momentum_moves_a_parameter_farther_than_adam_could() {
        let config = AdamW { weight_decay: 0.0, ..AdamW::default() };
        let mut state = State::new(config, 3);
        let mut parameters = [0.0; 3];
        state.step(0.0, &[1e-6, 1.0, 0.0], &mut parameters);
        // A block's mean magnitude, decoded in place of a momentum of 1e-7.
        state.step_frozen(0.5, &[0.1, 0.1, 0.1], &mut parameters);
        let most = 0.1 / (1.0 - config.beta2).sqrt();
        let step_size = 0.5 / (1.0 - config.beta1 * config.beta1);
        assert!((parameters[0] + most * step_size).abs() < 1e-4, "{parameters:?}");
        // What Adam's own momentum would be is not cut, and where there was no gradient nothing moves.
        assert!((parameters[1] + 0.1 * step_size).abs() < 1e-4, "{parameters:?}");
        assert_eq!(parameters[2], 0.0);
    }
}
