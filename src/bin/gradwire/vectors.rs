//! Golden vectors: the file format, and the comparison of an implementation with it, bit for bit.
//!
//! `gradwire verify` and `tests/golden.rs` both use this file, so that format and comparison exist once.
//! The format is described in `tests/golden/README.md`.

use std::fmt::Display;
use std::num::NonZeroU32;

use gradwire::codec::loco::{self, Config, ConfigError, Variant};
use gradwire::codec::{AverageError, Stats, Step};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// A checked file: every length fits, every configuration is in range.
#[derive(Debug, Deserialize)]
pub(crate) struct VectorFile {
    codec: String,
    cases: Vec<Case>,
}

#[derive(Debug, Deserialize)]
struct Case {
    n: usize,
    #[serde(deserialize_with = "config")]
    config: Config,
    weights: Vec<u32>,
    ranks: Vec<Rank>,
    averages: Vec<Average>,
}

#[derive(Debug, Deserialize)]
struct Rank {
    steps: Vec<Encoded>,
}

#[derive(Debug, Deserialize)]
struct Encoded {
    #[serde(deserialize_with = "step")]
    step: Step,
    gradient_bits: Vec<u32>,
    words: Vec<u32>,
    residual: Vec<i8>,
    nonfinite: u64,
}

#[derive(Debug, Deserialize)]
struct Average {
    #[serde(deserialize_with = "step")]
    step: Step,
    mean_bits: Vec<u32>,
}

fn config<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Config, D::Error> {
    #[derive(Deserialize)]
    struct Fields {
        scale_log2: i8,
        residual_scale_log2: u8,
        decay: u8,
        reset_every: u32,
    }
    let Fields { scale_log2, residual_scale_log2, decay, reset_every } = Fields::deserialize(deserializer)?;
    let reset_every = NonZeroU32::new(reset_every);
    let config = Config { scale_log2, residual_scale_log2, decay, reset_every };
    config.validate().map_err(|error: ConfigError| D::Error::custom(error))?;
    Ok(config)
}

fn step<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Step, D::Error> {
    Step::new(u64::deserialize(deserializer)?)
        .ok_or_else(|| D::Error::custom("step is 0, steps count from 1"))
}

/// What is wrong with a vector file: always the file's fault.
#[derive(Debug, thiserror::Error)]
pub(crate) enum VectorError {
    #[error("not a vector file: {}", without_place(.0))]
    Json(#[from] serde_json::Error),
    #[error("vectors of codec {:?}, this build verifies \"loco\"", shortened(codec))]
    Codec { codec: String },
    #[error("no case in the file, at least 1 is needed")]
    Empty,
    #[error("case {case}: n is 0, at least 1 is needed")]
    NoElements { case: usize },
    #[error("case {case}: no step in it, at least 1 is needed")]
    NoSteps { case: usize },
    #[error("case {case}: {what} has {len} entries, {expected} are needed")]
    Length { case: usize, what: String, len: usize, expected: usize },
    #[error("case {case}: {what} is of step {got}, rank 0 is at step {expected} there")]
    Step { case: usize, what: String, got: Step, expected: Step },
    #[error("case {case}: {source}")]
    Weights { case: usize, source: AverageError },
}

/// The parser's reason without its line and column: vector files are written by programs, most in one line.
fn without_place(error: &serde_json::Error) -> String {
    let text = error.to_string();
    let place = format!(" at line {} column {}", error.line(), error.column());
    shortened(text.strip_suffix(&place).unwrap_or(&text))
}

/// What of a file's content is shown: an error message is one line, whatever the file holds.
fn shortened(text: &str) -> String {
    const MOST: usize = 120;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

impl VectorFile {
    /// Reads and checks the text of a file.
    ///
    /// # Errors
    ///
    /// The first thing that is wrong, with the case and both numbers.
    pub(crate) fn parse(text: &str) -> Result<Self, VectorError> {
        let file: Self = serde_json::from_str(text)?;
        if file.codec != "loco" {
            return Err(VectorError::Codec { codec: file.codec });
        }
        if file.cases.is_empty() {
            return Err(VectorError::Empty);
        }
        for (index, case) in file.cases.iter().enumerate() {
            case.check(index)?;
        }
        Ok(file)
    }
}

impl Case {
    fn check(&self, case: usize) -> Result<(), VectorError> {
        if self.n == 0 {
            return Err(VectorError::NoElements { case });
        }
        if self.averages.is_empty() {
            // A comparison of nothing would find no difference.
            return Err(VectorError::NoSteps { case });
        }
        let length = |what: &dyn Display, len: usize, expected: usize| {
            if len == expected {
                return Ok(());
            }
            Err(VectorError::Length { case, what: what.to_string(), len, expected })
        };
        length(&"weights", self.weights.len(), self.ranks.len())?;
        let steps: Vec<Step> = self.averages.iter().map(|average| average.step).collect();
        let at = |what: String, got: Step, expected: Step| {
            if got == expected { Ok(()) } else { Err(VectorError::Step { case, what, got, expected }) }
        };
        for (j, rank) in self.ranks.iter().enumerate() {
            length(&format_args!("ranks[{j}].steps"), rank.steps.len(), steps.len())?;
            for (k, encoded) in rank.steps.iter().enumerate() {
                let field = |name| format!("ranks[{j}].steps[{k}].{name}");
                at(field("step"), encoded.step, self.ranks[0].steps[k].step)?;
                length(&field("gradient_bits"), encoded.gradient_bits.len(), self.n)?;
                length(&field("words"), encoded.words.len(), loco::packet_words(self.n))?;
                length(&field("residual"), encoded.residual.len(), self.n)?;
            }
        }
        for (k, average) in self.averages.iter().enumerate() {
            length(&format_args!("averages[{k}].mean_bits"), average.mean_bits.len(), self.n)?;
            // Without a rank there is nothing to be at a step; the weights are refused below.
            if let Some(rank) = self.ranks.first() {
                at(format!("averages[{k}]"), average.step, rank.steps[k].step)?;
            }
        }
        let packets = vec![[].as_slice(); self.ranks.len()];
        AverageError::check(&packets, &self.weights, 0, 0)
            .map_err(|source| VectorError::Weights { case, source })?;
        Ok(())
    }
}

/// Something that claims to be the codec: a CPU variant or an adapter.
pub(crate) trait Implementation {
    /// Why it could not compute at all.
    type Error: Display;

    /// As [`loco::encode`].
    fn encode(
        &mut self,
        config: &Config,
        step: Step,
        gradient: &[f32],
        residual: &mut [i8],
        packet: &mut [u32],
    ) -> Result<Stats, Self::Error>;

    /// As [`loco::average`].
    fn average(
        &mut self,
        config: &Config,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), Self::Error>;
}

impl Implementation for Variant {
    type Error = AverageError;

    fn encode(
        &mut self,
        config: &Config,
        step: Step,
        gradient: &[f32],
        residual: &mut [i8],
        packet: &mut [u32],
    ) -> Result<Stats, AverageError> {
        Ok((self.encode)(config, step, gradient, residual, packet))
    }

    fn average(
        &mut self,
        config: &Config,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        (self.average)(config, packets, weights, mean)
    }
}

/// The outcome over a whole file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Comparison {
    /// Cases compared.
    pub(crate) cases: usize,
    /// Cases with at least one differing number.
    pub(crate) different: usize,
    /// The first differing number of the first such case.
    pub(crate) first_difference: Option<Difference>,
}

/// One number that came out differently. Bits are shown as the unsigned integers of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct Difference {
    /// Index of the case in the file.
    pub(crate) case: usize,
    /// Rank; `None` for a mean, which belongs to all.
    pub(crate) rank: Option<usize>,
    /// Step number.
    pub(crate) step: u64,
    /// `words`, `residual`, `nonfinite` or `mean_bits`.
    pub(crate) field: &'static str,
    /// Place in that field; 0 for a single number.
    pub(crate) index: usize,
    /// The number in the file.
    pub(crate) expected: i64,
    /// The number that came out.
    pub(crate) got: i64,
}

