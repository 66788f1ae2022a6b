//! The weighted mean of floats, the same on every device and in any order of the ranks.
//!
//! `f32`, `f16`, `bf16` and `fp8` send floats, whose sum in floats would depend on the order, and on a device on more
//! than that. So each element is aligned to a grid that its largest term fixes, and summed as a 64-bit integer:
//!
//! ```text
//! x_j      = mantissa_j * 2^(exponent_j - 150)    24-bit integers with sign; subnormals count as zero
//! top      = max(exponent_j)                      over the ranks with a weight
//! term_j   = round_half_even(weight_j * x_j / 2^(top - 150 - guard))
//! mean     = sum(term_j) / sum(weight_j) * 2^(top - 150 - guard)      one rounding, to nearest, ties to even
//! ```
//!
//! with `guard = 27 - L` digits below the last of the largest term, where `sum(weight_j) < 2^L`. A term loses nothing
//! unless its exponent is more than `guard` (6 to 26) below the top, and what it loses is less than `2^-(guard + 24)`
//! of the largest element: so the mean of terms of like magnitude is the exact one, correctly rounded, and a world
//! of one gets its own normal numbers back. A mean that is subnormal before that rounding is zero, zero is plus zero,
//! and the mean of an element that is NaN or infinite in any packet with a weight is the NaN `0x7FC00000`.
//!
//! All sums stay below `2^(24 + L + guard) = 2^51` units, and terms are multiples of a unit: f64 holds every number
//! here exactly. [`mean_bits`] is the definition, in integers, as the kernels compute it (fragments
//! `shaders/lib/mean.wgsl`, `shaders/lib/wide.wgsl`); `weighted_mean` is the same in f64, where the compiler
//! vectorises it.

use super::fixed::EXPONENT_MASK;

/// Elements that one pass over all packets handles: f64 sums (4 KiB), exponents and values stay in the first-level
/// cache.
pub const PASS: usize = 512;

/// The mean of an element that some packet says is not finite.
pub const NAN: u32 = 0x7FC0_0000;

/// Binary digits that terms keep below the last digit of the largest one, for weights of this sum (1 to 2^21 - 1).
#[must_use]
#[inline]
pub const fn guard(total: u32) -> u32 {
    27 - (32 - total.leading_zeros())
}

/// What a kernel divides by `total` (1 to 2^21 - 1) with: `floor((2^64 - 1) / d) - 2^32`, where `d` is `total` shifted
/// up to 32 bits.
///
/// Möller and Granlund, "Improved division by invariant integers", IEEE Transactions on Computers 60 (2011).
#[must_use]
pub const fn reciprocal(total: u32) -> u32 {
    let divisor = total << total.leading_zeros();
    #[allow(clippy::cast_possible_truncation, reason = "the quotient is in 2^32..2^33")]
    let low = (u64::MAX / divisor as u64) as u32;
    low
}

/// The definition: bits of the mean of one element from pairs of a weight and the f32 bits that its rank sent.
///
/// `total` is the sum of the weights, 1 to 2^21 - 1.
#[must_use]
pub fn mean_bits(terms: impl Iterator<Item = (u32, u32)> + Clone, total: u32) -> u32 {
    let terms = terms.filter(|(weight, _)| *weight > 0);
    let top = terms.clone().map(|(_, bits)| bits >> 23 & 0xFF).max().unwrap_or(0);
    if top == 0xFF {
        return NAN;
    }
    let sum: i64 = terms.map(|(weight, bits)| term(weight, bits, top, guard(total))).sum();
    quotient(sum, total, top)
}

/// One term in units of `2^(top - 150 - guard)`; zero for zeros and subnormals.
fn term(weight: u32, bits: u32, top: u32, guard: u32) -> i64 {
    let exponent = bits >> 23 & 0xFF;
    if exponent == 0 {
        return 0;
    }
    let product = u64::from(weight) * u64::from(bits & 0x007F_FFFF | 0x0080_0000);
    let below = top - exponent;
    let magnitude = if below <= guard {
        product << (guard - below)
    } else {
        // A product has at most 45 bits: shifted by 46 and more it rounds to 0.
        let shift = (below - guard).min(46);
        (product + (1 << (shift - 1)) - 1 + (product >> shift & 1)) >> shift
    };
    let magnitude = magnitude.cast_signed();
    if bits >> 31 == 1 { -magnitude } else { magnitude }
}

