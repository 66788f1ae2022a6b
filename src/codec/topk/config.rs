//! The parameters of top-k.

use std::borrow::Cow;

use crate::codec::method::set;
use crate::codec::{
    AverageError, CodecId, ConfigError, Gradient, Method, Parameter, StateError, Stats, Step, Unit,
};

use super::layout::Layout;
use super::residual;

/// Parameters of [`topk`](super), the same on every rank.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Config {
    /// Elements that the largest are taken from together. A power of two in 64..=4096, default 4096: the divisions of
    /// the layout become shifts, and no bit of the index coding is lost.
    pub chunk: u16,
    /// How many of each chunk are sent. Range 1..=`chunk`, default 64.
    pub k: u16,
    /// Weight of the residual in what is sent next, in 1/256. Range 0..=256, default 243 (0.949; the paper: 0.95).
    /// 256 forgets nothing.
    pub decay: u16,
    /// What a residual is kept in. Default f32.
    pub residual: Residual,
    /// Levels are f16 numbers of `magnitude * 2^scale_log2`. Range -64..=64, default 19, so that a small gradient is far
    /// from the least f16 (2^-24). Anything that puts the root mean square between 2^-8 and 2^8 does.
    pub scale_log2: i8,
    /// What the weighted sum is divided by. Default all ranks.
    pub mean: Mean,
    /// What happens to a packet that is much larger than the others. Default nothing.
    pub clip: Clip,
}

/// What a residual is kept in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Residual {
    /// 4 bytes per element; nothing is lost but what f32 rounds away.
    #[default]
    F32,
    /// 1 byte per element and one power of two per 64 elements.
    Bits8,
}

/// What the weighted sum of an element is divided by.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Mean {
    /// The weights of all ranks: a rank that did not send the element counts as zero.
    #[default]
    AllRanks,
    /// The weights of the ranks that sent the element with a value that is not zero.
    Contributors,
}

/// What happens to a packet whose norm is above that of the others.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Clip {
    /// Nothing.
    #[default]
    Off,
    /// It is scaled down to the median norm of the packets of this shard.
    MedianNorm,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            chunk: 4096,
            k: 64,
            decay: 243,
            residual: Residual::F32,
            scale_log2: 19,
            mean: Mean::AllRanks,
            clip: Clip::Off,
        }
    }
}

impl Config {
    /// Checks every range.
    ///
    /// # Errors
    ///
    /// The first field that is out of range, with its value and the range.
    pub fn validate(&self) -> Result<(), ConfigError> {
        let range = |name, value: i64, least, most| {
            ConfigError::check_range(CodecId::TopK, name, value, least..=most)
        };
        range("chunk", self.chunk.into(), 64, 4096)?;
        if !self.chunk.is_power_of_two() {
            // The power of two below is what it must be a multiple of, and then it is none but that.
            let of = 1_i64 << self.chunk.ilog2();
            return Err(ConfigError::Multiple {
                codec: CodecId::TopK,
                name: "chunk",
                value: self.chunk.into(),
                of,
            });
        }
        range("k", self.k.into(), 1, self.chunk.into())?;
        range("decay", self.decay.into(), 0, 256)?;
        range("scale_log2", self.scale_log2.into(), -64, 64)
    }

    /// Elements of a chunk, at least 1 so that nothing divides by 0 before the configuration is checked.
    pub(super) const fn chunk(&self) -> usize {
        if self.chunk == 0 { 1 } else { self.chunk as usize }
    }

    /// A chunk: [`super`] says what its words are.
    #[must_use]
    pub const fn unit(&self) -> Unit {
        let chunk = self.chunk();
        let state_words = match self.residual {
            Residual::F32 => chunk,
            Residual::Bits8 => chunk / 4 + chunk.div_ceil(256),
        };
        Unit { elements: chunk, words: Layout::new(self, chunk).words(), state_words }
    }

    /// Words of a packet of `elements` elements.
    #[must_use]
    pub const fn packet_words(&self, elements: usize) -> usize {
        let chunk = self.chunk();
        let rest = elements % chunk;
        let tail = if rest == 0 { 0 } else { Layout::new(self, rest).words() };
        // Only a chunk that is not valid may have more words than elements.
        (elements / chunk).saturating_mul(Layout::new(self, chunk).words()).saturating_add(tail)
    }

    /// The weight of a residual, exact.
    #[must_use]
    pub fn decay_factor(&self) -> f32 {
        f32::from(self.decay) / 256.0
    }

    /// The f32 nearest to `1 / (total * 2^(24 + scale_log2))`, which turns a weighted sum of levels into the mean.
    ///
    /// `total` is a sum of weights, at least 1. Rounded once in f64 and once to f32: no total below 2^21 has an inverse
    /// so near the middle of two f32 that this differs from rounding once, as kernels do it.
    #[must_use]
    pub fn mean_scale(&self, total: u32) -> f32 {
        // From the bits, since `exp2` is a library call whose last digit no platform promises.
        let exponent = 1023 - 24 - i64::from(self.scale_log2);
        let unit = f64::from_bits(exponent.cast_unsigned() << 52);
        #[allow(clippy::cast_possible_truncation, reason = "the rounding of the definition")]
        let scale = (unit / f64::from(total)) as f32;
        scale
    }
}

