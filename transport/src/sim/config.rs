//! What a link is like, and how that is written: `1Gbit,80ms,0.1%`.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// Every node's line, and what lies between two of them.
///
/// Written `RATE,RTT,LOSS` and any of `queue=BYTES`, `jitter=TIME`, `burst=PACKETS`, `reorder=SHARE`, `duplicate=SHARE`:
/// `1Gbit,80ms,0.1%`, `100Mbit,80ms,1%,burst=8,queue=250kB`. Units are bit, kbit, Mbit, Gbit (powers of 1000, per second),
/// us, ms, s, and B, kB, MB (powers of 1000); a loss is in percent.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LinkConfig {
    /// Bits per second of every node's line, each way, 1 kbit/s to 1 Tbit/s; `None` for no limit. Bytes are those of IP
    /// packets, headers included.
    pub rate: Option<u64>,
    /// Bytes that wait for a line at most; more are dropped. Text without `queue=` means one bandwidth-delay product, and
    /// 16 KiB at least.
    pub queue: u64,
    /// Between two nodes.
    pub wire: WireConfig,
}

/// What happens to packets between two nodes, one way.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct WireConfig {
    /// One-way delay: half of the round-trip time. At most 60 s.
    pub delay: Duration,
    /// Each packet takes up to this much longer, uniformly, and never overtakes the one before. At most 60 s.
    pub jitter: Duration,
    /// Share of packets that are lost, 0 to 1.
    pub loss: f64,
    /// Mean number of packets lost in a row, at least 1; `None` for losses that do not depend on each other.
    /// Gilbert's model: a good state that loses nothing, a bad one that loses all.
    pub burst: Option<f64>,
    /// Share of packets that are held back long enough for later ones to overtake them, 0 to 1.
    pub reorder: f64,
    /// Share of packets that arrive twice, 0 to 1.
    pub duplicate: f64,
}

/// A text that is no link, or a link that can't be.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("link {text:?}: {reason}")]
pub struct LinkError {
    /// What was given.
    pub text: String,
    /// What is wrong with it.
    pub reason: String,
}

const LONGEST: Duration = Duration::from_secs(60);
const SMALLEST_QUEUE: u64 = 16 << 10;

impl WireConfig {
    /// Nothing but a delay.
    #[must_use]
    pub fn new(delay: Duration) -> Self {
        Self { delay, ..Self::default() }
    }

    fn validate(&self) -> Result<(), String> {
        for (name, time) in [("delay", self.delay), ("jitter", self.jitter)] {
            if time > LONGEST {
                return Err(format!("{name} {time:?} is above {LONGEST:?}"));
            }
        }
        for (name, share) in [("loss", self.loss), ("reorder", self.reorder), ("duplicate", self.duplicate)] {
            if !(0.0..=1.0).contains(&share) {
                return Err(format!("{name} {}% is not in 0% to 100%", share * 100.0));
            }
        }
        match self.burst {
            Some(burst) if !(1.0..=1e6).contains(&burst) => {
                Err(format!("burst {burst} is not in 1 to 1000000"))
            }
            _ => Ok(()),
        }
    }
}

impl LinkConfig {
    /// A line of `rate` bits per second and a queue of one bandwidth-delay product over `wire`.
    #[must_use]
    pub fn new(rate: u64, wire: WireConfig) -> Self {
        let product = u128::from(rate / 8) * (2 * wire.delay).as_nanos() / 1_000_000_000;
        let queue = u64::try_from(product).unwrap_or(u64::MAX).max(SMALLEST_QUEUE);
        Self { rate: Some(rate), queue, wire }
    }

    /// Round-trip time of a packet that never waits.
    #[must_use]
    pub fn round_trip(&self) -> Duration {
        2 * self.wire.delay
    }

    /// Checks ranges.
    ///
    /// # Errors
    ///
    /// [`LinkError`] with the value and its range.
    pub fn validate(&self) -> Result<(), LinkError> {
        let rate = self.rate.map_or(Ok(()), check_rate);
        rate.and_then(|()| self.wire.validate())
            .map_err(|reason| LinkError { text: self.to_string(), reason })
    }
}

impl FromStr for LinkConfig {
    type Err = LinkError;

    fn from_str(text: &str) -> Result<Self, LinkError> {
        let link = parse(text).map_err(|reason| LinkError { text: text.to_owned(), reason })?;
        link.validate().map_err(|error| LinkError { text: text.to_owned(), ..error })?;
        Ok(link)
    }
}

