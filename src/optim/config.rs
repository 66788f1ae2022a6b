//! Which optimizer, with its parameters.

use std::ops::Range;

use super::{AdamW, OneBitAdam, OneBitLamb, Sgd, State, Tensors, ZeroOneAdam, adam, lamb, one_bit, sgd};

/// Which optimizer, with its parameters. The learning rate is an argument of every step.
#[derive(Clone, Copy, Debug, PartialEq)]
#[non_exhaustive]
pub enum Config {
    /// Adam with decoupled weight decay.
    AdamW(AdamW),
    /// Stochastic gradient descent with momentum.
    Sgd(Sgd),
    /// AdamW whose variance is frozen after a warm-up, from when on momenta travel in the codec.
    OneBitAdam(OneBitAdam),
    /// LAMB whose variance is frozen after a warm-up, from when on momenta travel in the codec.
    OneBitLamb(OneBitLamb),
    /// AdamW whose variance is measured at steps farther and farther apart; at all others momenta travel in the codec.
    ZeroOneAdam(ZeroOneAdam),
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

/// One parameter of an optimizer, by the name that it has there.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Parameter {
    /// Its name.
    pub name: &'static str,
    /// Its value.
    pub value: Value,
}

/// The value of a [`Parameter`].
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// A number with a fraction.
    Float(f32),
    /// A number of steps; `None` of an optional one is 0.
    Steps(u32),
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
            Self::OneBitAdam(one_bit) => one_bit.adam.validate(),
            Self::OneBitLamb(lamb) => lamb.validate(),
            Self::ZeroOneAdam(zero_one) => zero_one.adam.validate(),
        }
    }

    /// Its name.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::AdamW(_) => "adamw",
            Self::Sgd(_) => "sgd",
            Self::OneBitAdam(_) => "1-bit-adam",
            Self::OneBitLamb(_) => "1-bit-lamb",
            Self::ZeroOneAdam(_) => "0/1-adam",
        }
    }

    /// State for all `elements`, one tensor of one shard, all zero.
    #[must_use]
    pub fn state(&self, elements: usize) -> State {
        self.shard_state(&Tensors::whole(elements), 0..elements)
    }

    /// State for one `shard` of the elements that `tensors` are, all zero. Only LAMB looks at the tensors.
    #[must_use]
    pub fn shard_state(&self, tensors: &Tensors, shard: Range<usize>) -> State {
        match self {
            Self::AdamW(adam) => State::AdamW(adam::State::new(*adam, shard.len())),
            Self::Sgd(sgd) => State::Sgd(sgd::State::new(*sgd, shard.len())),
            Self::OneBitAdam(config) => {
                State::OneBit(one_bit::State::new(config.adam, config.schedule(), shard.len()))
            }
            Self::OneBitLamb(config) => {
                State::OneBitLamb(Box::new(lamb::State::new(*config, tensors.clone(), shard)))
            }
            Self::ZeroOneAdam(config) => {
                State::OneBit(one_bit::State::new(config.adam, config.schedule(), shard.len()))
            }
        }
    }

    /// For an optimizer to which momenta travel: the weight of the old momentum in the new one.
    #[must_use]
    pub fn momentum_decay(&self) -> Option<f32> {
        match self {
            Self::AdamW(_) | Self::Sgd(_) => None,
            Self::OneBitAdam(config) => Some(config.adam.beta1),
            Self::OneBitLamb(config) => Some(config.adam.beta1),
            Self::ZeroOneAdam(config) => Some(config.adam.beta1),
        }
    }

    /// Whether the borders of tensors matter to it.
    #[must_use]
    pub const fn looks_at_tensors(&self) -> bool {
        matches!(self, Self::OneBitLamb(_))
    }

    /// The number by which ranks compare it, and a checkpoint knows it: 1 SGD, 2 AdamW, 3 1-bit Adam, 4 1-bit LAMB, 5 0/1 Adam.
    #[must_use]
    pub const fn id(&self) -> u32 {
        match self {
            Self::Sgd(_) => 1,
            Self::AdamW(_) => 2,
            Self::OneBitAdam(_) => 3,
            Self::OneBitLamb(_) => 4,
            Self::ZeroOneAdam(_) => 5,
        }
    }

    /// All parameters, at most 11: what ranks compare before the first step.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        let float = |name, value| Parameter { name, value: Value::Float(value) };
        let steps = |name, value| Parameter { name, value: Value::Steps(value) };
        let adam = |adam: &AdamW| {
            vec![
                float("beta1", adam.beta1),
                float("beta2", adam.beta2),
                float("epsilon", adam.epsilon),
                float("weight_decay", adam.weight_decay),
            ]
        };
        match self {
            Self::Sgd(sgd) => {
                vec![float("momentum", sgd.momentum), float("weight_decay", sgd.weight_decay)]
            }
            Self::AdamW(config) => adam(config),
            Self::OneBitAdam(config) => {
                [adam(&config.adam), vec![steps("warmup", config.warmup.get())]].concat()
            }
            Self::OneBitLamb(config) => {
                let own = vec![
                    steps("warmup", config.warmup.get()),
                    float("ratio_decay", config.ratio_decay),
                    float("ratio_min", config.ratio_min),
                    float("ratio_max", config.ratio_max),
                    float("factor_min", config.factor_min),
                    float("factor_max", config.factor_max),
                    float("factor_change", config.factor_change),
                ];
                [adam(&config.adam), own].concat()
            }
            Self::ZeroOneAdam(config) => {
                let own = vec![
                    steps("doubling", config.doubling.get()),
                    steps("freeze_after", config.freeze_after.map_or(0, |steps| steps.get())),
                ];
                [adam(&config.adam), own].concat()
            }
        }
    }
}

pub(super) fn in_range(
    name: &'static str,
    value: f32,
    inside: bool,
    range: &'static str,
) -> Result<(), ConfigError> {
    if inside { Ok(()) } else { Err(ConfigError { name, value, range }) }
}
