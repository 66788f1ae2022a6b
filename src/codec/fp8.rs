//! 8-bit floats, E4M3 or E5M2, with one power-of-two scale per block (formats: OCP, arXiv 2209.05433).
//!
//! # What
//!
//! ```text
//! top   = exponent of the largest magnitude of a block
//! byte  = top, or one more where the largest would round beyond the format's largest number; 0: all elements are 0
//! code  = nearest number of the format to g * 2^(127 + last - byte), ties to even
//! value = code * 2^(byte - 127 - last)
//! mean  = sum_j(weight_j * value_j) / sum_j(weight_j)
//! ```
//!
//! where `last` is the exponent of the format's largest number (8 for E4M3, 15 for E5M2) and exponents are those of the
//! f32 bits (1 to 254). So the largest magnitude of a block lands in the top binade of the format, and no
//! code overflows; only a number above 1.75 * 2^127 has no exponent left above it, is clamped, and counts as
//! saturated. NaN and infinity send 0, are counted and change no other element; subnormals count as 0. There is no
//! state.
//!
//! # Wire layout
//!
//! A unit is 4 blocks of `block` elements in `1 + block` words: first the four bytes, that of block `k` in bits
//! `8k..`, then the codes, element `i` of the unit in bits `8(i%4)..` of word `1 + i/4`. A shorter tail has its first
//! word and the words of its elements. Zero is code 0 whatever its sign. Unused bits, and the bytes of blocks without
//! an element, are 0 when written and not looked at when read. A byte of 255, and a code of NaN or infinity, are
//! [`AverageError::Malformed`].
//!
//! # Exactness
//!
//! Integers from the bits on. The mean is [`mean`](super::mean::mean_bits) of the values as f32, where one below the
//! normal numbers, which no encoder sends, counts as zero.
//!
//! # Cost
//!
//! 8 + 8 / `block` bits per element. `encode` reads 4 bytes per element twice (from the cache the second time) and
//! writes 1; `average` reads 1 per element and rank, and writes 4.

use super::block::at_least_1;
use super::convert::{E4M3, E5M2, Format, narrow_magnitude, widen};
use super::fixed::is_finite;
use super::method::set;
use super::{AverageError, CHUNK, CodecId, ConfigError, Gradient, Method, Parameter, Stats, Step, Unit};

mod fast;

/// Blocks of a unit.
pub const BLOCKS: usize = 4;

/// Elements of the largest block.
pub const BLOCK_MAX: usize = 1024;

/// The largest byte of a block.
pub const EXPONENT_MAX: u32 = 254;

/// Which 8 bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Kind {
    /// 4 bits of exponent, 3 of mantissa: 5 % of rounding error at most, over 18 binades.
    #[default]
    E4M3,
    /// 5 bits of exponent, 2 of mantissa: 11 % of rounding error at most, over 32 binades.
    E5M2,
}

impl Kind {
    /// Its bits.
    #[must_use]
    pub const fn format(self) -> Format {
        match self {
            Self::E4M3 => E4M3,
            Self::E5M2 => E5M2,
        }
    }

    /// The exponent of its largest number.
    #[must_use]
    pub const fn last(self) -> i32 {
        let format = self.format();
        (format.largest() as i32 >> format.mantissa_bits) - format.bias()
    }
}

/// Parameters of [`fp8`](self), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Which 8 bits. Default E4M3. As a parameter `exponent_bits`, 4 or 5.
    pub kind: Kind,
    /// Elements that share a scale. A multiple of 8, range 32..=1024, default 128.
    pub block: u16,
}

impl Default for Config {
    fn default() -> Self {
        Self { kind: Kind::E4M3, block: 128 }
    }
}

impl Config {
    /// Checks every range.
    ///
    /// # Errors
    ///
    /// [`ConfigError::Range`] or [`ConfigError::Multiple`] of `block`.
    pub fn validate(&self) -> Result<(), ConfigError> {
        ConfigError::check_range(CodecId::Fp8, "block", self.block, 32..=1024)?;
        if !self.block.is_multiple_of(8) {
            let value = self.block.into();
            return Err(ConfigError::Multiple { codec: CodecId::Fp8, name: "block", value, of: 8 });
        }
        Ok(())
    }

    /// Four blocks.
    #[must_use]
    pub const fn unit(&self) -> Unit {
        let block = at_least_1(self.block);
        Unit { elements: BLOCKS * block, words: 1 + block, state_words: 0 }
    }

    /// Words of a packet of `elements` elements.
    #[must_use]
    pub const fn packet_words(&self, elements: usize) -> usize {
        let unit = self.unit();
        let (units, rest) = (elements / unit.elements, elements % unit.elements);
        units * unit.words + if rest == 0 { 0 } else { 1 + rest.div_ceil(4) }
    }
}