fn parse(text: &str) -> Result<LinkConfig, String> {
    let mut parts = text.split(',');
    let mut next =
        |what| parts.next().filter(|part| !part.is_empty()).ok_or(format!("no {what}: RATE,RTT,LOSS"));
    let rate = number(next("rate")?, &RATES)?;
    let round_trip = time(next("round-trip time")?)?;
    let loss = number(next("loss")?, &SHARES)?;
    let mut wire = WireConfig { loss, ..WireConfig::new(round_trip / 2) };
    let mut queue = None;
    for part in parts {
        let (name, value) = part.split_once('=').ok_or(format!("{part:?} is not name=value"))?;
        match name {
            "queue" => queue = Some(whole(number(value, &SIZES)?)),
            "jitter" => wire.jitter = time(value)?,
            "burst" => wire.burst = Some(number(value, &[("", 0)])?),
            "reorder" => wire.reorder = number(value, &SHARES)?,
            "duplicate" => wire.duplicate = number(value, &SHARES)?,
            _ => return Err(format!("{name:?} is none of queue, jitter, burst, reorder, duplicate")),
        }
    }
    let link = LinkConfig::new(whole(rate), wire);
    Ok(LinkConfig { queue: queue.unwrap_or(link.queue), ..link })
}

/// Names, and the power of ten that each stands for.
type Units = [(&'static str, i8)];

const RATES: [(&str, i8); 4] = [("bit", 0), ("kbit", 3), ("Mbit", 6), ("Gbit", 9)];
const SIZES: [(&str, i8); 4] = [("B", 0), ("kB", 3), ("MB", 6), ("GB", 9)];
const TIMES: [(&str, i8); 3] = [("us", -6), ("ms", -3), ("s", 0)];
const SHARES: [(&str, i8); 1] = [("%", PERCENT)];
const PERCENT: i8 = -2;

/// A number that is not negative, in its unit: the f64 nearest to what stands there, so that what is written in other
/// digits or another unit is read as the same.
fn number(text: &str, units: &Units) -> Result<f64, String> {
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let known: Vec<&str> = units.iter().map(|(name, _)| *name).collect();
    let power = units.iter().find(|(name, _)| *name == unit).map(|(_, power)| *power);
    let power = power.ok_or_else(|| format!("unit {unit:?} of {text:?} is none of {}", known.join(", ")))?;
    format!("{number}e{power}").parse().map_err(|_| format!("{text:?} does not begin with a number"))
}

/// Bits per second, 1 kbit/s to 1 Tbit/s, as in `1Gbit`.
#[cfg(feature = "quic")]
pub(crate) fn rate(text: &str) -> Result<u64, String> {
    let rate = whole(number(text, &RATES)?);
    check_rate(rate)?;
    Ok(rate)
}

fn check_rate(rate: u64) -> Result<(), String> {
    if (1000..=1_000_000_000_000).contains(&rate) {
        Ok(())
    } else {
        Err(format!("rate {rate} bit/s is not in 1 kbit/s to 1 Tbit/s"))
    }
}

fn time(text: &str) -> Result<Duration, String> {
    Duration::try_from_secs_f64(number(text, &TIMES)?).map_err(|_| format!("{text:?} is too long"))
}

/// The nearest whole number.
#[expect(
    clippy::cast_possible_truncation,
    reason = "a float becomes the nearest u64, which is what is wanted"
)]
fn whole(number: f64) -> u64 {
    number.round() as u64
}

/// The text form, in the largest units in which no digit is lost.
impl fmt::Display for LinkConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { rate, queue, wire } = self;
        match rate {
            Some(rate) => {
                scaled(f, *rate, &[("Gbit", 1_000_000_000), ("Mbit", 1_000_000), ("kbit", 1000), ("bit", 1)])?
            }
            None => f.write_str("unlimited")?,
        }
        write!(f, ",{},{}%", Time(self.round_trip()), Percent(wire.loss))?;
        if rate.is_none_or(|rate| Self::new(rate, *wire).queue != *queue) {
            f.write_str(",queue=")?;
            scaled(f, *queue, &[("MB", 1_000_000), ("kB", 1000), ("B", 1)])?;
        }
        if !wire.jitter.is_zero() {
            write!(f, ",jitter={}", Time(wire.jitter))?;
        }
        if let Some(burst) = wire.burst {
            write!(f, ",burst={burst}")?;
        }
        for (name, share) in [("reorder", wire.reorder), ("duplicate", wire.duplicate)] {
            if share != 0.0 {
                write!(f, ",{name}={}%", Percent(share))?;
            }
        }
        Ok(())
    }
}

fn scaled(f: &mut fmt::Formatter<'_>, value: u64, units: &[(&str, u64)]) -> fmt::Result {
    // Nothing is a multiple of everything, and written in the smallest unit.
    let fits = |size: u64| value.is_multiple_of(size) && (value > 0 || size == 1);
    let unit = units.iter().find(|(_, size)| fits(*size));
    let (name, size) = unit.copied().unwrap_or(("", 1));
    write!(f, "{}{name}", value / size)
}

struct Time(Duration);

