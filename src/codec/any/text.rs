//! Codecs as text: `name:parameter=value,parameter=value`.

use std::fmt;
use std::str::FromStr;

use super::{Codec, Parameter};
use crate::codec::{CodecId, ConfigError};

/// A name and the parameters that are said with it.
pub(crate) struct Named<'a>(pub(crate) &'a str, pub(crate) &'a [Parameter]);

impl fmt::Display for Named<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(name, parameters) = self;
        f.write_str(name)?;
        for (index, Parameter { name, value }) in parameters.iter().enumerate() {
            let separator = if index == 0 { ':' } else { ',' };
            write!(f, "{separator}{name}={value}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Codec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Named(self.id().name(), &self.parameters()).fmt(f)
    }
}

/// A text that names no codec, or a parameter that it does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ParseCodecError {
    /// No codec has this name.
    #[error("no codec is named {name:?}; there are {}", names())]
    Name {
        /// What stands there.
        name: String,
    },
    /// Not `parameter=value` with a whole number.
    #[error("{text:?} is not parameter=whole number")]
    Form {
        /// What stands there.
        text: String,
    },
    /// The codec has no such parameter.
    #[error("{codec} does not take {text:?}; {}", parameters(*codec))]
    Parameter {
        /// Which codec.
        codec: CodecId,
        /// What stands there.
        text: String,
    },
    /// The codec's parameter cannot be that number.
    #[error("{codec} does not take {text:?}, but {takes} (by default {default})")]
    Value {
        /// Which codec.
        codec: CodecId,
        /// What stands there.
        text: String,
        /// What it may be if the other parameters are as by default: `least to most`, or the numbers one by one.
        takes: String,
        /// The number that the parameter has if nothing is said.
        default: i64,
    },
    /// The parameter stands there twice.
    #[error("parameter {name:?} is given twice")]
    Twice {
        /// Which.
        name: String,
    },
    /// A parameter is out of its range.
    #[error(transparent)]
    Range(#[from] ConfigError),
}

impl FromStr for Codec {
    type Err = ParseCodecError;

    fn from_str(text: &str) -> Result<Self, ParseCodecError> {
        let (name, rest) = text.split_once(':').map_or((text, None), |(name, rest)| (name, Some(rest)));
        let id = CodecId::ALL.into_iter().find(|id| id.name() == name);
        let mut codec = Self::new(id.ok_or_else(|| ParseCodecError::Name { name: name.to_owned() })?);
        let mut seen = Vec::new();
        for text in rest.into_iter().flat_map(|rest| rest.split(',')) {
            let pair = text.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
            let (name, value) = pair.ok_or_else(|| ParseCodecError::Form { text: text.to_owned() })?;
            if seen.contains(&name) {
                return Err(ParseCodecError::Twice { name: name.to_owned() });
            }
            seen.push(name);
            if !codec.set_parameter(name, value) {
                let (codec, text) = (codec.id(), text.to_owned());
                let fresh = Self::new(codec);
                return Err(match fresh.parameters().into_iter().find(|known| known.name == name) {
                    Some(Parameter { value: default, .. }) => {
                        let takes = accepted(|value| {
                            let mut changed = fresh;
                            changed.set_parameter(name, value) && changed.validate().is_ok()
                        });
                        ParseCodecError::Value { codec, text, takes, default }
                    }
                    None => ParseCodecError::Parameter { codec, text },
                });
            }
        }
        codec.validate()?;
        Ok(codec)
    }
}

