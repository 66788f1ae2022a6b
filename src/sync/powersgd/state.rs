//! What a rank remembers from step to step.

use super::plan::Plan;

/// One rank's memory, for a checkpoint.
#[derive(Clone, Debug, PartialEq)]
pub struct State {
    /// E: what the means have not carried yet, row-major, of each compressed matrix in the order of the gradient.
    pub errors: Vec<f32>,
    /// Q: the factors that the next step starts from, column by column, of the same matrices. The same on every rank.
    pub factors: Vec<f32>,
}

/// A [`State`] of something else.
#[derive(Clone, Copy, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum StateError {
    /// Another number of elements.
    #[error("powersgd state of {given} {what}, this configuration has {expected}")]
    Length {
        /// `errors` or `factors`.
        what: &'static str,
        /// How many were given.
        given: usize,
        /// How many there are.
        expected: usize,
    },
    /// An element that no step leaves behind.
    #[error(
        "powersgd state: element {index} of the {what} is {found}, must be a number of at most {limit} in magnitude"
    )]
    Magnitude {
        /// `errors` or `factors`.
        what: &'static str,
        /// Which element.
        index: usize,
        /// What is there.
        found: f32,
        /// The largest magnitude that is taken.
        limit: f32,
    },
}

impl State {
    pub(super) fn new(plan: &Plan, seed: u32) -> Self {
        let mut state = Self { errors: vec![0.0; plan.elements], factors: vec![0.0; plan.second] };
        // Every column is zero, and so starts from random numbers.
        warm(plan, seed, &mut state.factors);
        state
    }

    pub(super) fn check(&self, plan: &Plan) -> Result<(), StateError> {
        // Larger factors could take this rank's product beyond what its peers accept.
        let parts =
            [("errors", &self.errors, plan.elements, f32::MAX), ("factors", &self.factors, plan.second, 2.0)];
        for (what, values, expected, limit) in parts {
            if values.len() != expected {
                return Err(StateError::Length { what, given: values.len(), expected });
            }
            if let Some(index) = values.iter().position(|value| value.is_nan() || value.abs() > limit) {
                return Err(StateError::Magnitude { what, index, found: values[index], limit });
            }
        }
        Ok(())
    }
}

/// Prepares Q for the next step: scales each column by a power of two, and begins a zero column again.
///
/// The random column depends on the seed and its place alone: what matters is that those of one matrix are independent.
pub(super) fn warm(plan: &Plan, seed: u32, factors: &mut [f32]) {
    for (place, matrix) in (0_u64..).zip(&plan.matrices) {
        let q = &mut factors[matrix.second()];
        for (k, column) in (0_u64..).zip(q.chunks_exact_mut(matrix.shape.columns)) {
            let largest = column.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
            if largest == 0.0 {
                let mut random = Random((u64::from(seed) << 32) ^ (place << 8) ^ k);
                column.fill_with(|| random.symmetric());
            } else {
                scale(column, largest);
            }
        }
    }
}

/// Divides by the power of two that is at most `largest`, which is finite and above 0.
fn scale(column: &mut [f32], largest: f32) {
    // Every f32, a subnormal too, is normal in f64.
    let exponent = f64::from(largest).to_bits() >> 52;
    let factor = f64::from_bits((2 * 1023 - exponent) << 52);
    for value in column {
        #[expect(clippy::cast_possible_truncation, reason = "below 2")]
        let scaled = (f64::from(*value) * factor) as f32;
        *value = scaled;
    }
}

/// SplitMix64: the same everywhere, and no dependency.
struct Random(u64);

impl Random {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// Uniform in -1..1, of 24 bits: exact in f32. The paper draws from a normal distribution, of which only the
    /// independence of the directions matters here.
    fn symmetric(&mut self) -> f32 {
        #[expect(clippy::cast_precision_loss, reason = "24 bits are exact")]
        let bits = (self.bits() >> 40) as f32;
        bits / 8_388_608.0 - 1.0
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::super::{Config, Shape};
    use super::*;

    fn plan() -> Plan {
        let shape = |offset, rows, columns| Shape { offset, rows, columns };
        let config = Config { low_rank: 2, ..Config::default() };
        Plan::new(&config, &[shape(0, 17, 9), shape(153, 9, 17)], 400).unwrap()
    }

    #[test]
    fn the_first_factors_depend_on_the_seed_alone_and_no_two_columns_are_equal() {
        let state = State::new(&plan(), 7);
        assert_eq!(state, State::new(&plan(), 7));
        assert_ne!(state.factors, State::new(&plan(), 8).factors);
        assert_eq!((state.errors.len(), state.factors.len()), (306, 52));
        assert_ne!(state.factors[..9], state.factors[9..18]);
        assert_ne!(state.factors[..9], state.factors[18..27]);
        assert!(state.factors.iter().all(|value| (-1.0..1.0).contains(value)), "{state:?}");
    }

    #[test]
    fn columns_are_scaled_exactly_and_a_zero_column_begins_again() {
        let plan = plan();
        let fresh = State::new(&plan, 7).factors;
        let mut factors = fresh.clone();
        let limits = [(1.5, 1.5), (f32::MAX, 1.999_999_9), (-f32::from_bits(1), -1.0)];
        for (largest, scaled) in limits {
            factors[..9].copy_from_slice(&[0.0, largest, 0.0, largest / 2.0, 0.0, 0.0, 0.0, 0.0, 0.0]);
            factors[9..18].fill(0.0);
            warm(&plan, 7, &mut factors);
            assert_eq!(factors[1], scaled, "{largest}");
            if largest.abs() > 1.0 {
                assert_eq!(factors[3], scaled / 2.0, "{largest}");
            }
            assert_eq!(factors[9..18], fresh[9..18], "begins again");
        }
    }

    #[test]
    fn a_state_of_something_else_is_refused_with_both_numbers() {
        let plan = plan();
        let good = State::new(&plan, 0);
        assert_eq!(good.check(&plan), Ok(()));
        let mut long = good.clone();
        long.errors.push(0.0);
        let message = long.check(&plan).unwrap_err().to_string();
        assert_eq!(message, "powersgd state of 307 errors, this configuration has 306");
        let mut broken = good;
        for found in [f32::NAN, 2.5] {
            broken.factors[3] = found;
            let message = broken.check(&plan).unwrap_err().to_string();
            let range = "must be a number of at most 2 in magnitude";
            assert_eq!(message, format!("powersgd state: element 3 of the factors is {found}, {range}"));
        }
        broken.factors[3] = -2.0;
        assert_eq!(broken.check(&plan), Ok(()));
        broken.errors[0] = f32::INFINITY;
        assert!(broken.check(&plan).is_err(), "an error that is not finite");
    }
}
