//! Golden vectors: the file format, and the comparison of an implementation with it, bit for bit.
//!
//! `gradwire verify` and `tests/golden.rs` both use this file, so that format and comparison exist once.
//! The format is described in `tests/golden/README.md`.

use std::collections::BTreeMap;
use std::fmt::Display;

use gradwire::codec::loco::Variant;
use gradwire::codec::{AverageError, Codec, CodecId, ConfigError, Gradient, Stats, Step};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize};

/// A checked file: every length fits, every configuration is in range.
#[derive(Debug)]
pub(crate) struct VectorFile {
    codec: CodecId,
    cases: Vec<Case>,
}

/// A file as it stands there.
#[derive(Deserialize)]
struct Raw {
    codec: String,
    cases: Vec<RawCase>,
}

#[derive(Deserialize)]
struct RawCase {
    n: usize,
    config: BTreeMap<String, i64>,
    weights: Vec<u32>,
    ranks: Vec<Rank>,
    averages: Vec<Average>,
}

#[derive(Debug)]
struct Case {
    n: usize,
    codec: Codec,
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
    /// The encoder's state after the step, if that is one byte per element and nothing else.
    residual: Option<Vec<i8>>,
    /// The same as the codec lays it out.
    state: Option<Vec<u32>>,
    nonfinite: u64,
    saturated: Option<u64>,
}

#[derive(Debug, Deserialize)]
struct Average {
    #[serde(deserialize_with = "step")]
    step: Step,
    mean_bits: Vec<u32>,
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
    #[error("vectors of codec {:?}, this build knows {}", shortened(codec), CodecId::ALL.map(CodecId::name).join(", "))]
    Codec { codec: String },
    #[error("case {case}: {codec} has no parameter {:?} with the value {value}", shortened(name))]
    Parameter { case: usize, codec: CodecId, name: String, value: i64 },
    #[error("case {case}: {source}")]
    Config { case: usize, source: ConfigError },
    #[error("no case in the file, at least 1 is needed")]
    Empty,
    #[error("case {case}: n is 0, at least 1 is needed")]
    NoElements { case: usize },
    #[error("case {case}: no step in it, at least 1 is needed")]
    NoSteps { case: usize },
    #[error("case {case}: {what} has {len} entries, {expected} are needed")]
    Length { case: usize, what: String, len: usize, expected: usize },
    #[error("case {case}: {what} has both a residual and a state, must have only one")]
    TwoStates { case: usize, what: String },
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
        let Raw { codec, cases } = serde_json::from_str(text)?;
        let Some(id) = CodecId::ALL.into_iter().find(|id| id.name() == codec) else {
            return Err(VectorError::Codec { codec });
        };
        if cases.is_empty() {
            return Err(VectorError::Empty);
        }
        let cases = cases.into_iter().enumerate().map(|(index, case)| case.check(index, id));
        Ok(Self { codec: id, cases: cases.collect::<Result<_, _>>()? })
    }

    /// The codec of all cases.
    pub(crate) fn codec(&self) -> CodecId {
        self.codec
    }
}

/// The codec with these parameters; those that are not named have their defaults.
fn codec(case: usize, id: CodecId, config: BTreeMap<String, i64>) -> Result<Codec, VectorError> {
    let mut codec = Codec::new(id);
    for (name, value) in config {
        let done = match i8::try_from(value) {
            Ok(scale) if name == "scale_log2" && codec.scale_log2().is_some() => {
                codec.set_scale_log2(scale);
                true
            }
            _ => codec.set_parameter(&name, value),
        };
        if !done {
            return Err(VectorError::Parameter { case, codec: id, name, value });
        }
    }
    codec.validate().map_err(|source| VectorError::Config { case, source })?;
    Ok(codec)
}

impl RawCase {
    fn check(self, case: usize, id: CodecId) -> Result<Case, VectorError> {
        let Self { n, config, weights, ranks, averages } = self;
        let checked = Case { n, codec: codec(case, id, config)?, weights, ranks, averages };
        checked.check(case)?;
        Ok(checked)
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
                length(&field("words"), encoded.words.len(), self.codec.packet_words(self.n))?;
                match (&encoded.residual, &encoded.state) {
                    (Some(_), Some(_)) => {
                        return Err(VectorError::TwoStates { case, what: format!("ranks[{j}].steps[{k}]") });
                    }
                    (Some(residual), None) => length(&field("residual"), residual.len(), self.n)?,
                    (None, state) => {
                        let words = state.as_ref().map_or(0, Vec::len);
                        length(&field("state"), words, self.codec.state_words(self.n))?;
                    }
                }
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

    /// Forgets what it keeps of earlier means: another case comes.
    fn begin(&mut self) {}

    /// As [`Codec::encode`].
    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, Self::Error>;

    /// As [`Codec::average`], with a state of its own.
    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), Self::Error>;
}

