//! Optimizers on the averaged shard.
//!
//! Only the owner of a shard runs its optimizer, on f32 master parameters, and everyone receives the result;
//! so the float arithmetic here needs no twin, and one rank's rounding can't split the fleet.
//! No fused multiply-add and no library function but `sqrt` (correctly rounded by IEEE 754) occurs, so
//! that a run repeats to the bit on every platform.

mod adam;
mod sgd;

pub use adam::AdamW;
pub use sgd::Sgd;

/// Which optimizer, with its parameters. The learning rate is an argument of every step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Config {
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// Stochastic gradient descent with momentum.
    Sgd(Sgd),
}

/// A parameter outside its range.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[error("optimizer parameter {name} is {value}, must be in {range}")]
pub struct ConfigError {
    /// The parameter.
    pub name: &'static str,
    /// What was asked for.
    pub value: f32,
    /// What is allowed.
    pub range: &'static str,
}

impl Config {
    /// Checks every parameter against its range.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of range, or not a number.
    pub fn validate(&self) -> Result<(), ConfigError> {
        match self {
            Self::AdamW(adam) => adam.validate(),
            Self::Sgd(sgd) => sgd.validate(),
        }
    }

    /// State for one shard of `elements`, all zero.
    #[must_use]
    pub fn state(&self, elements: usize) -> State {
        match self {
            Self::AdamW(adam) => State::AdamW(adam::State::new(*adam, elements)),
            Self::Sgd(sgd) => State::Sgd(sgd::State::new(*sgd, elements)),
        }
    }
}

/// What an optimizer remembers of one shard: 8 bytes per element for AdamW, 4 for SGD.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum State {
    /// First and second moments.
    AdamW(adam::State),
    /// Momentum.
    Sgd(sgd::State),
}

impl State {
    /// One step: moves `parameters` against `gradient`, in place. `learning_rate` is finite and not negative.
    ///
    /// # Panics
    ///
    /// If `gradient` or `parameters` do not have the length that the state was made for.
    pub fn step(&mut self, learning_rate: f32, gradient: &[f32], parameters: &mut [f32]) {
        assert_eq!(gradient.len(), parameters.len(), "gradient and parameters of one shard");
        match self {
            Self::AdamW(state) => state.step(learning_rate, gradient, parameters),
            Self::Sgd(state) => state.step(learning_rate, gradient, parameters),
        }
    }
}

fn in_range(name: &'static str, value: f32, inside: bool, range: &'static str) -> Result<(), ConfigError> {
    if inside { Ok(()) } else { Err(ConfigError { name, value, range }) }
}
