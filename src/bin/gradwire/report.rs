//! What a training run came to: `report.json`, and what `--json` prints.

pub(crate) mod curve;
pub(crate) mod html;
pub(crate) mod summary;
pub(crate) mod tally;
pub(crate) mod write;

use std::collections::BTreeMap;

use gradwire::sync::Scheme;
use serde::{Serialize, Serializer};

use crate::args::ScaleArg;
use crate::event::{Bytes, Node, Seconds};
use crate::task::Score;

/// The whole of `gradwire train`.
#[derive(Serialize)]
pub(crate) struct Report {
    pub(crate) version: &'static str,
    pub(crate) wire_version: u16,
    pub(crate) task: String,
    /// Number of parameters.
    pub(crate) params: usize,
    pub(crate) steps: u64,
    pub(crate) seed: u64,
    pub(crate) settings: Settings,
    pub(crate) runs: Vec<Run>,
}

/// Options with their defaults filled in: with task, steps, seed and the runs' codecs and backends, what a script
/// needs to repeat the runs.
#[derive(Serialize)]
pub(crate) struct Settings {
    /// Samples per rank and step.
    pub(crate) batch: u32,
    /// At its peak, no unit.
    pub(crate) learning_rate: f32,
    pub(crate) optimizer: String,
    /// Steps before the optimizer freezes its variance; null for one that does not.
    pub(crate) warmup: Option<u32>,
    /// Per step and unit of learning rate, no unit.
    pub(crate) weight_decay: f32,
    /// As asked for; what `auto` came to stands in the codec.
    #[serde(serialize_with = "auto_or_number")]
    pub(crate) scale: ScaleArg,
    pub(crate) mesh: String,
    pub(crate) nodes: u32,
    /// Ranks of each site; empty where there are none.
    pub(crate) sites: Vec<usize>,
    /// What gradients travel as inside a site; null where there is none.
    pub(crate) inner_codec: Option<String>,
    /// As `--shares` takes it; what it came to stands in the nodes of the runs.
    pub(crate) shares: String,
    /// Of silence, after which a rank is lost.
    pub(crate) deadline_seconds: f64,
    /// Null for a task that brings its own data.
    pub(crate) data: Option<DataFile>,
}

/// The file that was trained on.
#[derive(Serialize)]
pub(crate) struct DataFile {
    /// Its name without the folders: where it lies is nobody's business but this machine's.
    pub(crate) file: String,
    /// Its length after the last step; null if it is gone by then.
    pub(crate) bytes: Option<u64>,
}

/// As `--scale` takes it.
fn auto_or_number<S: Serializer>(scale: &ScaleArg, serializer: S) -> Result<S::Ok, S::Error> {
    match scale {
        ScaleArg::Auto => serializer.serialize_str("auto"),
        ScaleArg::Log2(log2) => serializer.serialize_i8(*log2),
    }
}

/// One codec's run.
#[derive(Serialize)]
pub(crate) struct Run {
    pub(crate) codec: CodecInfo,
    pub(crate) nodes: Vec<Node>,
    pub(crate) loss: Loss,
    #[serde(flatten)]
    pub(crate) score: ScoreField,
    /// One direction, all ranks together.
    pub(crate) bytes: Bytes,
    pub(crate) seconds: RunSeconds,
    pub(crate) residual: Residual,
    pub(crate) parameters_blake3: String,
    /// Mean loss of all ranks, by step.
    #[serde(skip)]
    pub(crate) losses: Vec<f64>,
}

/// Name and parameters of a codec.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct CodecInfo {
    pub(crate) name: &'static str,
    /// What tells the runs apart: the name, with the parameters if another run has the same name.
    #[serde(skip)]
    pub(crate) label: String,
    /// Of a codec with one scale for the whole gradient.
    #[serde(flatten)]
    pub(crate) scale: Option<ScaleInfo>,
    /// By name; of an optional number, 0 is none.
    #[serde(flatten)]
    pub(crate) parameters: BTreeMap<&'static str, i64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub(crate) struct ScaleInfo {
    /// Power of two of codes per gradient unit, as used; null if every gradient was zero.
    pub(crate) scale_log2: Option<i8>,
    /// Whether the ranks agreed on it in the first step.
    pub(crate) scale_auto: bool,
}

impl CodecInfo {
    /// `scale_log2` is the one in use.
    pub(crate) fn new(codec: &Scheme, label: &str, auto: bool, scale_log2: Option<i8>) -> Self {
        let scale = codec.scale_log2().map(|_| ScaleInfo { scale_log2, scale_auto: auto });
        let parameters = codec.parameters().into_iter().map(|parameter| (parameter.name, parameter.value));
        Self { name: codec.id().name(), label: label.to_owned(), scale, parameters: parameters.collect() }
    }

