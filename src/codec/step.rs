//! When a codec runs, and what it saw.

use std::fmt;
use std::iter::Sum;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::{Add, AddAssign};

/// One optimizer step, counted from 1.
///
/// The type holds no 0, so that "every 512th step" cannot mean two things.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Step(NonZeroU64);

impl Step {
    /// The first step.
    pub const FIRST: Self = Self(NonZeroU64::MIN);

    /// Step number `step`; `None` for 0.
    #[must_use]
    pub const fn new(step: u64) -> Option<Self> {
        match NonZeroU64::new(step) {
            Some(step) => Some(Self(step)),
            None => None,
        }
    }

    /// The number, at least 1.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Whether this is the last of `every` steps, counted from the first; never for `None`.
    #[must_use]
    pub fn ends(self, every: Option<NonZeroU32>) -> bool {
        every.is_some_and(|every| self.get().is_multiple_of(every.get().into()))
    }

    /// The step after this one (`u64::MAX` stays where it is: no run gets there).
    #[must_use]
    pub const fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What one `encode` saw, in elements.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Elements that were NaN or infinite. They travel in the packet header, so that every rank decides alike.
    pub nonfinite: u64,
    /// Codes that the clamp to the code range changed. Always 0 for a codec without codes.
    pub saturated: u64,
}

impl Add for Stats {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { nonfinite: self.nonfinite + other.nonfinite, saturated: self.saturated + other.saturated }
    }
}

impl AddAssign for Stats {
    fn add_assign(&mut self, other: Self) {
        *self = *self + other;
    }
}

impl Sum for Stats {
    fn sum<I: Iterator<Item = Self>>(stats: I) -> Self {
        stats.fold(Self::default(), Add::add)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_third_step_is_3_and_6_and_no_step_ends_never() {
        let ends = |every| {
            let steps = (1..=7).filter_map(Step::new);
            steps.filter(|step| step.ends(NonZeroU32::new(every))).map(Step::get).collect::<Vec<_>>()
        };
        assert_eq!(ends(3), [3, 6]);
        assert_eq!(ends(1), [1, 2, 3, 4, 5, 6, 7]);
        assert_eq!(ends(0), []);
    }
}
