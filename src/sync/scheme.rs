//! What a gradient travels as: packets of a codec, or a collective of its own.

use std::fmt;
use std::str::FromStr;

use super::SyncError;
use super::powersgd::{self, Shape};
use crate::codec::{Codec, CodecId, Named, Parameter, ParseCodecError, Step, UnknownCodec, accepted};

/// How the mean gradient comes about, the same on every rank.
///
/// As text: that of a [`Codec`], or `powersgd:low_rank=4,seed=0,min_compression=2`, of which all or some may be left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Scheme {
    /// One packet of a codec per owner of a shard.
    Codec(Codec),
    /// Low-rank factors of each matrix, in two all-reduces.
    PowerSgd(powersgd::Config),
}

/// A scheme's name and byte in settings, packets and reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum SchemeId {
    /// A codec's own.
    Codec(CodecId),
    /// [`powersgd`]: 14, which no codec has.
    PowerSgd,
}

impl SchemeId {
    const POWER_SGD: u8 = 14;

    /// The name in commands and reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Codec(id) => id.name(),
            Self::PowerSgd => "powersgd",
        }
    }
}

impl fmt::Display for SchemeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl From<CodecId> for SchemeId {
    fn from(id: CodecId) -> Self {
        Self::Codec(id)
    }
}

impl From<SchemeId> for u8 {
    fn from(id: SchemeId) -> Self {
        match id {
            SchemeId::Codec(id) => id.into(),
            SchemeId::PowerSgd => SchemeId::POWER_SGD,
        }
    }
}

impl TryFrom<u8> for SchemeId {
    type Error = UnknownScheme;

    fn try_from(byte: u8) -> Result<Self, UnknownScheme> {
        match byte {
            Self::POWER_SGD => Ok(Self::PowerSgd),
            _ => CodecId::try_from(byte).map(Self::Codec).map_err(|UnknownCodec(byte)| UnknownScheme(byte)),
        }
    }
}

/// A peer sent a byte that is neither a codec's nor another scheme's in this build.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{}, {} ({})", UnknownCodec(*.0), SchemeId::POWER_SGD, SchemeId::PowerSgd)]
pub struct UnknownScheme(pub u8);

impl From<Codec> for Scheme {
    fn from(codec: Codec) -> Self {
        Self::Codec(codec)
    }
}

impl From<powersgd::Config> for Scheme {
    fn from(config: powersgd::Config) -> Self {
        Self::PowerSgd(config)
    }
}

impl Scheme {
    /// Name and byte.
    #[must_use]
    pub fn id(&self) -> SchemeId {
        match self {
            Self::Codec(codec) => codec.id().into(),
            Self::PowerSgd(_) => SchemeId::PowerSgd,
        }
    }

    /// Checks every parameter.
    ///
    /// # Errors
    ///
    /// The first parameter that is out of its range, with its value and the range.
    pub fn validate(&self) -> Result<(), SyncError> {
        match self {
            Self::Codec(codec) => Ok(codec.validate()?),
            Self::PowerSgd(config) => Ok(config.validate()?),
        }
    }

    /// Elements on whose multiples shards start.
    #[must_use]
    pub fn group(&self) -> usize {
        match self {
            Self::Codec(codec) => codec.unit().elements,
            Self::PowerSgd(_) => powersgd::GROUP,
        }
    }

    /// Bytes that an owner receives for an element, of each rank: 0 where factors travel, whoever owns what.
    pub(super) fn bytes_per_element(&self) -> f64 {
        match self {
            Self::Codec(codec) => {
                let unit = codec.unit();
                4.0 * unit.words as f64 / unit.elements as f64
            }
            Self::PowerSgd(_) => 0.0,
        }
    }

    /// The power of two of codes per gradient unit, for a codec that has one for the whole gradient.
    #[must_use]
    pub fn scale_log2(&self) -> Option<i8> {
        match self {
            Self::Codec(codec) => codec.scale_log2(),
            Self::PowerSgd(_) => None,
        }
    }

    /// Whether `step` zeroes the residual.
    #[must_use]
    pub fn is_reset(&self, step: Step) -> bool {
        match self {
            Self::Codec(codec) => codec.is_reset(step),
            Self::PowerSgd(_) => false,
        }
    }

    /// The name, with those parameters that are not as by default: what tells schemes apart in few words.
    #[must_use]
    pub fn short(&self) -> String {
        let default = match self {
            Self::Codec(codec) => Self::Codec(Codec::new(codec.id())),
            Self::PowerSgd(_) => Self::PowerSgd(powersgd::Config::default()),
        };
        let default = default.parameters();
        let changed: Vec<Parameter> =
            self.parameters().into_iter().filter(|own| !default.contains(own)).collect();
        Named(self.id().name(), &changed).to_string()
    }

    /// All parameters but the scale, by their names.
    #[must_use]
    pub fn parameters(&self) -> Vec<Parameter> {
        match self {
            Self::Codec(codec) => codec.parameters(),
            Self::PowerSgd(config) => config.parameters(),
        }
    }