    /// Parameters in one line, empty for a codec without any.
    pub(crate) fn parameters(&self) -> String {
        let scale = self.scale.map(|ScaleInfo { scale_log2, scale_auto }| {
            let scale = scale_log2.map_or_else(|| "none yet".to_owned(), |log2| format!("2^{log2}"));
            format!("scale {scale} ({})", if scale_auto { "auto" } else { "given" })
        });
        let parameters = self.parameters.iter().map(|(name, value)| match (*name, value) {
            ("reset_every", 0) => "never reset".to_owned(),
            ("reset_every", steps) => format!("reset every {steps} steps"),
            ("decay", decay) => format!("decay {decay}/256"),
            (name, value) => match name.strip_suffix("_log2") {
                Some(name) => format!("{} 2^{value}", name.replace('_', " ")),
                None => format!("{} {value}", name.replace('_', " ")),
            },
        });
        scale.into_iter().chain(parameters).collect::<Vec<_>>().join(", ")
    }
}

/// Mean cross entropy in nats.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct Loss {
    /// Of the first step's batches.
    pub(crate) first: f64,
    /// Of the last step's batches.
    pub(crate) last: f64,
    /// On the evaluation part, after the last step.
    pub(crate) eval: f64,
}

/// [`Score`] as a field named after what it is.
#[derive(Clone, Copy, Serialize)]
#[serde(untagged)]
pub(crate) enum ScoreField {
    Accuracy { eval_accuracy: f64 },
    BitsPerByte { eval_bits_per_byte: f64 },
}

impl From<Score> for ScoreField {
    fn from(score: Score) -> Self {
        match score {
            Score::Accuracy(eval_accuracy) => Self::Accuracy { eval_accuracy },
            Score::BitsPerByte(eval_bits_per_byte) => Self::BitsPerByte { eval_bits_per_byte },
        }
    }
}

impl ScoreField {
    /// What it is, and its value for humans.
    pub(crate) fn show(self) -> (&'static str, String) {
        match self {
            Self::Accuracy { eval_accuracy } => ("accuracy", format!("{:.2} %", 100.0 * eval_accuracy)),
            Self::BitsPerByte { eval_bits_per_byte } => ("bits per byte", format!("{eval_bits_per_byte:.3}")),
        }
    }
}

/// Wall-clock seconds: each stage summed over the steps and averaged over the ranks.
#[derive(Clone, Copy, Serialize)]
pub(crate) struct RunSeconds {
    #[serde(flatten)]
    pub(crate) stages: Seconds,
    /// Median over all steps and ranks of one step.
    pub(crate) step_median: f64,
    /// From the first step's beginning to the last one's end, of the slowest rank.
    pub(crate) total: f64,
}

/// What became of gradient elements in the codec, all ranks together.
#[derive(Clone, Copy, Default, Serialize)]
pub(crate) struct Residual {
    pub(crate) saturated: u64,
    pub(crate) nonfinite: u64,
    /// Steps in which the residual was zeroed.
    pub(crate) resets: u64,
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::num::NonZeroU32;

    use gradwire::codec::{Codec, loco};

    use super::*;

    #[test]
    fn a_codec_without_resets_does_not_reset_every_0_steps() {
        let codec = |reset_every| {
            let reset_every = NonZeroU32::new(reset_every);
            let config = loco::Config { decay: 0, reset_every, ..loco::Config::default() };
            CodecInfo::new(&Codec::Loco(config).into(), "loco", true, Some(-3)).parameters()
        };
        let (before, after) = ("scale 2^-3 (auto), decay 0/256, ", ", residual scale 2^4");
        assert_eq!(codec(0), format!("{before}never reset{after}"));
        assert_eq!(codec(512), format!("{before}reset every 512 steps{after}"));
        assert_eq!(CodecInfo::new(&Codec::F32.into(), "f32", true, None).parameters(), "");
    }

    #[test]
    fn settings_say_what_the_options_take() {
        for (scale, said) in [(ScaleArg::Auto, "\"auto\""), (ScaleArg::Log2(-3), "-3")] {
            let settings = Settings {
                batch: 8,
                learning_rate: 0.004,
                optimizer: "adamw".into(),
                warmup: None,
                weight_decay: 0.01,
                scale,
                mesh: "quic".into(),
                nodes: 4,
                sites: vec![3, 1],
                inner_codec: Some("bf16".into()),
                shares: "equal".into(),
                deadline_seconds: 10.0,
                data: Some(DataFile { file: "a \"b\".txt".into(), bytes: None }),
            };
            assert_eq!(
                serde_json::to_string(&settings).unwrap(),
                format!(
                    "{{\"batch\":8,\"learning_rate\":0.004,\"optimizer\":\"adamw\",\"warmup\":null,\"weight_decay\":0.01,\
                     \"scale\":{said},\"mesh\":\"quic\",\"nodes\":4,\"sites\":[3,1],\"inner_codec\":\"bf16\",\"shares\":\"equal\",\"deadline_seconds\":10.0,\
                     \"data\":{{\"file\":\"a \\\"b\\\".txt\",\"bytes\":null}}}}"
                )
            );
        }
    }
}