/// `sum / total` in units of `2^(top - 150 - guard)`, rounded to f32.
fn quotient(sum: i64, total: u32, top: u32) -> u32 {
    if sum == 0 {
        return 0;
    }
    // Both with their leading one fixed, the dividend's at place 62: the quotient has 31 or 32 bits.
    let (up, widened) = (sum.unsigned_abs().leading_zeros() - 1, total.leading_zeros());
    let (dividend, divisor) = (sum.unsigned_abs() << up, u64::from(total << widened));
    let (quotient, rest) = (dividend / divisor, dividend % divisor);
    let drop = 40 - quotient.leading_zeros();
    let half = 1 << (drop - 1);
    let (kept, lost) = (quotient >> drop, quotient & ((1 << drop) - 1));
    let odd = kept & 1 == 1;
    let round = lost > half || lost == half && (rest > 0 || odd);
    #[allow(
        clippy::cast_possible_truncation,
        reason = "24 bits, and one more when rounded up to a power of two"
    )]
    let rounded = (kept + u64::from(round)) as u32;
    // The exponent field of the quotient's leading one.
    let field = (top + drop + widened).cast_signed() - (guard(total) + up).cast_signed();
    if field < 1 {
        return 0;
    }
    // The leading one of `rounded` is added on top, and so is the carry of rounding up.
    let sign = if sum < 0 { 1 << 31 } else { 0 };
    sign | (((field - 1).cast_unsigned() << 23) + rounded)
}

/// Where [`weighted_mean`] gets f32 bits from.
pub(super) trait Load {
    /// Puts those of elements `start..start + bits.len()` of the packet of `rank` into `bits`, at most [`PASS`].
    fn load(&self, rank: usize, start: usize, bits: &mut [u32]);
}

impl<F: Fn(usize, usize, &mut [u32])> Load for F {
    #[inline(always)]
    fn load(&self, rank: usize, start: usize, bits: &mut [u32]) {
        self(rank, start, bits);
    }
}

