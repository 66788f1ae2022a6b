//! By which congestion control bytes go.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use clap::ValueEnum;
use gradwire::transport::quic::Congestion;
use gradwire::transport::quic::congestion::Link;
use gradwire::transport::sim::{LinkConfig, LinkError};
use serde::{Deserialize, Serialize};

/// By which congestion control an exchange goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::bench) enum Way {
    /// QUIC at a rate that is declared or estimated: what a mesh does.
    Paced,
    /// QUIC with Cubic (RFC 9438), to compare with.
    Cubic,
}

/// Where `paced` has its rate from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::bench) enum LinkRate {
    /// That of the emulated link.
    Declared,
    Estimated,
    /// Another one, in bits per second.
    Rate(NonZeroU64),
}

impl FromStr for LinkRate {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "declared" => Ok(Self::Declared),
            _ => match text.parse() {
                Ok(Link::Estimated) => Ok(Self::Estimated),
                Ok(Link::Declared(rate)) => Ok(Self::Rate(rate)),
                Err(LinkError { reason, .. }) => {
                    Err(format!("neither declared, estimated nor a rate: {reason}"))
                }
            },
        }
    }
}

impl LinkRate {
    /// Bits per second that `way` is told of an emulated `link`; `None` where it is told nothing.
    pub(in crate::bench) fn told(self, way: Way, link: Option<&LinkConfig>) -> Option<NonZeroU64> {
        match (way, self) {
            (Way::Cubic, _) | (Way::Paced, Self::Estimated) => None,
            (Way::Paced, Self::Declared) => link?.rate.and_then(NonZeroU64::new),
            (Way::Paced, Self::Rate(rate)) => Some(rate),
        }
    }
}

impl LinkRate {
    /// What the windows of `way` are made for over an emulated `link`; `None` for the mesh's default. Cubic's have the size
    /// that a declared rate's would have.
    pub(in crate::bench) fn windows(
        self,
        way: Way,
        link: Option<&LinkConfig>,
    ) -> Option<(NonZeroU64, Duration)> {
        let link = link?;
        let rate = match way {
            Way::Paced => self.told(way, Some(link)),
            Way::Cubic => link.rate.and_then(NonZeroU64::new),
        };
        Some((rate?, link.round_trip()))
    }
}

impl Way {
    /// What a mesh does that was told this rate, in bits per second, or none.
    pub(super) fn congestion(self, told: Option<NonZeroU64>) -> Congestion {
        match self {
            Self::Paced => Congestion::Paced(told.map_or(Link::Estimated, Link::Declared)),
            Self::Cubic => Congestion::Cubic,
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_mesh_is_told_the_rate_of_the_link_unless_another_or_none_is_asked_for() {
        let link: LinkConfig = "1Gbit,80ms,0.1%".parse().unwrap();
        let told =
            |text: &str, way, link| text.parse::<LinkRate>().unwrap().told(way, link).map(NonZeroU64::get);
        assert_eq!(told("declared", Way::Paced, Some(&link)), Some(1_000_000_000));
        assert_eq!(told("declared", Way::Paced, None), None, "there is no link");
        assert_eq!(told("estimated", Way::Paced, Some(&link)), None);
        assert_eq!(told("1.2Gbit", Way::Paced, Some(&link)), Some(1_200_000_000));
        assert_eq!(told("1.2Gbit", Way::Cubic, Some(&link)), None, "Cubic asks nobody");
        assert_eq!(Way::Cubic.congestion(None), Congestion::Cubic);
        assert_eq!(Way::Paced.congestion(None), Congestion::default());
        for text in ["", "fast", "1Gb", "0Gbit"] {
            assert!(text.parse::<LinkRate>().is_err(), "{text}");
        }
    }
}