impl fmt::Display for Time {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (micros, nanos) = (self.0.as_micros(), self.0.subsec_nanos() % 1000);
        match micros {
            _ if nanos > 0 => f
                .write_str(format!("{micros}.{nanos:03}").trim_end_matches('0'))
                .and_then(|()| f.write_str("us")),
            0 => f.write_str("0ms"),
            _ if micros.is_multiple_of(1_000_000) => write!(f, "{}s", micros / 1_000_000),
            _ if micros.is_multiple_of(1000) => write!(f, "{}ms", micros / 1000),
            _ => write!(f, "{micros}us"),
        }
    }
}

/// A share in percent, in the fewest digits that are read as the same share: those of the share, with the point moved.
struct Percent(f64);

impl fmt::Display for Percent {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = format!("{:e}", self.0);
        let (mantissa, exponent) = text.split_once('e').unwrap_or((&text, "0"));
        let exponent: i32 = exponent.parse().unwrap_or(0);
        let digits = mantissa.replace('.', "");
        // Digits before the point.
        let before = if self.0 == 0.0 { 1 } else { 1 + exponent - i32::from(PERCENT) };
        let (before, zeros) = (usize::try_from(before).unwrap_or(0), usize::try_from(-before).unwrap_or(0));
        match digits.split_at_checked(before) {
            Some(("", after)) => write!(f, "0.{:0<zeros$}{after}", ""),
            Some((before, after)) if !after.is_empty() => write!(f, "{before}.{after}"),
            _ => write!(f, "{digits:0<before$}"),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_link_is_written_as_it_is_read() {
        for text in [
            "1Gbit,80ms,0.1%",
            "100Mbit,150ms,1%",
            "1500kbit,0ms,0%",
            "200Mbit,60ms,0.1%,queue=250kB,jitter=5ms,burst=8,reorder=1%,duplicate=0.01%",
            "10Gbit,500us,100%",
        ] {
            let link: LinkConfig = text.parse().unwrap();
            assert_eq!(link.to_string(), text, "{link:?}");
        }
        let link: LinkConfig = "1Gbit,80ms,0.1%".parse().unwrap();
        assert_eq!((link.rate, link.queue), (Some(1_000_000_000), 10_000_000), "one bandwidth-delay product");
        assert_eq!((link.wire.delay, link.wire.loss), (Duration::from_millis(40), 0.001), "{link:?}");
        let fraction: LinkConfig = "2.5Gbit,0.5ms,0%".parse().unwrap();
        assert_eq!(fraction.to_string(), "2500Mbit,500us,0%");
        assert_eq!(fraction.queue, 156_250, "{fraction:?}");
    }

    #[test]
    fn what_is_nothing_very_small_or_of_many_digits_comes_back_from_its_text_too() {
        for text in [
            "1500kbit,100us,100%,queue=0MB",
            "1Gbit,0.123us,0%",
            "1Gbit,1000.5us,0.00000001%,jitter=0.001us",
            "1Gbit,1ms,0.1234567890123%,reorder=0.00000001%,duplicate=33.333333333333336%",
            "200Mbit,59s,0%,reorder=1.55755555555555552%",
            "1Gbit,1ms,100%,queue=17999999999999999.123kB,burst=1.0000000000000002",
        ] {
            let link: LinkConfig = text.parse().unwrap();
            assert_eq!(link.to_string().parse(), Ok(link), "{text} is written {link}");
        }
    }

    #[test]
    fn what_is_no_link_is_refused_with_its_reason() {
        for (text, reason) in [
            ("", "no rate: RATE,RTT,LOSS"),
            ("1Gbit,80ms", "no loss: RATE,RTT,LOSS"),
            ("1Gb,80ms,0%", "unit \"Gb\" of \"1Gb\" is none of bit, kbit, Mbit, Gbit"),
            ("-1Gbit,80ms,0%", "unit \"-1Gbit\" of \"-1Gbit\" is none of bit, kbit, Mbit, Gbit"),
            ("Gbit,80ms,0%", "\"Gbit\" does not begin with a number"),
            ("1Gbit,80ms,0.1", "unit \"\" of \"0.1\" is none of %"),
            ("1Gbit,80ms,101%", "loss 101% is not in 0% to 100%"),
            ("1bit,80ms,0%", "rate 1 bit/s is not in 1 kbit/s to 1 Tbit/s"),
            ("1Gbit,300s,0%", "delay 150s is above 60s"),
            ("1Gbit,80ms,1%,burst=0.5", "burst 0.5 is not in 1 to 1000000"),
            ("1Gbit,80ms,1%,loss", "\"loss\" is not name=value"),
            ("1Gbit,80ms,1%,speed=1", "\"speed\" is none of queue, jitter, burst, reorder, duplicate"),
        ] {
            let error = text.parse::<LinkConfig>().unwrap_err();
            assert_eq!((error.text.as_str(), error.reason.as_str()), (text, reason));
        }
    }
}
