//! Random numbers that are the same on every machine: integers, and floats made without rounding.

/// `SplitMix64` (Steele, Lea and Flood 2014): 64 bits of state, one stream per seed.
#[derive(Clone, Debug)]
pub(crate) struct Random(u64);

impl Random {
    /// The stream of `purpose` under `seed`; different purposes give unrelated streams.
    pub(crate) fn new(seed: u64, purpose: u64) -> Self {
        let mut random = Self(seed);
        let mixed = random.next();
        Self(mixed ^ purpose.wrapping_mul(0xd134_2543_de82_ef95))
    }

    /// The next 64 bits.
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A whole number below `bound`, which is at least 1. The bias is below `bound` / 2^64.
    pub(crate) fn below(&mut self, bound: usize) -> usize {
        let wide = u128::from(self.next()) * (bound as u128);
        usize::try_from(wide >> 64).unwrap_or(0)
    }

    /// Uniform in [-1, 1), one of 2^24 values: exact in f32, so no rounding differs between machines.
    pub(crate) fn symmetric(&mut self) -> f32 {
        let bits = u16::try_from(self.next() >> 48).unwrap_or(0);
        let low = u8::try_from(self.next() >> 56).unwrap_or(0);
        let whole = f32::from(bits) * 256.0 + f32::from(low);
        whole / 8_388_608.0 - 1.0
    }

    /// 0..`length` in random order.
    pub(crate) fn permutation(&mut self, length: usize) -> Vec<u32> {
        let mut order: Vec<u32> = (0..u32::try_from(length).unwrap_or(u32::MAX)).collect();
        for last in (1..order.len()).rev() {
            let other = self.below(last + 1);
            order.swap(last, other);
        }
        order
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_fixed_by_seed_and_purpose() {
        let first: Vec<u64> = {
            let mut r = Random::new(7, 1);
            (0..4).map(|_| r.next()).collect()
        };
        let again: Vec<u64> = {
            let mut r = Random::new(7, 1);
            (0..4).map(|_| r.next()).collect()
        };
        let other: Vec<u64> = {
            let mut r = Random::new(7, 2);
            (0..4).map(|_| r.next()).collect()
        };
        assert_eq!(first, again);
        assert_ne!(first, other);
    }

    #[test]
    fn a_permutation_holds_every_index_once() {
        let mut order = Random::new(3, 0).permutation(1000);
        assert_ne!(order, (0..1000).collect::<Vec<u32>>());
        order.sort_unstable();
        assert_eq!(order, (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn symmetric_numbers_stay_inside_and_have_the_variance_of_a_uniform_one() {
        let mut random = Random::new(11, 0);
        let drawn: Vec<f64> = (0..100_000).map(|_| f64::from(random.symmetric())).collect();
        assert!(drawn.iter().all(|x| (-1.0..1.0).contains(x)));
        let square = drawn.iter().map(|x| x * x).sum::<f64>() / 1e5;
        assert!((square - 1.0 / 3.0).abs() < 0.005, "mean square {square}");
    }
}