/// Runs every case and compares packets, residuals, counts and means by their bits.
///
/// # Errors
///
/// The implementation's own error if it cannot compute; a wrong number is not an error but a difference.
pub(crate) fn compare<I: Implementation>(
    file: &VectorFile,
    implementation: &mut I,
) -> Result<Comparison, I::Error> {
    let mut comparison = Comparison { cases: file.cases.len(), different: 0, first_difference: None };
    for (index, case) in file.cases.iter().enumerate() {
        if let Some(difference) = first_difference(index, case, implementation)? {
            comparison.different += 1;
            comparison.first_difference.get_or_insert(difference);
        }
    }
    Ok(comparison)
}

fn first_difference<I: Implementation>(
    index: usize,
    case: &Case,
    implementation: &mut I,
) -> Result<Option<Difference>, I::Error> {
    let mut residuals = vec![vec![0_i8; case.n]; case.ranks.len()];
    for (k, average) in case.averages.iter().enumerate() {
        let step = average.step;
        let mut packets = Vec::new();
        for (rank, (vectors, residual)) in case.ranks.iter().zip(&mut residuals).enumerate() {
            let expected = &vectors.steps[k];
            let gradient: Vec<f32> =
                expected.gradient_bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            // Painted, so that a word which is never written shows.
            let mut packet = vec![0xA5A5_A5A5; loco::packet_words(case.n)];
            let stats = implementation.encode(&case.config, step, &gradient, residual, &mut packet)?;
            let found = first(&expected.words, &packet)
                .map(|found| ("words", found))
                .or_else(|| first(&expected.residual, residual).map(|found| ("residual", found)))
                .or_else(|| {
                    first(&[expected.nonfinite], &[stats.nonfinite]).map(|found| ("nonfinite", found))
                });
            if let Some((field, (place, expected, got))) = found {
                let (case, step, rank) = (index, step.get(), Some(rank));
                return Ok(Some(Difference { case, rank, step, field, index: place, expected, got }));
            }
            packets.push(packet);
        }
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut mean = vec![f32::NAN; case.n];
        implementation.average(&case.config, &packets, &case.weights, &mut mean)?;
        let mean: Vec<u32> = mean.iter().map(|value| value.to_bits()).collect();
        if let Some((place, expected, got)) = first(&average.mean_bits, &mean) {
            let (case, step, field) = (index, step.get(), "mean_bits");
            return Ok(Some(Difference { case, rank: None, step, field, index: place, expected, got }));
        }
    }
    Ok(None)
}

/// The first place where two lists of one length differ, with both numbers.
fn first<T: Copy + PartialEq + TryInto<i64>>(expected: &[T], got: &[T]) -> Option<(usize, i64, i64)> {
    let index = expected.iter().zip(got).position(|(a, b)| a != b)?;
    // Every field fits but a count near 2^64, which saturates: it is shown, not computed with.
    let shown = |value: T| value.try_into().unwrap_or(i64::MAX);
    Some((index, shown(expected[index]), shown(got[index])))
}
