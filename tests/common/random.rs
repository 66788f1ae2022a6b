//! Random numbers of the tests.

#![allow(dead_code, reason = "each test file uses its part")]

/// SplitMix64: a seed that a failure can print, and no dependency.
pub(crate) struct Random(pub(crate) u64);

impl Random {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.bits() % bound
    }

    /// In -1..1.
    pub(crate) fn unit(&mut self) -> f64 {
        self.below(1 << 53) as f64 / (1_u64 << 52) as f64 - 1.0
    }
}
