//! A file of golden vectors, read and checked.

use std::collections::BTreeMap;
use std::fmt::Display;

use gradwire::codec::{AverageError, Codec, CodecId, ConfigError, Step};
use serde::de::Error as _;
use serde::{Deserialize, Deserializer};

/// A checked file: every length fits, every configuration is in range.
#[derive(Debug)]
pub(crate) struct VectorFile {
    codec: CodecId,
    pub(super) cases: Vec<Case>,
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
pub(super) struct Case {
    pub(super) n: usize,
    pub(super) codec: Codec,
    pub(super) weights: Vec<u32>,
    pub(super) ranks: Vec<Rank>,
    pub(super) averages: Vec<Average>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Rank {
    pub(super) steps: Vec<Encoded>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Encoded {
    #[serde(deserialize_with = "step")]
    pub(super) step: Step,
    pub(super) gradient_bits: Vec<u32>,
    pub(super) words: Vec<u32>,
    /// The encoder's state after the step, if that is one byte per element and nothing else.
    pub(super) residual: Option<Vec<i8>>,
    /// The same as the codec lays it out.
    pub(super) state: Option<Vec<u32>>,
    pub(super) nonfinite: u64,
    pub(super) saturated: Option<u64>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Average {
    #[serde(deserialize_with = "step")]
    pub(super) step: Step,
    pub(super) mean_bits: Vec<u32>,
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
