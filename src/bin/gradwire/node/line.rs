//! What a node is told of its line: `--link`.

use std::num::NonZeroU64;
use std::str::FromStr;
use std::time::Duration;

use gradwire::transport::quic::congestion::Link;
use gradwire::transport::quic::{Config, Congestion, Tuning};
use gradwire::transport::sim::{LinkConfig, LinkError};

/// `estimated`, a rate, or a rate and the longest round trip to a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Line {
    link: Link,
    /// With its rate, what windows are made for.
    far: Option<(NonZeroU64, Duration)>,
}

impl Line {
    pub(super) fn rate(&self) -> Link {
        self.link
    }

    /// Sets how fast a mesh sends, and its windows where the round trip is known.
    pub(super) fn apply(&self, config: &mut Config) {
        config.congestion = Congestion::Paced(self.link);
        if let Some((rate, round_trip)) = self.far {
            config.tuning = Tuning::for_link(rate, round_trip);
        }
    }
}

impl FromStr for Line {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let reason = |error: LinkError| error.reason;
        let Some((_, round_trip)) = text.split_once(',') else {
            return Ok(Self { link: text.parse().map_err(reason)?, far: None });
        };
        if round_trip.is_empty() || round_trip.contains(',') {
            return Err("not RATE or RATE,ROUND_TRIP".into());
        }
        // As an emulated one that loses nothing.
        let line: LinkConfig = format!("{text},0%").parse().map_err(reason)?;
        let rate = line.rate.and_then(NonZeroU64::new);
        let link = rate.map_or(Link::Estimated, Link::Declared);
        Ok(Self { link, far: rate.map(|rate| (rate, line.round_trip())) })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn a_line_is_a_rate_with_or_without_a_round_trip() {
        let gigabit = NonZeroU64::new(1_000_000_000).unwrap();
        let line = |text: &str| text.parse::<Line>().unwrap();
        assert_eq!(line("estimated"), Line { link: Link::Estimated, far: None });
        assert_eq!(line("1Gbit"), Line { link: Link::Declared(gigabit), far: None });
        let far = Some((gigabit, Duration::from_millis(150)));
        assert_eq!(line("1Gbit,150ms"), Line { link: Link::Declared(gigabit), far });
        for (text, reason) in [
            ("fast", "unit \"fast\" of \"fast\" is none of bit, kbit, Mbit, Gbit"),
            ("1Gbit,", "not RATE or RATE,ROUND_TRIP"),
            ("1Gbit,150", "unit \"\" of \"150\" is none of us, ms, s"),
            ("1Gbit,80ms,0.1%", "not RATE or RATE,ROUND_TRIP"),
            ("estimated,80ms", "unit \"estimated\" of \"estimated\" is none of bit, kbit, Mbit, Gbit"),
        ] {
            assert_eq!(text.parse::<Line>().unwrap_err(), reason, "{text}");
        }
    }
}
