//! LoCo: 4-bit codes with a fixed power-of-two scale and 8-bit error feedback (arXiv 2407.04480).
//!
//! # What
//!
//! ```text
//! fixed    = round_half_even(g * s * 2^12)                   fixed point, 12 fraction bits, at most 64 codes
//! h        = fixed + residual * 2^12 / 2^residual_scale_log2  compensate
//! code     = clamp(round_half_even(h / 2^12), -8, 7)          4 bits
//! lost     = h - code * 2^12                                  against the compensated h, with the own code
//! residual = reset step ? 0 : clamp(round_half_even(average of old residual and lost), -128, 127)
//! mean     = sum_j(weight_j * code_j) / (s * sum_j(weight_j))
//! ```
//!
//! with `s = 2^scale_log2`. The residual is one signed byte per element and rank; it starts at 0 and never
//! travels. `weight_j` are the samples of rank `j`, because mixed fleets run unequal batches. Non-finite
//! elements send code 0, clear their residual and are counted, never hidden.
//!
//! # Wire layout
//!
//! `elements.div_ceil(8)` words of `u32`; element `i` in bits `4(i%8)..4(i%8)+4` of word `i/8`, two's
//! complement; unused bits of the last word are 0 when written and not looked at when read.
//!
//! # Exactness
//!
//! [`encode_element`] is the definition, in `i32` from the gradient's bits on; subnormals count as zero. The
//! mean is an exact integer sum (the weights are bounded so that f32 holds it too, in any order), then one f32
//! multiply by [`Config::mean_scale`]. All [`variants`] and the kernels in `shaders/loco` give the same bits.
//!
//! # Cost
//!
//! `encode` moves 6.5 bytes per element (4 gradient, 1 + 1 residual, 0.5 packet); `average` reads half a byte
//! per element and rank and writes 4. Figures: `benches/README.md`.

use super::bits::{CODES_PER_WORD, place_code, unpack_code};
use super::fixed::{FRACTION_BITS, fixed, is_finite, rne_shift};
use super::state::Units;
use super::{CHUNK, Gradient, StateError, Stats, Step, Unit};

#[cfg(target_arch = "x86_64")]
mod avx2;
mod blocked;
mod config;

pub use super::AverageError;
pub use config::{Config, ConfigError};

/// One packet word: 8 codes, with 8 bytes of residual.
pub const UNIT: Unit = Unit { elements: CODES_PER_WORD, words: 1, state_words: 2 };

/// Words of a packet of `elements` codes.
#[must_use]
pub const fn packet_words(elements: usize) -> usize {
    elements.div_ceil(CODES_PER_WORD)
}

/// Whether the residual bytes behind the last element are 0: a kernel would encode them as elements. Any other byte is one
/// that an encoder may leave.
pub(super) fn check_state(elements: usize, words: &[u32]) -> Result<(), StateError> {
    Units::new(UNIT, elements, words).check_behind(|count| count..UNIT.elements)
}

/// Compensates, quantizes and packs one chunk; updates `residual` in place.
///
/// `gradient` and `residual` have the same length (0 is allowed); `packet` holds [`packet_words`] words, the
/// last one zero-filled. Runs the fastest of the [`variants`]; what it computes is [`encode_element`].
/// Shader: `shaders/loco/encode.wgsl`. Source: arXiv 2407.04480, eqs. 2, 3, 5, 7.
///
/// # Panics
///
/// If a length does not fit the gradient's, or `config` is not [valid](Config::validate).
pub fn encode(
    config: &Config,
    step: Step,
    gradient: Gradient<'_>,
    residual: &mut [i8],
    packet: &mut [u32],
) -> Stats {
    let variant = fastest();
    if let Gradient::F32(gradient) = gradient {
        return (variant.encode)(config, step, gradient, residual, packet);
    }
    check_encode(config, gradient.len(), residual, packet);
    let mut stats = Stats::default();
    gradient.for_each_chunk(CHUNK, |start, values| {
        let residual = &mut residual[start..start + values.len()];
        let words = start / CODES_PER_WORD..(start + values.len()).div_ceil(CODES_PER_WORD);
        stats += (variant.encode)(config, step, values, residual, &mut packet[words]);
    });
    stats
}

/// The weighted mean of one packet per rank into `mean`.
///
/// Every packet has [`packet_words`]`(mean.len())` words. `weights` are samples per rank; 0 is allowed for a
/// rank without samples, as long as the sum is positive. The bits do not depend on the order of the packets.
/// Shader: `shaders/loco/average.wgsl`. Source: arXiv 2407.04480, eq. 6, with weights.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, `8 * sum(weights) >= 2^24`, or `config`
/// is out of range.
pub fn average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    (fastest().average)(config, packets, weights, mean)
}

/// What [`encode_element`] gives for one element.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Element {
    /// The code to send, -8..=7.
    pub code: i32,
    /// The residual to keep.
    pub residual: i8,
    /// The gradient was NaN or infinite.
    pub nonfinite: bool,
    /// The clamp to -8..=7 changed the code.
    pub saturated: bool,
}