/// [`mean_bits`] for a whole shard, in f64.
///
/// `weights` sum up to `total`, 1 to 2^21 - 1. Packets are loaded in passes of [`PASS`] elements, once for each rank with
/// a weight. Inlined into its callers, so that each compiles it for its own instruction set.
#[inline(always)]
pub(super) fn weighted_mean(weights: &[u32], total: u32, mean: &mut [f32], packets: &impl Load) {
    let guard = guard(total);
    let total = f64::from(total);
    let ranks = (0..).zip(weights).filter(|(_, weight)| **weight > 0);
    let mut loaded = vec![0_u32; ranks.clone().count() * PASS];
    for (pass, means) in mean.chunks_mut(PASS).enumerate() {
        let (start, count) = (pass * PASS, means.len());
        let mut tops = [0_i32; PASS];
        for ((rank, _), bits) in ranks.clone().zip(loaded.chunks_exact_mut(PASS)) {
            let bits = &mut bits[..count];
            packets.load(rank, start, bits);
            for (top, bits) in tops.iter_mut().zip(&*bits) {
                *top = (*top).max((bits & EXPONENT_MASK).cast_signed());
            }
        }
        // 1.5 * 2^52 units: adding it rounds anything below 2^51 units to whole ones, ties to even.
        let mut rounds = [0_f64; PASS];
        for (round, top) in rounds.iter_mut().zip(&tops) {
            let field = (*top >> 23) + (1023 + 52 - 150) - guard.cast_signed();
            *round = f64::from_bits(u64::from(field.cast_unsigned() << 20 | 1 << 19) << 32);
        }
        let mut sums = [0_f64; PASS];
        for ((_, weight), bits) in ranks.clone().zip(loaded.chunks_exact(PASS)) {
            let weight = f64::from(*weight);
            for ((sum, round), bits) in sums.iter_mut().zip(&rounds).zip(&bits[..count]) {
                let normal = if bits & EXPONENT_MASK == 0 { 0 } else { *bits };
                *sum += (weight * f64::from(f32::from_bits(normal)) + round) - round;
            }
        }
        for ((mean, sum), top) in means.iter_mut().zip(&sums).zip(&tops) {
            // A quotient is never so close beside a number of 25 bits that rounding to f64 first would put it there:
            // the distance is at least 2^-51 of it.
            let exact = *sum / total;
            #[allow(clippy::cast_possible_truncation, reason = "the one rounding of the definition")]
            let rounded = exact as f32;
            let rounded = if exact.abs() < f64::from(f32::MIN_POSITIVE) { 0.0 } else { rounded };
            *mean = if *top == EXPONENT_MASK.cast_signed() { f32::from_bits(NAN) } else { rounded };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// SplitMix64, so that a failure comes back.
    struct Random(u64);

    impl Random {
        fn below(&mut self, bound: u64) -> u32 {
            self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
            let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
            let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
            u32::try_from((z ^ (z >> 31)) % bound).unwrap_or(u32::MAX)
        }

        /// f32 bits, most within a few binades of `exponent`, where terms meet and cancel.
        fn bits(&mut self, exponent: u32) -> u32 {
            let spread = [1, 2, 9, 60, 256][self.below(5) as usize];
            let field = (exponent + self.below(spread)).min(255);
            let mantissa = match self.below(4) {
                0 => [0, 1, 0x40_0000, 0x7F_FFFF][self.below(4) as usize],
                1 => self.below(1 << 23) & !0xFFF,
                _ => self.below(1 << 23),
            };
            self.below(2) << 31 | field << 23 | mantissa
        }

        fn weights(&mut self, ranks: usize) -> Vec<u32> {
            let most = [1, 2, 8, 1000, (1 << 21) / ranks as u64][self.below(5) as usize];
            let mut weights: Vec<u32> = (0..ranks).map(|_| self.below(most)).collect();
            let first = self.below(ranks as u64) as usize;
            weights[first] = weights[first].max(1);
            weights
        }
    }

    /// Bits of what `weighted_mean` makes of packets of f32.
    fn means(packets: &[Vec<u32>], weights: &[u32]) -> Vec<u32> {
        let mut mean = vec![7.0; packets[0].len()];
        weighted_mean(
            weights,
            weights.iter().sum(),
            &mut mean,
            &|rank: usize, start: usize, bits: &mut [u32]| {
                bits.copy_from_slice(&packets[rank][start..start + bits.len()]);
            },
        );
        mean.into_iter().map(f32::to_bits).collect()
    }

    fn defined(packets: &[Vec<u32>], weights: &[u32], element: usize) -> u32 {
        let terms = weights.iter().zip(packets).map(|(weight, packet)| (*weight, packet[element]));
        mean_bits(terms, weights.iter().sum())
    }

    #[test]
    fn the_mean_in_f64_is_the_definition_for_any_weights_exponents_and_lengths() {
        let mut random = Random(20_261_129);
        for round in 0..3000 {
            let ranks = 1 + random.below(9) as usize;
            let weights = random.weights(ranks);
            let elements = [1, 7, 40, PASS - 1, PASS, PASS + 1]
                [if round % 100 == 0 { random.below(6) } else { random.below(3) } as usize];
            let exponent = [0, 1, 30, 120, 127, 200, 250][random.below(7) as usize];
            let packets: Vec<Vec<u32>> =
                (0..ranks).map(|_| (0..elements).map(|_| random.bits(exponent)).collect()).collect();
            for (element, got) in means(&packets, &weights).into_iter().enumerate() {
                let want = defined(&packets, &weights, element);
                let column: Vec<u32> = packets.iter().map(|packet| packet[element]).collect();
                assert_eq!(got, want, "round {round}, weights {weights:?}, bits {column:x?}");
            }
        }
    }

    #[test]
    fn the_mean_does_not_depend_on_the_order_and_equal_ranks_agree_on_what_they_sent() {
        let mut random = Random(7);
        for _ in 0..2000 {
            let ranks = 2 + random.below(8) as usize;
            let (mut weights, exponent) = (random.weights(ranks), random.below(250));
            let mut packets: Vec<Vec<u32>> = (0..ranks).map(|_| vec![random.bits(exponent)]).collect();
            let want = means(&packets, &weights);
            let by = random.below(ranks as u64) as usize;
            weights.rotate_left(by);
            packets.rotate_left(by);
            assert_eq!(means(&packets, &weights), want, "weights {weights:?}, {packets:x?}");
            weights.reverse();
            packets.reverse();
            assert_eq!(means(&packets, &weights), want, "weights {weights:?}, {packets:x?}");

            let same = vec![packets[0].clone(); ranks];
            let sent = f32::from_bits(packets[0][0]);
            let want = if sent.is_normal() {
                packets[0][0]
            } else if sent.is_finite() {
                0
            } else {
                NAN
            };
            assert_eq!(means(&same, &weights), [want], "weights {weights:?}, {packets:x?}");
        }
    }

    #[test]
    fn a_mean_of_like_magnitudes_is_the_exact_one_correctly_rounded() {
        let mut random = Random(11);
        for _ in 0..20_000 {
            let ranks = 1 + random.below(8) as usize;
            let (weights, exponent) = (random.weights(ranks), 1 + random.below(240));
            // Six binades are always within the guard: nothing is lost before the division.
            let packets: Vec<Vec<u32>> = (0..ranks)
                .map(|_| {
                    vec![random.below(2) << 31 | (exponent + random.below(7)) << 23 | random.below(1 << 23)]
                })
                .collect();
            let total: u32 = weights.iter().sum();
            let got = defined(&packets, &weights, 0);
            let signed = |bits: u32| {
                let mantissa = i128::from(bits & 0x7F_FFFF | 0x80_0000);
                let shifted = mantissa << ((bits >> 23 & 0xFF) - exponent);
                if bits >> 31 == 1 { -shifted } else { shifted }
            };
            // In units of 2^(exponent - 150).
            let sum: i128 =
                weights.iter().zip(&packets).map(|(w, packet)| i128::from(*w) * signed(packet[0])).sum();
            if got << 1 == 0 {
                // Exactly zero, or below the normal numbers.
                let least = sum.unsigned_abs() << exponent < u128::from(total) << 24;
                assert!(got == 0 && (sum == 0 || exponent < 24 && least), "{weights:?} {packets:x?}");
                continue;
            }
            // |sum / total - got| <= half a unit in the last place of got, all times 2 * total and exact.
            let field = (got >> 23 & 0xFF).cast_signed() - exponent.cast_signed();
            let wide = 40;
            let ulp = 1_i128 << (wide + field);
            let mantissa = i128::from(got & 0x7F_FFFF | 0x80_0000) * ulp * i128::from(total);
            let distance = ((sum << wide) - if got >> 31 == 1 { -mantissa } else { mantissa }).abs();
            let half = ulp * i128::from(total);
            // At a power of two the numbers below lie twice as close.
            assert!(2 * distance <= half, "{weights:?} {packets:x?} gives {got:#x}");
            assert!(
                2 * distance < half || got & 1 == 0,
                "tie to odd: {weights:?} {packets:x?} gives {got:#x}"
            );
        }
    }

    #[test]
    fn the_least_and_largest_means_stay_normal_or_become_plus_zero() {
        let mean = |bits: &[u32], weights: &[u32]| {
            let packets: Vec<Vec<u32>> = bits.iter().map(|bits| vec![*bits]).collect();
            means(&packets, weights)[0]
        };
        let (least, most) = (0x0080_0000, 0x7F7F_FFFF);
        assert_eq!(mean(&[most, most, most], &[1, 1000, 5]), most);
        assert_eq!(mean(&[most | 1 << 31, most], &[1, 1]), 0);
        assert_eq!(mean(&[least, least | 1 << 31], &[2, 1]), 0, "a third of the least number");
        // Just below the least normal number, where f32 with all its subnormals would round up to it: zero as well.
        assert_eq!(mean(&[least, least | 1], &[1, (1 << 21) - 2]), least + 1);
        assert_eq!(mean(&[least, 0], &[(1 << 21) - 2, 1]), 0);
        assert_eq!(mean(&[least + 2, 0], &[1, 1]), 0);
        assert_eq!(mean(&[2 * least, 0], &[1, 1]), least);
        assert_eq!(mean(&[1 << 31, 1 << 31], &[1, 1]), 0, "minus zero");
        assert_eq!(mean(&[0x807F_FFFF, 0x7F_FFFF], &[1, 3]), 0, "subnormals");
        assert_eq!(mean(&[0x7F80_0000, 0], &[0, 1]), 0, "a rank without samples");
        assert_eq!(mean(&[0xFF80_0000, 0x7F80_0000], &[1, 1]), NAN);
    }
}