/// The byte of a block whose largest magnitude has these f32 bits; finite and without a sign.
#[must_use]
#[inline]
pub const fn exponent(kind: Kind, largest: u32) -> u32 {
    let exponent = largest >> 23;
    if exponent == 0 || exponent == EXPONENT_MAX {
        return exponent;
    }
    let top = narrow_magnitude(kind.format(), 127 + kind.last(), largest & 0x007F_FFFF);
    exponent + (top > kind.format().largest() as u32) as u32
}

/// The code of a finite element in a block with this byte (1 to 254), and whether it was clamped.
#[must_use]
#[inline]
pub const fn encode_element(kind: Kind, exponent: u32, bits: u32) -> (u8, bool) {
    let (format, own) = (kind.format(), bits >> 23 & 0xFF);
    if own == 0 {
        return (0, false);
    }
    let scaled = own.cast_signed() - exponent.cast_signed() + 127 + kind.last();
    let magnitude = narrow_magnitude(format, scaled, bits & 0x007F_FFFF);
    let largest = format.largest() as u32;
    let clamped = if magnitude > largest { largest } else { magnitude };
    let sign = if clamped == 0 { 0 } else { bits >> 31 << 7 };
    #[allow(clippy::cast_possible_truncation, reason = "7 bits and a sign")]
    let code = (sign | clamped) as u8;
    (code, clamped != magnitude)
}

/// The f32 bits of a code in a block with this byte (0 to 254); a value below the normal numbers is zero.
#[must_use]
#[inline]
pub const fn decode_element(kind: Kind, exponent: u32, code: u8) -> u32 {
    scale(widen(kind.format(), code as u16), exponent, kind.last())
}

/// `wide * 2^(exponent - 127 - last)`.
#[inline]
const fn scale(wide: u32, exponent: u32, last: i32) -> u32 {
    let field = (wide >> 23 & 0xFF).cast_signed() + exponent.cast_signed() - 127 - last;
    if exponent == 0 || wide << 1 == 0 || field < 1 {
        return 0;
    }
    wide & 0x807F_FFFF | field.cast_unsigned() << 23
}

/// Scales and rounds `gradient` into `packet`, which has [`Config::packet_words`] words.
///
/// Shader: `shaders/fp8/encode.wgsl`.
///
/// # Panics
///
/// If the packet has another length, or `config` is not [valid](Config::validate).
pub fn encode(config: &Config, gradient: Gradient<'_>, packet: &mut [u32]) -> Stats {
    if let Err(error) = config.validate() {
        panic!("caller did not validate the configuration: {error}");
    }
    let (words, elements) = (packet.len(), gradient.len());
    let expected = config.packet_words(elements);
    assert_eq!(words, expected, "packet of {words} words for {elements} elements, which need {expected}");
    let Unit { elements: unit, words, .. } = config.unit();
    let mut stats = Stats::default();
    gradient.for_each_chunk(CHUNK / unit * unit, |start, values| {
        let packet = packet[start / unit * words..].chunks_mut(words);
        for (values, words) in values.chunks(unit).zip(packet) {
            stats += encode_unit(config, values, words);
        }
    });
    stats
}

/// One unit, or the tail.
fn encode_unit(config: &Config, values: &[f32], words: &mut [u32]) -> Stats {
    let (kind, block) = (config.kind, usize::from(config.block));
    words.fill(0);
    let Some((head, codes)) = words.split_first_mut() else { return Stats::default() };
    let (mut nonfinite, mut saturated) = (0_u32, 0_u32);
    let mut room = [0; BLOCK_MAX];
    for (index, values) in values.chunks(block).enumerate() {
        let coded = fast::encode(kind, values, &mut room);
        nonfinite += coded.nonfinite;
        saturated += coded.saturated;
        *head |= coded.exponent << (8 * index);
        // Zeros stand behind the last code.
        let words = codes[index * block / 4..].iter_mut().take(values.len().div_ceil(4));
        for (word, four) in words.zip(room.as_chunks::<4>().0) {
            *word = u32::from_le_bytes(*four);
        }
    }
    Stats { nonfinite: nonfinite.into(), saturated: saturated.into() }
}

/// What a block says besides its codes.
#[derive(Debug, PartialEq, Eq)]
struct Block {
    exponent: u32,
    nonfinite: u32,
    saturated: u32,
}

