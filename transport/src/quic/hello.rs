//! The first words on a connection: who is there, and what both sides must agree on.
//!
//! **Wire layout**, little-endian:
//!
//! | bytes | field | |
//! |---|---|---|
//! | 0..4 | magic | `GRDH` |
//! | 4..6 | wire version | at this place in every version, so that a refusal can name it |
//! | 6..8 | length | bytes that follow, at most [`MAX_BODY`] |
//! | 8..12 | world size | |
//! | 12..16 | epoch | |
//! | 16..20 | rank | the sender's claim, held against its certificate |
//! | 20..28 | generation | when the sender's process bound its socket, in ns since 1970 by its clock |
//! | 28..30 | agreements | how many, at most [`MAX_AGREEMENTS`] |
//! | .. | each | u16 length and UTF-8 name, u16 length and UTF-8 value |
//!
//! The dialer opens a bidirectional stream and sends its hello; the other side answers with its own; then each
//! sends its verdict, dialer first. A verdict is one byte ([`Verdict`]: 1 is yes, 0 is no, and a reason of u16 length
//! follows, 2 and 3 say that the rank is taken). Both hellos always travel, so both sides find out by themselves what differs.

use std::collections::BTreeMap;

use super::error::JoinError;
use crate::error::clip;
use crate::frame::WIRE_VERSION;
use crate::world::{MAX_WORLD_SIZE, Rank, World};

const MAGIC: [u8; 4] = *b"GRDH";

/// Bytes before the body.
pub(super) const PREFIX_BYTES: usize = 8;

/// The most agreements in a hello.
pub const MAX_AGREEMENTS: usize = 32;

/// The longest name or value of an agreement, in bytes.
pub const MAX_AGREEMENT_BYTES: usize = 256;

/// The longest body: 22 bytes, and 32 agreements of 516 bytes.
pub(super) const MAX_BODY: usize = 22 + MAX_AGREEMENTS * (4 + 2 * MAX_AGREEMENT_BYTES);

/// The longest reason in a verdict, in bytes.
pub(super) const MAX_REASON: usize = 512;

/// Something that every rank must have the same, such as `codec` and its parameters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Agreement {
    /// What it is, at most [`MAX_AGREEMENT_BYTES`]; errors read "rank 2 has NAME ..., ours is ...".
    pub name: String,
    /// Its value, at most [`MAX_AGREEMENT_BYTES`]; compared byte by byte.
    pub value: String,
}