/// The definition: one element's gradient bits and stored residual into its code and new residual.
#[must_use]
#[inline]
pub fn encode_element(config: &Config, reset: bool, bits: u32, residual: i8) -> Element {
    if !is_finite(bits) {
        return Element { code: 0, residual: 0, nonfinite: true, saturated: false };
    }
    let old = i32::from(residual);
    let fixed = fixed(bits, config.scale_log2);
    let h = fixed + (old << (FRACTION_BITS - u32::from(config.residual_scale_log2)));
    let rounded = rne_shift(h, FRACTION_BITS);
    let code = rounded.clamp(-8, 7);
    let lost = h - (code << FRACTION_BITS);
    // In units of 2^-20 residual steps; below 2^31 for every valid configuration (tested at the worst case).
    let averaged = i32::from(config.decay) * (old << FRACTION_BITS) + config.gain() * lost;
    let new = if reset { 0 } else { rne_shift(averaged, FRACTION_BITS + 8).clamp(-128, 127) };
    #[allow(clippy::cast_possible_truncation, reason = "clamped to a byte one line earlier")]
    let residual = new as i8;
    Element { code, residual, nonfinite: false, saturated: rounded != code }
}

/// One variant of [`encode`], which takes f32.
pub type EncodeFn = fn(&Config, Step, &[f32], &mut [i8], &mut [u32]) -> Stats;

/// [`average`] as an argument.
pub type AverageFn = fn(&Config, &[&[u32]], &[u32], &mut [f32]) -> Result<(), AverageError>;

/// One implementation of this codec on this CPU; all give the same bits.
#[derive(Clone, Copy, Debug)]
#[non_exhaustive]
pub struct Variant {
    /// `definition`, `blocked` (what the compiler vectorises for the target's baseline) or `avx2`.
    pub name: &'static str,
    /// Its [`encode`].
    pub encode: EncodeFn,
    /// Its [`average`].
    pub average: AverageFn,
}

const DEFINITION: Variant =
    Variant { name: "definition", encode: encode_by_element, average: average_by_element };
const BLOCKED: Variant =
    Variant { name: "blocked", encode: blocked::encode_blocked, average: blocked::average_blocked };

/// Every variant that this CPU runs, slowest first: the definition, and last the one that [`encode`] takes.
#[must_use]
pub fn variants() -> Vec<Variant> {
    let mut variants = vec![DEFINITION, BLOCKED];
    let fastest = fastest();
    if fastest.name != BLOCKED.name {
        variants.push(fastest);
    }
    variants
}

/// The variant that [`encode`] and [`average`] run on this CPU.
#[must_use]
pub fn fastest() -> Variant {
    #[cfg(target_arch = "x86_64")]
    if let Some(variant) = avx2::variant() {
        return variant;
    }
    BLOCKED
}

/// [`encode_element`] over a chunk, one by one.
fn encode_by_element(
    config: &Config,
    step: Step,
    gradient: &[f32],
    residual: &mut [i8],
    packet: &mut [u32],
) -> Stats {
    check_encode(config, gradient.len(), residual, packet);
    let reset = config.is_reset(step);
    let mut stats = Stats::default();
    let groups = gradient.chunks(CODES_PER_WORD).zip(residual.chunks_mut(CODES_PER_WORD));
    for ((values, residuals), word) in groups.zip(packet) {
        *word = 0;
        for (index, (value, residual)) in (0..).zip(values.iter().zip(residuals)) {
            let element = encode_element(config, reset, value.to_bits(), *residual);
            *word |= place_code(element.code, index);
            *residual = element.residual;
            stats.nonfinite += u64::from(element.nonfinite);
            stats.saturated += u64::from(element.saturated);
        }
    }
    stats
}

/// The definition of the mean, element by element.
fn average_by_element(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    let scale = check_average(config, packets, weights, mean)?;
    for (word, means) in mean.chunks_mut(CODES_PER_WORD).enumerate() {
        for (index, mean) in (0..).zip(means) {
            let pairs = packets.iter().zip(weights);
            // Below 2^24 in magnitude, and the weights below 2^21: checked, so nothing wraps here.
            let sum: i32 = pairs.map(|(p, weight)| weight.cast_signed() * unpack_code(p[word], index)).sum();
            *mean = sum as f32 * scale;
        }
    }
    Ok(())
}

/// Panics with both numbers if the caller's slices or configuration do not fit.
fn check_encode(config: &Config, elements: usize, residual: &[i8], packet: &[u32]) {
    assert_eq!(residual.len(), elements, "residual of {} bytes for {elements} elements", residual.len());
    let (words, expected) = (packet.len(), packet_words(elements));
    assert_eq!(words, expected, "packet of {words} words for {elements} elements, which need {expected}");
    if let Err(error) = config.validate() {
        panic!("caller did not validate the configuration: {error}");
    }
}