impl Method for Config {
    fn id(&self) -> CodecId {
        CodecId::TopK
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

    fn scale_log2(&self) -> Option<i8> {
        Some(self.scale_log2)
    }

    fn set_scale_log2(&mut self, scale_log2: i8) {
        self.scale_log2 = scale_log2;
    }

    fn parameters(&self) -> Vec<Parameter> {
        let parameter = |name, value| Parameter { name, value };
        vec![
            parameter("chunk", self.chunk.into()),
            parameter("k", self.k.into()),
            parameter("decay", self.decay.into()),
            parameter("residual_bits", if self.residual == Residual::F32 { 32 } else { 8 }),
            parameter("contributors", i64::from(self.mean == Mean::Contributors)),
            parameter("clip", i64::from(self.clip == Clip::MedianNorm)),
        ]
    }

    fn set_parameter(&mut self, name: &str, value: i64) -> bool {
        match name {
            "chunk" => set(&mut self.chunk, value),
            "k" => set(&mut self.k, value),
            "decay" => set(&mut self.decay, value),
            "residual_bits" => choose(&mut self.residual, value, [(32, Residual::F32), (8, Residual::Bits8)]),
            "contributors" => choose(&mut self.mean, value, [(0, Mean::AllRanks), (1, Mean::Contributors)]),
            "clip" => choose(&mut self.clip, value, [(0, Clip::Off), (1, Clip::MedianNorm)]),
            _ => false,
        }
    }

    fn check_state(&self, elements: usize, words: &[u32]) -> Result<(), StateError> {
        residual::check(self, elements, words)
    }

    fn encode(&self, _: Step, gradient: Gradient<'_>, state: &mut [u32], packet: &mut [u32]) -> Stats {
        super::encode(self, gradient, state, packet)
    }

    fn check(&self, packets: &[&[u32]], weights: &[u32], elements: usize) -> Result<u32, AverageError> {
        super::check(self, packets, weights, elements)
    }

    fn clip<'a>(
        &self,
        packets: &[&'a [u32]],
        weights: &[u32],
        elements: usize,
    ) -> Option<Vec<Cow<'a, [u32]>>> {
        (self.clip != Clip::Off).then(|| super::clip(self, packets, weights, elements))
    }

    fn average(
        &self,
        packets: &[&[u32]],
        weights: &[u32],
        _: &mut [u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        super::average(self, packets, weights, mean)
    }

    fn averages_in_parts(&self) -> bool {
        // A norm is the whole packet's.
        self.clip == Clip::Off
    }
}

/// Sets `field` to what `value` stands for; false if it stands for nothing.
fn choose<T: Copy>(field: &mut T, value: i64, choices: [(i64, T); 2]) -> bool {
    let choice = choices.into_iter().find(|(number, _)| *number == value);
    choice.map(|(_, choice)| *field = choice).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_default_chunk_takes_21_words_which_is_195_times_less_than_f32() {
        let config = Config::default();
        assert_eq!(config.validate(), Ok(()));
        assert_eq!(config.unit(), Unit { elements: 4096, words: 21, state_words: 4096 });
        assert_eq!(config.packet_words(64 << 20), 16_384 * 21);
        let eight_bits = Config { residual: Residual::Bits8, ..config };
        assert_eq!(eight_bits.unit().state_words, 1024 + 16);
    }

    #[test]
    fn each_range_is_refused_just_outside_and_taken_just_inside_with_both_numbers() {
        let config = Config::default();
        let error = |config: Config| config.validate().err().map(|error| error.to_string());
        let says = |config, text: &str| assert_eq!(error(config), Some(text.to_owned()));
        says(Config { chunk: 63, ..config }, "chunk is 63, topk takes 64 to 4096");
        says(Config { chunk: 8192, ..config }, "chunk is 8192, topk takes 64 to 4096");
        says(Config { chunk: 4095, ..config }, "chunk is 4095, topk takes multiples of 2048");
        says(Config { chunk: 3072, ..config }, "chunk is 3072, topk takes multiples of 2048");
        says(Config { k: 0, ..config }, "k is 0, topk takes 1 to 4096");
        says(Config { k: 129, chunk: 128, ..config }, "k is 129, topk takes 1 to 128");
        says(Config { decay: 257, ..config }, "decay is 257, topk takes 0 to 256");
        says(Config { scale_log2: -65, ..config }, "scale_log2 is -65, topk takes -64 to 64");
        for chunk in [64, 128, 256, 512, 1024, 2048, 4096] {
            for k in [1, chunk] {
                for (decay, scale_log2) in [(0, -64), (256, 64)] {
                    assert_eq!(error(Config { chunk, k, decay, scale_log2, ..config }), None, "{chunk} {k}");
                }
            }
        }
    }

    #[test]
    fn the_inverse_of_every_total_is_the_nearest_f32() {
        let config = Config { scale_log2: -24, ..Config::default() };
        for total in (1..1 << 21).filter(|total| total % 61 == 1 || total % 4096 < 3) {
            // 24 digits of 2^e / total and the remainder: what a kernel computes.
            let e = 23 + 32 - (total - 1_u32).leading_zeros();
            let (quotient, rest) = ((1_u64 << e) / u64::from(total), (1_u64 << e) % u64::from(total));
            assert!((1 << 23..=1 << 24).contains(&quotient), "{total}");
            let up = 2 * rest > u64::from(total) || (2 * rest == u64::from(total) && quotient % 2 == 1);
            let want = (quotient + u64::from(up)) as f32 / (1_u64 << e) as f32;
            assert_eq!(config.mean_scale(total).to_bits(), want.to_bits(), "{total}");
        }
    }
}
