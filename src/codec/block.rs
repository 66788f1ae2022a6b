//! `block8` and `block4`: integer codes with one scale per block (ZeRO++ qgZ and qwZ, arXiv 2306.10209).
//!
//! # What
//!
//! ```text
//! top   = largest exponent of the block's finite elements      unit = 2^(top - 147)
//! h     = round_half_even(g / unit)                             below 2^22
//! scale = the nearest (4 + m) * 2^e to absmax(h) / 7.5           2 bits: to / 2; 8 bits: the next above / 128
//! code  = clamp(round_half_even(h / scale), -8, 7)               exact quotient of integers
//! mean  = sum_j(weight_j * code_j * scale_j) / sum_j(weight_j)   weight 0: not used
//! ```
//!
//! [`Format`] is what all codecs with a scale per block share: [`loco_block`](super::loco_block) adds error feedback
//! before and after. Two bits divide by 2 and not by 1.5: their codes are -2..=1, and on Gaussian data the squared error
//! is 0.17 of the norm instead of 0.26. Eight bits take the next scale above: the nearest would clip the largest element by
//! up to 16 steps, which costs 5.6 times the squared error (measured on Gaussian data).
//!
//! A block whose scale would be below `5 * 2^base_log2` is sent as zero; one whose scale would be above
//! `7 * 2^(63 + base_log2)` is clipped, as `saturated` counts. So is, as a rule, the code 8 of a block's largest
//! element, when its scale was rounded down and it is positive. Non-finite elements send code 0 and are counted.
//!
//! # Wire layout
//!
//! A unit is 4 blocks: one word with their scale bytes (block `k` in bits `8k..`, see [`scale`]), then the
//! codes of all its elements, `32 / bits` to a word, element `i` in bits `bits * i..`, two's complement. What the last
//! unit has less of elements, it has less of words at its end; bits behind the last element are 0 when written and not
//! looked at when read. Elements that fill the last unit up are zero and change nothing. Every word has a meaning, so
//! that no packet of the right length is malformed.
//!
//! # Exactness
//!
//! [`quantize`] is the definition of the codes, in `i32` from the gradient's bits on; subnormals count as zero. In the mean
//! each rank's code times weight and scale is shifted to the largest scale of the block and rounded once (ties to even), so
//! high that this costs at most half a unit of [`scale::headroom`] per rank, and summed in `i32`: in any order the same. Then
//! come two roundings, of the sum to f32 and of its product with the inverse of the weights.
//!
//! # Cost
//!
//! 4.125 bits per element for `block4` and 8.125 for `block8` with blocks of 64. `encode` reads 4 bytes per element and
//! writes a half or one; `average` reads that per rank and writes 4.

use super::fixed::is_finite;
use super::method::set;
use super::scale::{self, Term};
use super::state::Units;
use super::{
    AverageError, CHUNK, CodecId, ConfigError, Gradient, Method, Parameter, StateError, Stats, Step, Unit,
};

pub(super) mod fast;
mod format;
mod pack;

pub(super) use format::at_least_1;
pub use format::{BLOCKS, Bits, Format};
use pack::{pack, unpack};

/// The definition: quantizes one block. `h` in units of `2^`[`scale::unit_log2`]`(top)` goes in, and what the codes lose
/// of it comes out.
///
/// `h` and `codes` have the same length, and every `|h|` is below 2^22. The result is the scale byte, and how many codes
/// the clamp changed.
#[must_use]
pub fn quantize(format: &Format, top: i32, h: &mut [i32], codes: &mut [i8]) -> (u8, u32) {
    codes.fill(0);
    let absmax = h.iter().fold(0, |most, h| most.max(h.unsigned_abs()));
    if absmax == 0 {
        return (0, 0);
    }
    let offset = scale::offset(top, format.base_log2);
    let byte = scale::to_byte(scale::choose(absmax, format.bits.divisor()), offset);
    if byte == 0 {
        return (0, 0);
    }
    let index = scale::to_index(byte, offset);
    let most = format.bits.largest_code().cast_signed();
    let mut saturated = 0;
    for (h, slot) in h.iter_mut().zip(codes) {
        let magnitude = scale::quotient(h.unsigned_abs(), index).cast_signed();
        let rounded = if *h < 0 { -magnitude } else { magnitude };
        let code = rounded.clamp(-most, most - 1);
        // No overflow and no growth: the code lies between 0 and the quotient's nearest integer.
        *h -= code * scale::units(index);
        saturated += u32::from(rounded != code);
        #[allow(clippy::cast_possible_truncation, reason = "clamped to a byte or less")]
        let narrow = code as i8;
        *slot = narrow;
    }
    (byte, saturated)
}

