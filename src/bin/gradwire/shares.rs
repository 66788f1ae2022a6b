//! How large the shard of each rank is, as users say it.

use std::fmt;
use std::num::NonZeroU32;
use std::str::FromStr;

use gradwire::sync::Shares;
use gradwire::sync::shares::Speed;

use crate::failure::Failure;

/// The longest list of weights that is compared, and shown, as it is.
const MOST_SHOWN: usize = 128;

/// `--shares`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ShareArg {
    Equal,
    Learned(NonZeroU32),
    /// By what each node says of its line.
    Declared,
    /// By rank.
    Weights(Vec<u32>),
}

impl FromStr for ShareArg {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let Shares::Learned { steps } = Shares::LEARNED else { unreachable!("it is") };
        match text.split_once(':') {
            Some(("learned", steps)) => match steps.parse() {
                Ok(steps) => Ok(Self::Learned(steps)),
                Err(_) => Err(format!("{steps:?} is no number of steps, 1 to {}", u32::MAX)),
            },
            None if text == "equal" => Ok(Self::Equal),
            None if text == "learned" => Ok(Self::Learned(steps)),
            None if text == "declared" => Ok(Self::Declared),
            _ => {
                let weights = text.split(',').map(str::parse).collect::<Result<_, _>>();
                weights.map(Self::Weights).map_err(|_| {
                    "neither `equal`, `learned`, `learned:STEPS`, `declared` nor a whole number per rank, as in `2,1,1`"
                        .into()
                })
            }
        }
    }
}

impl fmt::Display for ShareArg {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Equal => f.write_str("equal"),
            Self::Learned(steps) => write!(f, "learned:{steps}"),
            Self::Declared => f.write_str("declared"),
            Self::Weights(weights) => {
                let each: Vec<String> = weights.iter().map(ToString::to_string).collect();
                f.write_str(&each.join(","))
            }
        }
    }
}

impl ShareArg {
    /// Checks what the text alone does not show, for `ranks` ranks in `sites` sites that train for `steps` steps, whose own
    /// `line` was declared or not.
    pub(crate) fn check(
        &self,
        ranks: u32,
        sites: usize,
        steps: u64,
        line: Option<Speed>,
    ) -> Result<(), Failure> {
        match self {
            Self::Learned(learned) if u64::from(learned.get()) >= steps => Err(Failure::Usage(format!(
                "--shares {self}: {learned} steps to learn in leave none of {steps}"
            ))),
            Self::Learned(_) | Self::Declared if sites > 1 => Err(Failure::Usage(format!(
                "--shares {self} goes by ranks, which exchange by way of {sites} sites: weights can be had there"
            ))),
            Self::Weights(weights) if weights.len() != ranks as usize => Err(Failure::Usage(format!(
                "--shares has {} weights, there are {ranks} ranks",
                weights.len()
            ))),
            Self::Weights(weights) if weights.iter().all(|weight| *weight == 0) => {
                Err(Failure::Usage("--shares: at least one weight must be above 0".into()))
            }
            Self::Declared if line.is_none() => Err(Failure::Usage(
                "--shares declared goes by the line of every node, which `gradwire node --link RATE` says"
                    .into(),
            )),
            _ => Ok(()),
        }
    }

    /// As the library takes it.
    pub(crate) fn shares(&self, line: Option<Speed>) -> Shares {
        match self {
            Self::Equal => Shares::Equal,
            Self::Learned(steps) => Shares::Learned { steps: *steps },
            Self::Declared => Shares::Declared(line.unwrap_or_default()),
            Self::Weights(weights) => Shares::Weights(weights.clone()),
        }
    }

    /// What ranks compare, and a human can read.
    pub(crate) fn to_text(&self) -> String {
        let text = self.to_string();
        if text.len() > MOST_SHOWN { blake3::hash(text.as_bytes()).to_hex().to_string() } else { text }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]

    use super::*;

    #[test]
    fn shares_come_back_from_their_text_and_others_are_refused() {
        for text in ["equal", "learned:3", "declared", "2,1,0"] {
            assert_eq!(text.parse::<ShareArg>().unwrap().to_string(), text);
        }
        assert_eq!("learned".parse::<ShareArg>().unwrap().to_string(), "learned:10");
        for text in ["", "learned:0", "learned:x", "1,,2", "1,-1", "equal:2", "fast"] {
            assert!(text.parse::<ShareArg>().is_err(), "{text:?}");
        }
    }

    #[test]
    fn shares_that_cannot_be_are_refused_with_both_numbers() {
        let error = |text: &str| {
            text.parse::<ShareArg>().unwrap().check(3, 1, 100, None).map_err(|error| error.to_string())
        };
        assert_eq!(error("1,2"), Err("--shares has 2 weights, there are 3 ranks".into()));
        assert_eq!(error("0,0,0"), Err("--shares: at least one weight must be above 0".into()));
        assert_eq!(error("learned:99"), Ok(()));
        assert_eq!(
            error("learned:100"),
            Err("--shares learned:100: 100 steps to learn in leave none of 100".into())
        );
        assert!(error("declared").unwrap_err().contains("--link RATE"));
        assert_eq!(error("0,0,1"), Ok(()));
        assert_eq!(ShareArg::Declared.check(3, 1, 100, Some(Speed::default())).map_err(|_| ()), Ok(()));
        assert!(ShareArg::Declared.check(3, 2, 100, Some(Speed::default())).is_err());
    }

    #[test]
    fn what_ranks_compare_is_short() {
        let many = ShareArg::Weights(vec![1000; 4096]);
        assert_eq!(many.to_text().len(), 64);
        assert_eq!(ShareArg::Equal.to_text(), "equal");
    }
}