/// The definition: one block. `codes` gets the codes, and zeros up to the next multiple of 4.
fn encode_block(kind: Kind, values: &[f32], codes: &mut [u8; BLOCK_MAX]) -> Block {
    let (mut largest, mut nonfinite, mut saturated) = (0, 0, 0);
    for bits in values.iter().map(|value| value.to_bits()) {
        let finite = is_finite(bits);
        largest = largest.max(if finite { bits & 0x7FFF_FFFF } else { 0 });
        nonfinite += u32::from(!finite);
    }
    let exponent = exponent(kind, largest);
    codes[..values.len().next_multiple_of(4)].fill(0);
    if exponent > 0 {
        for (code, value) in codes.iter_mut().zip(values) {
            let bits = value.to_bits();
            let clamped;
            (*code, clamped) = encode_element(kind, exponent, if is_finite(bits) { bits } else { 0 });
            saturated += u32::from(clamped);
        }
    }
    Block { exponent, nonfinite, saturated }
}

/// The weighted mean of one packet per rank into `mean`.
///
/// Every packet has [`Config::packet_words`]`(mean.len())` words. `weights` are samples per rank; a packet with 0 is not
/// looked at. The bits do not depend on the order of the packets. Shader: `shaders/fp8/average.wgsl`, which takes
/// packets that [`check`] has passed.
///
/// # Errors
///
/// [`AverageError`] if counts or lengths do not fit, all weights are 0, `8 * sum(weights) >= 2^24`, a packet says what
/// no encoder says, or `config` is out of range.
pub fn average(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    mean: &mut [f32],
) -> Result<(), AverageError> {
    config.validate()?;
    let total = check(config, packets, weights, mean.len())?;
    fast::mean(config, packets, weights, total, mean);
    Ok(())
}

/// What [`average`] checks of packets for `elements` elements before it computes; the result is the sum of the weights.
///
/// # Errors
///
/// Those of [`average`] but for the configuration's. A packet with weight 0 is not looked into.
pub fn check(
    config: &Config,
    packets: &[&[u32]],
    weights: &[u32],
    elements: usize,
) -> Result<u32, AverageError> {
    let total = AverageError::check(packets, weights, elements, config.packet_words(elements))?;
    let Unit { elements: unit_elements, words, .. } = config.unit();
    let largest = config.kind.format().largest();
    // Added to the seven bits of a magnitude it reaches the eighth exactly from the codes above the largest.
    let step = (0x7F - u32::from(largest)) * 0x0101_0101;
    for (index, packet) in packets.iter().enumerate().filter(|(index, _)| weights[*index] > 0) {
        for (unit, words) in packet.chunks(words).enumerate() {
            let here = unit_elements.min(elements - unit * unit_elements);
            let malformed = |what, found: u32, expected: u32| {
                let (found, expected) = (found.into(), expected.into());
                Err(AverageError::Malformed { index, unit, what, found, expected })
            };
            for block in 0..here.div_ceil(config.block.into()) {
                let exponent = words[0] >> (8 * block) & 0xFF;
                if exponent > EXPONENT_MAX {
                    return malformed("the exponent of a block", exponent, EXPONENT_MAX);
                }
            }
            let (whole, rest) = words[1..].split_at(here / 4);
            let rest = rest.iter().map(|word| word & !(u32::MAX << (8 * (here % 4))));
            let beyond = |word: u32| ((word & 0x7F7F_7F7F) + step) & 0x8080_8080;
            let found = whole.iter().fold(0, |found, word| found | beyond(*word));
            if found | rest.clone().fold(0, |found, word| found | beyond(word)) == 0 {
                continue;
            }
            let mut codes = whole.iter().copied().chain(rest).flat_map(u32::to_le_bytes);
            let code = codes.find(|code| u16::from(code & 0x7F) > largest).unwrap_or(0);
            return malformed("the magnitude of a code", u32::from(code & 0x7F), largest.into());
        }
    }
    Ok(total)
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::Fp8
    }

    fn validate(&self) -> Result<(), ConfigError> {
        Self::validate(self)
    }

    fn unit(&self) -> Unit {
        Self::unit(self)
    }

    fn packet_words(&self, elements: usize) -> usize {
        Self::packet_words(self, elements)
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name, value| Parameter { name, value };
        vec![
            parameter("exponent_bits", self.kind.format().exponent_bits.into()),
            parameter("block", self.block.into()),
        ]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match (name, value) {
            ("exponent_bits", 4) => self.kind = Kind::E4M3,
            ("exponent_bits", 5) => self.kind = Kind::E5M2,
            ("block", _) => return set(&mut self.block, value),
            _ => return false,
        }
        true
    }

    fn encode(&self, _: Step, gradient: Gradient<'_>, _: &mut [u32], packet: &mut [u32]) -> Stats {
        encode(self, gradient, packet)
    }

    fn check(&self, packets: &[&[u32]], weights: &[u32], elements: usize) -> Result<u32, AverageError> {
        check(self, packets, weights, elements)
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        _: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        average(self, packets, weights, mean)
    }
}