/// The whole numbers that a parameter takes, found by trying: a list of ranges would say them twice.
pub(crate) fn accepted(takes: impl Fn(i64) -> bool) -> String {
    // All numbers of up to 16 bits. Of a wider parameter, which has no range of its own, the type's last.
    let tried = (i8::MIN.into()..=u16::MAX.into()).chain([u32::MAX.into()]);
    // Of the text of a stranger, so not all of them are kept.
    let (mut some, mut most) = (Vec::new(), None);
    for value in tried.filter(|value| takes(*value)) {
        if some.len() <= LISTED {
            some.push(value);
        }
        most = Some(value);
    }
    let (Some(least), Some(most)) = (some.first(), most) else { return "no number".to_owned() };
    if some.len() <= LISTED {
        return some.iter().map(i64::to_string).collect::<Vec<_>>().join(", ");
    }
    match some[1] - some[0] {
        1 => format!("{least} to {most}"),
        step => format!("{least} to {most} in steps of {step}"),
    }
}

/// As many numbers are said one by one.
const LISTED: usize = 8;

fn names() -> String {
    CodecId::ALL.map(CodecId::name).join(", ")
}

fn parameters(id: CodecId) -> String {
    let parameters = Codec::new(id).parameters();
    if parameters.is_empty() {
        return "it has no parameters".to_owned();
    }
    let names: Vec<&str> = parameters.iter().map(|parameter| parameter.name).collect();
    format!("its parameters are {}", names.join(", "))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;
    use crate::codec::Unit;

    #[test]
    fn every_codec_comes_back_from_its_text_and_its_parameters_can_all_be_set() {
        for id in CodecId::ALL {
            let mut codec = Codec::new(id);
            assert_eq!((codec.id(), codec.validate()), (id, Ok(())));
            assert_eq!(id.name().parse(), Ok(codec));
            assert_eq!(codec.to_string().parse(), Ok(codec));
            assert!(codec.parameters().len() <= 10, "{id} has more parameters than ranks compare");
            for Parameter { name, value } in codec.parameters() {
                assert!(codec.set_parameter(name, value), "{id} has no way to set {name}");
            }
            assert_eq!(codec, Codec::new(id), "setting what is there changes nothing");
        }
    }

    #[test]
    fn the_words_of_a_shard_are_those_of_the_whole_gradient() {
        for codec in CodecId::ALL.map(Codec::new) {
            let Unit { elements, words, .. } = codec.unit();
            assert!(elements % 8 == 0 && words > 0, "{codec}: {:?}", codec.unit());
            for n in 0..3 * elements {
                let units = n / elements;
                let rest = codec.packet_words(n % elements);
                assert_eq!(codec.packet_words(n), units * words + rest, "{codec}, {n} elements");
                assert!(rest <= words && (rest > 0) == (n % elements > 0), "{codec}, {n} elements");
            }
        }
    }

    #[test]
    fn a_text_that_is_no_codec_says_what_there_is() {
        let error = |text: &str| text.parse::<Codec>().unwrap_err().to_string();
        assert!(error("zip").starts_with("no codec is named \"zip\"; there are f32, loco"));
        assert_eq!(
            error("loco:rank=4"),
            "loco does not take \"rank=4\"; its parameters are residual_scale_log2, decay, reset_every"
        );
        assert_eq!(error("loco:decay"), "\"decay\" is not parameter=whole number");
        assert_eq!(error("loco:decay=0.8"), "\"decay=0.8\" is not parameter=whole number");
        assert_eq!(
            error("loco:decay=256"),
            "loco does not take \"decay=256\", but 0 to 255 (by default 205)"
        );
        for (text, takes) in [
            ("block4:block=65536", "32 to 1024 in steps of 8 (by default 64)"),
            ("loco-block:bits=3", "2, 4, 8 (by default 4)"),
            ("loco-block:base_log2=128", "-80 to 55 (by default -50)"),
            ("sign:reset_every=-1", "0 to 4294967295 (by default 0)"),
        ] {
            let message = error(text);
            assert!(message.ends_with(&format!(", but {takes}")), "{message}");
        }
        assert_eq!(error("loco:decay=0,decay=1"), "parameter \"decay\" is given twice");
        assert_eq!(error("loco:residual_scale_log2=7"), "residual_scale_log2 is 7, loco takes 0 to 6");
        assert_eq!(error("f32:x=1"), "f32 does not take \"x=1\"; it has no parameters");
    }
}
