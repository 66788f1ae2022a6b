//! PowerSGD's parameters.

use std::ops::RangeInclusive;

use super::Shape;
use crate::codec::{Parameter, set};
use crate::digest::fnv1a;

/// PowerSGD's parameters, the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config {
    /// Columns of both factors (the paper's rank r), 1..=64. Default 4.
    pub low_rank: u8,
    /// What the first Q comes from. Default 0.
    pub seed: u32,
    /// A matrix is compressed if its factors have fewer elements than it has, divided by this, 1..=255. Default 2.
    pub min_compression: u8,
}

/// A parameter out of its range.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} is {value}, powersgd takes {least} to {most}")]
pub struct ConfigError {
    /// Which.
    pub name: &'static str,
    /// The refused value.
    pub value: u8,
    /// The least that is taken.
    pub least: u8,
    /// The most that is taken.
    pub most: u8,
}

impl Default for Config {
    fn default() -> Self {
        Self { low_rank: 4, seed: 0, min_compression: 2 }
    }
}

impl Config {
    /// What `low_rank` may be.
    pub const LOW_RANK: RangeInclusive<u8> = 1..=64;

    /// Checks every parameter.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of its range, with its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let parts = [
            ("low_rank", self.low_rank, Self::LOW_RANK),
            ("min_compression", self.min_compression, 1..=u8::MAX),
        ];
        for (name, value, range) in parts {
            if !range.contains(&value) {
                return Err(ConfigError { name, value, least: *range.start(), most: *range.end() });
            }
        }
        Ok(())
    }

    /// All parameters, by their names.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        vec![
            Parameter { name: "low_rank", value: self.low_rank.into() },
            Parameter { name: "seed", value: self.seed.into() },
            Parameter { name: "min_compression", value: self.min_compression.into() },
        ]
    }

    /// Sets the parameter of this name among [`Self::parameters`]; false if there is none, or it cannot hold `value`.
    /// Ranges are for [`Self::validate`].
    pub fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match name {
            "low_rank" => set(&mut self.low_rank, value),
            "seed" => set(&mut self.seed, value),
            "min_compression" => set(&mut self.min_compression, value),
            _ => false,
        }
    }

    /// Whether a matrix of this shape travels as factors.
    #[must_use]
    pub fn compresses(&self, shape: &Shape) -> bool {
        // In u128: shapes come from the caller, and nothing has multiplied them before.
        let wide = |value: usize| value as u128;
        let factors = wide(self.low_rank.into()) * (wide(shape.rows) + wide(shape.columns));
        factors * wide(self.min_compression.into()) < wide(shape.rows).saturating_mul(wide(shape.columns))
    }

    /// What ranks compare before the first step.
    pub(in crate::sync) fn compared(&self, shapes: &[Shape]) -> Vec<Parameter> {
        let mut all = self.parameters();
        let count = u32::try_from(shapes.len()).unwrap_or(u32::MAX);
        all.push(Parameter { name: "number of tensor shapes", value: count.into() });
        all.push(Parameter { name: "digest of the tensor shapes", value: digest(shapes).into() });
        all
    }
}

/// [`fnv1a`] over every number of every shape in order, folded to 32 bits.
fn digest(shapes: &[Shape]) -> u32 {
    let numbers = shapes.iter().flat_map(|shape| [shape.offset, shape.rows, shape.columns]);
    let bytes = numbers.flat_map(|number| (number as u64).to_le_bytes());
    let [a, b, c, d, e, f, g, h] = fnv1a(bytes).to_le_bytes();
    u32::from_le_bytes([a, b, c, d]) ^ u32::from_le_bytes([e, f, g, h])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parameters_outside_their_range_are_refused_with_both_numbers() {
        assert_eq!(Config::default().validate(), Ok(()));
        let message = |config: Config| config.validate().map_err(|error| error.to_string());
        let low_rank = |low_rank| Config { low_rank, ..Config::default() };
        assert_eq!(message(low_rank(0)), Err("low_rank is 0, powersgd takes 1 to 64".to_owned()));
        assert_eq!(message(low_rank(65)), Err("low_rank is 65, powersgd takes 1 to 64".to_owned()));
        assert_eq!(message(low_rank(64)), Ok(()));
        let refused = message(Config { min_compression: 0, ..Config::default() });
        assert_eq!(refused, Err("min_compression is 0, powersgd takes 1 to 255".to_owned()));
    }

    #[test]
    fn a_matrix_is_compressed_exactly_where_it_has_more_elements_than_its_factors() {
        let compresses = |low_rank, min_compression, rows, columns| {
            let shape = Shape { offset: 0, rows, columns };
            Config { low_rank, min_compression, seed: 0 }.compresses(&shape)
        };
        // 2 * (8 + 8) = 32 of 64; 2 * (4 + 4) = 16 of 16.
        assert!(compresses(2, 1, 8, 8), "32 < 64");
        assert!(!compresses(2, 2, 8, 8), "64 = 64");
        assert!(compresses(2, 2, 8, 9), "68 < 72");
        assert!(!compresses(2, 1, 4, 4), "16 = 16");
        assert!(!compresses(1, 1, 1, 1000), "a vector");
        assert!(!compresses(1, 1, 1000, 1), "a vector");
        assert!(compresses(64, 255, usize::MAX, usize::MAX), "no overflow");
    }

    #[test]
    fn the_digest_sees_every_number_and_the_order() {
        let shape = |offset, rows, columns| Shape { offset, rows, columns };
        let all = [
            vec![],
            vec![shape(0, 2, 3)],
            vec![shape(0, 3, 2)],
            vec![shape(1, 2, 3)],
            vec![shape(0, 2, 3), shape(6, 2, 3)],
            vec![shape(6, 2, 3), shape(0, 2, 3)],
        ];
        for (i, a) in all.iter().enumerate() {
            for b in &all[..i] {
                assert_ne!(digest(a), digest(b), "{a:?} {b:?}");
            }
        }
    }
}
