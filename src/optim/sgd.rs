//! Stochastic gradient descent with momentum, as most frameworks define it: `v = momentum * v + g`,
//! `p = p - learning_rate * v`, the weight decay added to the gradient.

use super::config::{ConfigError, in_range};
use super::saved::{Allowed, Part, Parts};

/// Parameters of SGD.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sgd {
    /// Weight of the old velocity, 0 <= momentum < 1. Default 0.9.
    pub momentum: f32,
    /// L2 penalty added to the gradient, >= 0. Default 0.
    pub weight_decay: f32,
}

impl Default for Sgd {
    fn default() -> Self {
        Self { momentum: 0.9, weight_decay: 0.0 }
    }
}

impl Sgd {
    pub(super) fn validate(&self) -> Result<(), ConfigError> {
        in_range("momentum", self.momentum, (0.0..1.0).contains(&self.momentum), "0..1")?;
        let decay = self.weight_decay;
        in_range("weight_decay", decay, decay >= 0.0 && decay.is_finite(), "0 or above")
    }
}

/// What one step does to every element, the same on CPU and device.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Coefficients {
    /// Weight of the old velocity.
    pub momentum: f32,
    /// Weight of the parameter in the gradient.
    pub weight_decay: f32,
    /// Weight of the velocity in the parameter.
    pub learning_rate: f32,
}

impl Coefficients {
    /// Of a step with `learning_rate`.
    #[must_use]
    pub fn new(config: &Sgd, learning_rate: f32) -> Self {
        let Sgd { momentum, weight_decay } = *config;
        Self { momentum, weight_decay, learning_rate }
    }

    /// One step of elements that all three slices have. Shader: `shaders/optim/sgd.wgsl`.
    pub fn step(&self, gradient: &[f32], parameters: &mut [f32], velocity: &mut [f32]) {
        let Self { momentum, weight_decay, learning_rate } = *self;
        for ((parameter, &g), velocity) in parameters.iter_mut().zip(gradient).zip(velocity) {
            *velocity = momentum * *velocity + (g + weight_decay * *parameter);
            *parameter -= learning_rate * *velocity;
        }
    }
}

/// Velocity of one shard.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// The parameters that the velocity was made with.
    pub config: Sgd,
    /// One number per element.
    pub velocity: Vec<f32>,
}

impl State {
    pub(super) fn new(config: Sgd, elements: usize) -> Self {
        Self { config, velocity: vec![0.0; elements] }
    }

    pub(super) fn parts(&mut self) -> Parts<'_> {
        let elements = self.velocity.len();
        let velocity = Part::new("velocity", Allowed::Finite, &mut self.velocity);
        Parts { counters: Vec::new(), scalars: Vec::new(), vectors: vec![velocity], elements }
    }

    pub(super) fn step(&mut self, learning_rate: f32, gradient: &[f32], parameters: &mut [f32]) {
        assert_eq!(gradient.len(), self.velocity.len(), "gradient of another shard");
        Coefficients::new(&self.config, learning_rate).step(gradient, parameters, &mut self.velocity);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn momentum_and_weight_decay_follow_their_definition() {
        let mut state = State::new(Sgd { momentum: 0.5, weight_decay: 0.25 }, 2);
        let mut parameters = [1.0, -2.0];
        state.step(0.5, &[1.0, 0.0], &mut parameters);
        assert_eq!(parameters, [0.375, -1.75]); // v = [1.25, -0.5]
        state.step(0.5, &[0.0, 1.0], &mut parameters);
        // v = [0.625 + 0.09375, -0.25 + 1 - 0.4375] = [0.71875, 0.3125]
        assert_eq!(parameters, [0.015625, -1.90625]);
    }

    #[test]
    fn a_momentum_of_one_is_refused() {
        let refused = Sgd { momentum: 1.0, ..Sgd::default() }.validate();
        assert_eq!(refused.map_err(|e| e.name), Err("momentum"));
    }
}