    /// At most 10 numbers, each fitting 32 bits: what ranks compare before the first step, besides the scale.
    #[must_use]
    pub fn compared(&self, shapes: &[Shape]) -> Vec<Parameter> {
        match self {
            Self::Codec(codec) => codec.parameters(),
            Self::PowerSgd(config) => config.compared(shapes),
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Named(self.id().name(), &self.parameters()).fmt(f)
    }
}

/// A text that names no scheme, or a parameter that it does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseSchemeError {
    /// Of a codec.
    #[error("{}{}", .0, also(.0))]
    Codec(#[from] ParseCodecError),
    /// A parameter of `powersgd` cannot be that number.
    #[error("powersgd does not take {text:?}, but {takes} (by default {default})")]
    Value {
        /// What stands there.
        text: String,
        /// What it may be: `least to most`.
        takes: String,
        /// The number that the parameter has if nothing is said.
        default: i64,
    },
    /// Not `parameter=value` with a whole number and the name of one of `powersgd`'s parameters.
    #[error(
        "powersgd does not take {text:?}; its parameters are low_rank, seed, min_compression, each =number"
    )]
    Parameter {
        /// What stands there.
        text: String,
    },
    /// A parameter of `powersgd` is out of its range.
    #[error(transparent)]
    Range(#[from] powersgd::ConfigError),
}

/// The list of names ends with what is no codec.
fn also(error: &ParseCodecError) -> &'static str {
    if matches!(error, ParseCodecError::Name { .. }) { ", powersgd" } else { "" }
}

impl FromStr for Scheme {
    type Err = ParseSchemeError;

    fn from_str(text: &str) -> Result<Self, ParseSchemeError> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        if name != SchemeId::PowerSgd.name() {
            return Ok(Self::Codec(text.parse()?));
        }
        let mut config = powersgd::Config::default();
        for text in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let pair = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let text = text.to_owned();
            let Some((name, value)) = pair else { return Err(ParseSchemeError::Parameter { text }) };
            if !config.set_parameter(name, value) {
                let fresh = powersgd::Config::default();
                let known = fresh.parameters().into_iter().find(|known| known.name == name);
                let Some(Parameter { value: default, .. }) = known else {
                    return Err(ParseSchemeError::Parameter { text });
                };
                let takes = accepted(|value| {
                    let mut changed = fresh;
                    changed.set_parameter(name, value) && changed.validate().is_ok()
                });
                return Err(ParseSchemeError::Value { text, takes, default });
            }
        }
        config.validate()?;
        Ok(Self::PowerSgd(config))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn no_codec_has_the_byte_or_the_name_of_another_scheme() {
        for id in CodecId::ALL {
            assert_ne!(u8::from(id), u8::from(SchemeId::PowerSgd), "{id}");
            assert_ne!(id.name(), SchemeId::PowerSgd.name());
            assert_eq!(SchemeId::try_from(u8::from(id)), Ok(id.into()));
        }
        assert_eq!(SchemeId::try_from(14), Ok(SchemeId::PowerSgd));
        let message = SchemeId::try_from(200).unwrap_err().to_string();
        assert!(message.starts_with("peer names codec 200, this build knows 1 (f32), 2 (loco)"), "{message}");
        assert!(message.ends_with(", 14 (powersgd)"), "{message}");
    }

    #[test]
    fn every_scheme_comes_back_from_its_text() {
        let config = powersgd::Config { low_rank: 2, seed: u32::MAX, min_compression: 7 };
        let codecs = CodecId::ALL.map(|id| Scheme::Codec(Codec::new(id)));
        for scheme in codecs.into_iter().chain([config.into()]) {
            assert_eq!(scheme.to_string().parse(), Ok(scheme));
        }
        assert_eq!("powersgd".parse(), Ok(Scheme::PowerSgd(powersgd::Config::default())));
        assert_eq!("powersgd:low_rank=64".parse::<Scheme>().unwrap().parameters()[0].value, 64);
    }

    #[test]
    fn a_scheme_in_short_says_what_is_not_as_by_default_and_comes_back_from_it() {
        for text in ["loco", "loco:decay=0", "topk:k=32,clip=1", "powersgd", "powersgd:low_rank=2"] {
            let scheme: Scheme = text.parse().unwrap();
            assert_eq!(scheme.short(), text);
        }
        assert_eq!("loco:decay=205".parse::<Scheme>().unwrap().short(), "loco");
    }

    #[test]
    fn a_text_that_is_no_scheme_says_what_there_is() {
        let error = |text: &str| text.parse::<Scheme>().unwrap_err().to_string();
        let unknown = error("zip");
        assert!(unknown.contains("f32, loco") && unknown.ends_with(", powersgd"), "{unknown}");
        assert!(error("f32:x=1").ends_with("it has no parameters"), "{}", error("f32:x=1"));
        for text in ["rank=4", "seed", "seed=x", "rank=1"] {
            let message = error(&format!("powersgd:{text}"));
            assert!(message.starts_with(&format!("powersgd does not take {text:?}; ")), "{message}");
        }
        assert_eq!(
            error("powersgd:low_rank=256"),
            "powersgd does not take \"low_rank=256\", but 1 to 64 (by default 4)"
        );
        assert!(error("powersgd:seed=-1").ends_with(", but 0 to 4294967295 (by default 0)"));
        assert_eq!(error("powersgd:low_rank=65"), "low_rank is 65, powersgd takes 1 to 64");
    }
}