/// Checks the arguments of a mean; the result is the factor that turns the weighted sum of codes into it.
fn check_average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &[f32],
) -> Result<f32, AverageError> {
    config.validate()?;
    let total = AverageError::check(packets, weights, mean.len(), packet_words(mean.len()))?;
    Ok(config.mean_scale(total))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use std::panic::catch_unwind;

    use super::*;

    /// Every configuration at a corner of its range.
    fn extreme_configs() -> impl Iterator<Item = Config> {
        let all = [-64, -19, 0, 19, 64].into_iter().flat_map(|scale_log2| {
            (0..=6).flat_map(move |residual_scale_log2| {
                (0..=255).map(move |decay| Config {
                    scale_log2,
                    residual_scale_log2,
                    decay,
                    ..Config::default()
                })
            })
        });
        all.filter(|config| config.validate().is_ok())
    }

    /// `encode_element` in 64 bits: what it would be if nothing could overflow.
    fn residual_in_64_bits(config: &Config, bits: u32, residual: i8) -> i64 {
        let round = |v: i64, n: u32| (v + (1 << (n - 1)) - 1 + ((v >> n) & 1)) >> n;
        let old = i64::from(residual);
        let h = i64::from(fixed(bits, config.scale_log2)) + (old << (12 - config.residual_scale_log2));
        let lost = h - (round(h, 12).clamp(-8, 7) << 12);
        let decay = i64::from(config.decay);
        let averaged = decay * (old << 12) + (256 - decay) * (lost << config.residual_scale_log2);
        round(averaged, 20).clamp(-128, 127)
    }

    #[test]
    fn no_valid_configuration_overflows_at_the_largest_gradient_and_residual() {
        // Debug builds panic on overflow, release builds would give another residual.
        for config in extreme_configs() {
            for bits in [f32::MAX, f32::MIN, 0.0, 1.0, -1.0].map(f32::to_bits) {
                for residual in [-128, -127, -1, 0, 1, 127] {
                    let element = encode_element(&config, false, bits, residual);
                    let want = residual_in_64_bits(&config, bits, residual);
                    assert_eq!(
                        i64::from(element.residual),
                        want,
                        "{config:?} bits {bits:#x} residual {residual}"
                    );
                }
            }
        }
    }

    #[test]
    fn a_code_counts_as_saturated_exactly_when_the_clamp_changed_it() {
        let config = Config { scale_log2: 0, ..Config::default() };
        for variant in variants() {
            // 72 elements: one block of a vectorised variant and its remainder.
            for (value, saturated) in [(7.49, 0), (7.5, 1), (-8.5, 0), (-8.51, 1), (1.0e30, 1), (0.0, 0)] {
                let mut packet = [0; 9];
                let stats = (variant.encode)(&config, Step::FIRST, &[value; 72], &mut [0; 72], &mut packet);
                assert_eq!(
                    stats,
                    Stats { nonfinite: 0, saturated: 72 * saturated },
                    "{} {value}",
                    variant.name
                );
            }
        }
    }

    #[test]
    fn slices_that_do_not_fit_panic_with_both_numbers_in_every_variant() {
        for variant in variants() {
            for (residual, packet, message) in [
                (9, 2, "residual of 9 bytes for 10"),
                (10, 1, "packet of 1 words for 10"),
                (10, 3, "which need 2"),
            ] {
                let panic = catch_unwind(|| {
                    let (mut residual, mut packet) = (vec![0; residual], vec![0; packet]);
                    (variant.encode)(&Config::default(), Step::FIRST, &[0.0; 10], &mut residual, &mut packet)
                });
                let text = *panic.unwrap_err().downcast::<String>().unwrap();
                assert!(text.contains(message), "{}: {text}", variant.name);
            }
        }
    }

    #[test]
    fn a_packet_of_the_wrong_length_is_an_error_that_names_it_in_every_variant() {
        for variant in variants() {
            let got = (variant.average)(&Config::default(), &[&[0, 0], &[0]], &[1, 1], &mut [0.0; 9]);
            let want = AverageError::PacketLength { index: 1, words: 1, expected: 2, elements: 9 };
            assert_eq!(got, Err(want), "{}", variant.name);
            let config = Config { scale_log2: 65, ..Config::default() };
            let got = (variant.average)(&config, &[&[0]], &[1], &mut [0.0; 8]);
            assert_eq!(
                got,
                Err(AverageError::Config(ConfigError::Scale { scale_log2: 65 }.into())),
                "{}",
                variant.name
            );
        }
    }

    #[test]
    fn an_empty_chunk_is_nothing_to_encode_or_average() {
        for variant in variants() {
            let stats = (variant.encode)(&Config::default(), Step::FIRST, &[], &mut [], &mut []);
            assert_eq!(stats, Stats::default(), "{}", variant.name);
            assert_eq!(
                (variant.average)(&Config::default(), &[&[]], &[1], &mut []),
                Ok(()),
                "{}",
                variant.name
            );
        }
    }
}