/// The functions that users call.
#[derive(Default)]
pub(crate) struct Cpu {
    mean_state: Vec<u32>,
}

impl Implementation for Cpu {
    type Error = AverageError;

    fn begin(&mut self) {
        self.mean_state.clear();
    }

    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, AverageError> {
        Ok(codec.encode(step, gradient, state, packet))
    }

    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), AverageError> {
        self.mean_state.resize(codec.mean_state_words(packets.len(), mean.len()), 0);
        codec.average(packets, weights, &mut self.mean_state, mean)
    }
}

/// One of LoCo's variants; another codec's vectors are the fault of whoever asks it.
impl Implementation for Variant {
    type Error = String;

    fn encode(
        &mut self,
        codec: &Codec,
        step: Step,
        gradient: Gradient<'_>,
        state: &mut [u32],
        packet: &mut [u32],
    ) -> Result<Stats, String> {
        let (Codec::Loco(config), Gradient::F32(gradient)) = (codec, gradient) else {
            return Err(format!("a variant of loco was asked for {codec}"));
        };
        let residual = &mut bytemuck::cast_slice_mut(state)[..gradient.len()];
        Ok((self.encode)(config, step, gradient, residual, packet))
    }

    fn average(
        &mut self,
        codec: &Codec,
        packets: &[&[u32]],
        weights: &[u32],
        mean: &mut [f32],
    ) -> Result<(), String> {
        let Codec::Loco(config) = codec else {
            return Err(format!("a variant of loco was asked for {codec}"));
        };
        (self.average)(config, packets, weights, mean).map_err(|error| error.to_string())
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
    /// `words`, `residual`, `state`, `nonfinite`, `saturated` or `mean_bits`.
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
    implementation.begin();
    let codec = &case.codec;
    let mut states = vec![vec![0; codec.state_words(case.n)]; case.ranks.len()];
    for (k, average) in case.averages.iter().enumerate() {
        let step = average.step;
        let mut packets = Vec::new();
        for (rank, (vectors, state)) in case.ranks.iter().zip(&mut states).enumerate() {
            let expected = &vectors.steps[k];
            let gradient: Vec<f32> =
                expected.gradient_bits.iter().map(|bits| f32::from_bits(*bits)).collect();
            // Painted, so that a word which is never written shows.
            let mut packet = vec![0xA5A5_A5A5; codec.packet_words(case.n)];
            let stats = implementation.encode(codec, step, (&gradient).into(), state, &mut packet)?;
            if let Some((field, (place, expected, got))) = expected.first_difference(&packet, state, stats) {
                let (case, step, rank) = (index, step.get(), Some(rank));
                return Ok(Some(Difference { case, rank, step, field, index: place, expected, got }));
            }
            packets.push(packet);
        }
        let packets: Vec<&[u32]> = packets.iter().map(Vec::as_slice).collect();
        let mut mean = vec![f32::NAN; case.n];
        implementation.average(codec, &packets, &case.weights, &mut mean)?;
        let mean: Vec<u32> = mean.iter().map(|value| value.to_bits()).collect();
        if let Some((place, expected, got)) = first(&average.mean_bits, &mean) {
            let (case, step, field) = (index, step.get(), "mean_bits");
            return Ok(Some(Difference { case, rank: None, step, field, index: place, expected, got }));
        }
    }
    Ok(None)
}

/// A place in a list, the number expected there and the one found.
type Found = (usize, i64, i64);

impl Encoded {
    fn first_difference(&self, packet: &[u32], state: &[u32], stats: Stats) -> Option<(&'static str, Found)> {
        let named = |name| move |found| (name, found);
        let bytes =
            || state.iter().flat_map(|word| word.to_le_bytes()).map(u8::cast_signed).collect::<Vec<_>>();
        let in_bytes = || first(self.residual.as_ref()?, &bytes()).map(named("residual"));
        let in_words = || first(self.state.as_ref()?, state).map(named("state"));
        first(&self.words, packet)
            .map(named("words"))
            .or_else(in_bytes)
            .or_else(in_words)
            .or_else(|| first(&[self.nonfinite], &[stats.nonfinite]).map(named("nonfinite")))
            .or_else(|| first(&[self.saturated?], &[stats.saturated]).map(named("saturated")))
    }
}

/// The first place where two lists differ, with both numbers.
fn first<T: Copy + PartialEq + TryInto<i64>>(expected: &[T], got: &[T]) -> Option<Found> {
    let index = expected.iter().zip(got).position(|(a, b)| a != b)?;
    // Every field fits but a count near 2^64, which saturates: it is shown, not computed with.
    let shown = |value: T| value.try_into().unwrap_or(i64::MAX);
    Some((index, shown(expected[index]), shown(got[index])))
}