/// Quantizes and packs one chunk.
///
/// `packet` holds [`Format::packet_words`] words. Shader: `shaders/block/encode.wgsl`.
/// Source: arXiv 2306.10209, sections 3.1 and 3.3, with a scale of one byte.
///
/// # Panics
///
/// If the packet's length does not fit the gradient's.
pub fn encode(format: &Format, gradient: Gradient<'_>, packet: &mut [u32]) -> Stats {
    let mut h = vec![0.0; format.block.into()];
    encode_units(format, gradient, packet, |_, values, codes| fast::encode(format, values, &mut h, codes))
}

/// The definition: the codes of one block, its scale byte, and how many codes the clamp changed. `h` is room to work in.
fn encode_block(format: &Format, values: &[f32], h: &mut [i32], codes: &mut [i8]) -> (u8, u32) {
    let top = values.iter().map(|value| scale::exponent(value.to_bits())).fold(0, i32::max);
    for (h, value) in h.iter_mut().zip(values) {
        *h = scale::fixed(value.to_bits(), top);
    }
    quantize(format, top, h, codes)
}

/// Cuts a gradient into blocks, the last unit filled up with zeros, and packs what `block` makes of each.
///
/// `block` gets the number of the block, its values and room for its codes, and gives the scale byte and the number of
/// saturated codes.
pub(super) fn encode_units(
    format: &Format,
    gradient: Gradient<'_>,
    packet: &mut [u32],
    mut block: impl FnMut(usize, &[f32], &mut [i8]) -> (u8, u32),
) -> Stats {
    let (words, expected) = (packet.len(), format.packet_words(gradient.len()));
    assert_eq!(
        words,
        expected,
        "packet of {words} words for {} elements, which need {expected}",
        gradient.len()
    );
    let Unit { elements, words, .. } = format.unit(0);
    let size = usize::from(format.block);
    let (mut codes, mut filled) = (vec![0_i8; elements], vec![0.0_f32; elements]);
    let mut stats = Stats::default();
    gradient.for_each_chunk((CHUNK / elements).max(1) * elements, |start, values| {
        let first = start / elements;
        let packet = &mut packet[first * words..];
        for ((unit, values), packet) in (first..).zip(values.chunks(elements)).zip(packet.chunks_mut(words)) {
            let count = values.iter().fold(0_u32, |n, value| n + u32::from(!is_finite(value.to_bits())));
            stats.nonfinite += u64::from(count);
            let values = if values.len() == elements {
                values
            } else {
                filled.fill(0.0);
                filled[..values.len()].copy_from_slice(values);
                &filled
            };
            packet[0] = 0;
            let blocks = values.chunks(size).zip(codes.chunks_mut(size));
            for (k, (values, codes)) in blocks.enumerate() {
                let (byte, saturated) = block(unit * BLOCKS + k, values, codes);
                packet[0] |= u32::from(byte) << (8 * k);
                stats.saturated += u64::from(saturated);
            }
            pack(format.bits, &codes, &mut packet[1..]);
        }
    });
    stats
}