impl Agreement {
    /// `name` must be `value` on every rank.
    #[must_use]
    pub fn new(name: impl Into<String>, value: impl Into<String>) -> Self {
        Self { name: name.into(), value: value.into() }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hello {
    pub(super) size: u32,
    pub(super) epoch: u32,
    pub(super) rank: Rank,
    /// Of two processes with one certificate the one with the higher generation is the one that was meant.
    pub(super) generation: u64,
    pub(super) agreements: Vec<Agreement>,
}

/// What is wrong with a hello's bytes. Its sender is dropped, as any stranger.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum HelloError {
    #[error("first bytes are not a gradwire hello's")]
    Magic,
    #[error("wire version {theirs}")]
    Version { theirs: u16 },
    #[error("hello of {length} bytes, limit {MAX_BODY}")]
    Oversized { length: usize },
    #[error("hello is malformed: {what}")]
    Malformed { what: &'static str },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Yes,
    No(String),
    /// This rank is connected already, by a process that may have just died.
    Duplicate,
    /// This rank is connected already, by a process that has been heard since this one called.
    Alive,
}

impl Hello {
    pub(super) fn new(world: &World, generation: u64, agreements: &[Agreement]) -> Result<Self, JoinError> {
        let refuse = |value: String, range| Err(JoinError::Option { option: "agreements", value, range });
        if agreements.len() > MAX_AGREEMENTS {
            return refuse(format!("{} of them", agreements.len()), "at most 32");
        }
        for (index, agreement) in agreements.iter().enumerate() {
            let longest = agreement.name.len().max(agreement.value.len());
            if longest > MAX_AGREEMENT_BYTES {
                return refuse(format!("{longest} bytes in {:?}", agreement.name), "at most 256 bytes each");
            }
            if agreements[..index].iter().any(|other| other.name == agreement.name) {
                return refuse(format!("{:?} twice", agreement.name), "of distinct names");
            }
        }
        Ok(Self {
            size: world.size(),
            epoch: world.epoch(),
            rank: world.rank(),
            generation,
            agreements: agreements.to_vec(),
        })
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut body = Vec::new();
        body.extend_from_slice(&self.size.to_le_bytes());
        body.extend_from_slice(&self.epoch.to_le_bytes());
        body.extend_from_slice(&self.rank.0.to_le_bytes());
        body.extend_from_slice(&self.generation.to_le_bytes());
        body.extend_from_slice(&short(self.agreements.len()).to_le_bytes());
        for agreement in &self.agreements {
            put(&mut body, &agreement.name);
            put(&mut body, &agreement.value);
        }
        let mut out = Vec::with_capacity(PREFIX_BYTES + body.len());
        out.extend_from_slice(&MAGIC);
        out.extend_from_slice(&WIRE_VERSION.to_le_bytes());
        out.extend_from_slice(&short(body.len()).to_le_bytes());
        out.extend_from_slice(&body);
        out
    }

    /// How many bytes of body follow this prefix.
    pub(super) fn decode_prefix(prefix: &[u8; PREFIX_BYTES]) -> Result<usize, HelloError> {
        let [m0, m1, m2, m3, v0, v1, l0, l1] = *prefix;
        if [m0, m1, m2, m3] != MAGIC {
            return Err(HelloError::Magic);
        }
        let theirs = u16::from_le_bytes([v0, v1]);
        if theirs != WIRE_VERSION {
            return Err(HelloError::Version { theirs });
        }
        let length = usize::from(u16::from_le_bytes([l0, l1]));
        if length > MAX_BODY {
            return Err(HelloError::Oversized { length });
        }
        Ok(length)
    }

    pub(super) fn decode_body(mut body: &[u8]) -> Result<Self, HelloError> {
        let at = &mut body;
        let size = u32::from_le_bytes(take(at)?);
        let epoch = u32::from_le_bytes(take(at)?);
        let rank = Rank(u32::from_le_bytes(take(at)?));
        let generation = u64::from_le_bytes(take(at)?);
        if size > MAX_WORLD_SIZE {
            return Err(HelloError::Malformed { what: "world size" });
        }
        let count = usize::from(u16::from_le_bytes(take(at)?));
        if count > MAX_AGREEMENTS {
            return Err(HelloError::Malformed { what: "number of agreements" });
        }
        let agreements = (0..count)
            .map(|_| Ok(Agreement { name: take_string(at)?, value: take_string(at)? }))
            .collect::<Result<_, _>>()?;
        if !at.is_empty() {
            return Err(HelloError::Malformed { what: "bytes after its end" });
        }
        Ok(Self { size, epoch, rank, generation, agreements })
    }

    /// The first thing in which `theirs`, of the authenticated `rank`, differs from this one. The epoch comes first: another
    /// membership has another size.
    pub(super) fn compare(&self, rank: Rank, theirs: &Self) -> Result<(), JoinError> {
        if theirs.epoch != self.epoch {
            return Err(JoinError::Epoch { rank, theirs: theirs.epoch, ours: self.epoch });
        }
        if theirs.size != self.size {
            return Err(JoinError::WorldSize { rank, theirs: theirs.size, ours: self.size });
        }
        let mut theirs: BTreeMap<String, String> =
            theirs.agreements.iter().map(|it| (it.name.clone(), it.value.clone())).collect();
        // In the order of the caller, who puts first what explains the rest.
        for Agreement { name, value } in self.agreements.iter().cloned() {
            let other = theirs.remove(&name);
            if other.as_ref() != Some(&value) {
                return Err(JoinError::Agreement { rank, name, theirs: other, ours: Some(value) });
            }
        }
        if let Some((name, value)) = theirs.pop_first() {
            return Err(JoinError::Agreement { rank, name, theirs: Some(value), ours: None });
        }
        Ok(())
    }
}

impl Verdict {
    pub(super) fn encode(&self) -> Vec<u8> {
        match self {
            Self::Yes => vec![1],
            Self::Duplicate => vec![2],
            Self::Alive => vec![3],
            Self::No(reason) => {
                let mut out = vec![0];
                put(&mut out, clip(reason, MAX_REASON));
                out
            }
        }
    }

    /// Reads a verdict of this `kind`; `reason` are the bytes behind its length, none for any kind but 0. `None` if there
    /// is no such kind.
    pub(super) fn decode(kind: u8, reason: &[u8]) -> Option<Self> {
        match kind {
            0 => Some(Self::No(printable(reason, MAX_REASON))),
            1 => Some(Self::Yes),
            2 => Some(Self::Duplicate),
            3 => Some(Self::Alive),
            _ => None,
        }
    }
}

/// What a peer wrote, fit to be printed: broken UTF-8 and control characters replaced, at most `limit` bytes.
pub(super) fn printable(bytes: &[u8], limit: usize) -> String {
    let text: String = String::from_utf8_lossy(&bytes[..bytes.len().min(limit)])
        .chars()
        .map(|c| if c.is_control() { char::REPLACEMENT_CHARACTER } else { c })
        .collect();
    clip(&text, limit).to_owned()
}

fn short(length: usize) -> u16 {
    u16::try_from(length).unwrap_or(u16::MAX)
}

fn put(out: &mut Vec<u8>, text: &str) {
    out.extend_from_slice(&short(text.len()).to_le_bytes());
    out.extend_from_slice(text.as_bytes());
}

fn take<const N: usize>(at: &mut &[u8]) -> Result<[u8; N], HelloError> {
    let (head, rest) = at.split_first_chunk().ok_or(HelloError::Malformed { what: "its end" })?;
    *at = rest;
    Ok(*head)
}

fn take_string(at: &mut &[u8]) -> Result<String, HelloError> {
    let length = usize::from(u16::from_le_bytes(take(at)?));
    if length > MAX_AGREEMENT_BYTES {
        return Err(HelloError::Malformed { what: "length of an agreement" });
    }
    let (text, rest) = at.split_at_checked(length).ok_or(HelloError::Malformed { what: "its end" })?;
    *at = rest;
    let text = std::str::from_utf8(text).map_err(|_| HelloError::Malformed { what: "UTF-8" })?;
    if text.chars().any(char::is_control) {
        return Err(HelloError::Malformed { what: "control characters in an agreement" });
    }
    Ok(text.to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    fn hello(agreements: &[(&str, &str)]) -> Hello {
        let agreements: Vec<_> =
            agreements.iter().map(|(name, value)| Agreement::new(*name, *value)).collect();
        Hello::new(&World::new(2, 5, 7).unwrap(), 1 << 60, &agreements).unwrap()
    }

    fn decode(bytes: &[u8]) -> Result<Hello, HelloError> {
        let (prefix, body) = bytes.split_first_chunk().ok_or(HelloError::Magic)?;
        let length = Hello::decode_prefix(prefix)?;
        Hello::decode_body(body.get(..length).ok_or(HelloError::Malformed { what: "its end" })?)
    }

    #[test]
    fn a_hello_comes_back_as_it_was_sent() {
        let value = "v".repeat(MAX_AGREEMENT_BYTES);
        for sent in [hello(&[]), hello(&[("codec", "loco"), ("model layout", &value)])] {
            assert_eq!(decode(&sent.encode()).unwrap(), sent);
        }
    }

    #[test]
    fn every_shortened_or_flipped_hello_is_refused_or_differs_and_never_panics() {
        let sent = hello(&[("codec", "loco 4"), ("model layout", "ab12")]);
        let bytes = sent.encode();
        for end in 0..bytes.len() {
            assert!(decode(&bytes[..end]).is_err(), "{end} of {} bytes", bytes.len());
        }
        for bit in 0..bytes.len() * 8 {
            let mut other = bytes.clone();
            other[bit / 8] ^= 1 << (bit % 8);
            assert_ne!(decode(&other).ok(), Some(sent.clone()), "bit {bit}");
        }
    }

    #[test]
    fn what_differs_is_named_with_both_values() {
        let say = |ours: &[(&str, &str)], theirs: &[(&str, &str)]| {
            hello(ours).compare(Rank(3), &hello(theirs)).map_err(|error| error.to_string())
        };
        assert_eq!(say(&[("codec", "loco")], &[("codec", "loco")]), Ok(()));
        assert_eq!(say(&[("a", "1"), ("b", "2")], &[("b", "2"), ("a", "1")]), Ok(()));
        let first = say(&[("task", "digits"), ("batch", "64")], &[("batch", "8"), ("task", "text")]);
        assert_eq!(first, Err(r#"rank 3 has task "text", ours is "digits""#.into()));
        let differs = say(&[("codec", "loco")], &[("codec", "sign")]);
        assert_eq!(differs, Err(r#"rank 3 has codec "sign", ours is "loco""#.into()));
        assert_eq!(say(&[("codec", "loco")], &[]), Err(r#"rank 3 has codec unset, ours is "loco""#.into()));
        assert_eq!(say(&[], &[("codec", "sign")]), Err(r#"rank 3 has codec "sign", ours is unset"#.into()));
    }

    #[test]
    fn too_many_too_long_or_repeated_agreements_are_the_callers_fault() {
        let world = World::new(0, 1, 0).unwrap();
        let many: Vec<_> = (0..=MAX_AGREEMENTS).map(|i| Agreement::new(i.to_string(), "")).collect();
        let long = [Agreement::new("a", "x".repeat(MAX_AGREEMENT_BYTES + 1))];
        let twice = [Agreement::new("a", "1"), Agreement::new("a", "1")];
        for refused in [&many[..], &long, &twice] {
            assert!(matches!(Hello::new(&world, 1, refused), Err(JoinError::Option { .. })));
        }
    }

    #[test]
    fn text_of_a_peer_is_clipped_between_characters_and_without_control_characters() {
        assert_eq!(clip("aé", 2), "a");
        assert_eq!(printable(b"a\x1b[31m\n\xff", 100), "a\u{fffd}[31m\u{fffd}\u{fffd}");
        assert!(printable(&[0xff; 1000], 256).len() <= 256);
    }
}