/// The weighted mean of one packet per rank into `mean`.
///
/// Every packet has [`Format::packet_words`]`(mean.len())` words. `weights` are samples per rank; 0 is allowed as long as
/// the sum is positive. The bits do not depend on the order of the packets. Shader: `shaders/block/average.wgsl`.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, or `8 * sum(weights) >= 2^24`.
pub fn average(
    format: &Format,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    let total = AverageError::check(packets, weights, mean.len(), format.packet_words(mean.len()))?;
    let headroom = scale::headroom(total, format.bits.largest_code());
    let factor = scale::mean_scale(total, format.base_log2, headroom);
    let Unit { elements, words, .. } = format.unit(0);
    let size = usize::from(format.block);
    let (mut codes, mut sums) = (vec![0_i8; elements], vec![0_i32; elements]);
    let byte = |packet: &[u32], unit: usize, k: usize| packet[unit * words].to_le_bytes()[k];
    for (unit, means) in mean.chunks_mut(elements).enumerate() {
        let references: [u32; BLOCKS] = std::array::from_fn(|k| {
            let bytes = packets.iter().map(|packet| byte(packet, unit, k));
            scale::reference(bytes.zip(weights.iter().copied()))
        });
        sums.fill(0);
        for (packet, weight) in packets.iter().zip(weights).filter(|(_, weight)| **weight > 0) {
            let end = packet.len().min((unit + 1) * words);
            unpack(format.bits, &packet[unit * words + 1..end], &mut codes);
            for (k, (sums, codes)) in sums.chunks_mut(size).zip(codes.chunks(size)).enumerate() {
                let term = Term::new(byte(packet, unit, k), *weight, references[k], headroom);
                for (sum, code) in sums.iter_mut().zip(codes) {
                    *sum += term.of(i32::from(*code));
                }
            }
        }
        for ((means, sums), reference) in means.chunks_mut(size).zip(sums.chunks(size)).zip(references) {
            for (mean, sum) in means.iter_mut().zip(sums) {
                *mean = scale::mean(*sum, factor, reference);
            }
        }
    }
    Ok(())
}

/// Whether a state of [`BLOCKS`] scale bytes and then a residual byte per element in each unit is 0 behind the last
/// element. Any other byte is read alike everywhere.
pub(super) fn check_state(unit: Unit, elements: usize, words: &[u32]) -> Result<(), StateError> {
    let block = unit.elements / BLOCKS;
    let units = Units::new(unit, elements, words);
    units.check_behind(|count| count.div_ceil(block)..BLOCKS)?;
    units.check_behind(|count| BLOCKS + count..BLOCKS + unit.elements)
}

/// Parameters of `block8` ([`Block8`]) and `block4` ([`Block4`]), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Config<const BITS: u8> {
    /// See [`Format::block`].
    pub block: u16,
    /// See [`Format::base_log2`].
    pub base_log2: i8,
}

/// Parameters of `block8`.
pub type Block8 = Config<8>;

/// Parameters of `block4`.
pub type Block4 = Config<4>;

impl<const BITS: u8> Default for Config<BITS> {
    fn default() -> Self {
        Self { block: 64, base_log2: scale::BASE_LOG2_DEFAULT }
    }
}

impl<const BITS: u8> Config<BITS> {
    const ID: CodecId = match BITS {
        4 => CodecId::Block4,
        8 => CodecId::Block8,
        _ => panic!("no codec has so many bits"),
    };

    /// The format of its packets.
    #[must_use]
    pub const fn format(&self) -> Format {
        let bits = if BITS == 4 { Bits::Four } else { Bits::Eight };
        Format { bits, block: self.block, base_log2: self.base_log2 }
    }
}

impl<const BITS: u8> Method for Config<BITS> {
    fn id(&self) -> CodecId {
        Self::ID
    }

    fn validate(&self) -> Result<(), ConfigError> {
        self.format().validate(Self::ID)
    }

    fn unit(&self) -> Unit {
        self.format().unit(0)
    }

    fn packet_words(&self, elements: usize) -> usize {
        self.format().packet_words(elements)
    }

    fn parameters(&self) -> Vec<Parameter> {
        vec![
            Parameter { name: "block", value: self.block.into() },
            Parameter { name: "base_log2", value: self.base_log2.into() },
        ]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match name {
            "block" => set(&mut self.block, value),
            "base_log2" => set(&mut self.base_log2, value),
            _ => false,
        }
    }

    fn encode(&self, _: Step, gradient: Gradient<'_>, _: &mut [u32], packet: &mut [u32]) -> Stats {
        encode(&self.format(), gradient, packet)
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        _: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        average(&self.format(), packets, weights, mean)
    }
}
