//! A door for the fuzz crate to what reads bytes of peers: each function reads hostile bytes and asserts what must hold
//! of what came out. Compiled with the feature `fuzzing` only, and no public API.

#![allow(missing_docs, reason = "not public")]

use bytes::Bytes;
use quinn::{ApplicationClose, ConnectionError, VarInt};
use rustls::pki_types::CertificateDer;

use super::close::{decode_abort, encode_abort, loss};
use super::hello::{Hello, HelloError, MAX_REASON, PREFIX_BYTES, Verdict};
use super::identity::certified_rank;
use super::table::News;
use crate::error::{Abort, Loss};
use crate::world::{Rank, World};

/// A hello as it comes on the stream, held against `ours`; whether it was one. What is one is written the same again.
pub fn hello(bytes: &[u8], ours: &World) -> bool {
    let read = || {
        let (prefix, rest) = bytes.split_first_chunk::<PREFIX_BYTES>().ok_or(HelloError::Magic)?;
        let length = Hello::decode_prefix(prefix)?;
        let body = rest.get(..length).ok_or(HelloError::Malformed { what: "its end" })?;
        Ok::<_, HelloError>((Hello::decode_body(body)?, PREFIX_BYTES + length))
    };
    let Ok((theirs, length)) = read() else { return false };
    assert_eq!(theirs.encode(), bytes[..length], "a hello is written as it was read");
    let Ok(ours) = Hello::new(ours, 1, &[]) else { return true };
    let compared = ours.compare(Rank(1), &theirs);
    let same = theirs.size == ours.size && theirs.epoch == ours.epoch && theirs.agreements.is_empty();
    assert_eq!(compared.is_ok(), same, "{ours:?} and {theirs:?}: {compared:?}");
    true
}

/// A verdict: its kind, and the bytes behind the length of its reason.
pub fn verdict(kind: u8, reason: &[u8]) {
    let Some(verdict) = Verdict::decode(kind, reason) else { return };
    let bytes = verdict.encode();
    let again = Verdict::decode(bytes[0], bytes.get(3..).unwrap_or_default());
    if let Verdict::No(reason) = &verdict {
        assert_clean(reason, MAX_REASON);
    }
    assert_eq!(again, Some(verdict), "a verdict comes back as it was sent");
}

/// A message of rank 0 while ranks join; whether it was one.
pub fn news(kind: u8, body: &[u8], world: &World) -> bool {
    let Ok(news) = News::decode(kind, body, world) else { return false };
    let again = news.encode();
    let canonical = match &news {
        News::Table(addresses) => {
            assert_eq!(addresses.len(), world.size() as usize, "an address for every rank");
            let canonical = |it: &std::net::SocketAddr| (it.ip().to_canonical(), it.port()).into();
            News::Table(addresses.iter().map(canonical).collect())
        }
        News::Waiting(ranks) => {
            assert!(ranks.iter().all(|rank| world.contains(*rank)), "{ranks:?} are in {world:?}");
            assert_eq!(again[5..], *body, "ranks are written as they were read");
            news
        }
    };
    assert_eq!(News::decode(kind, &again[5..], world), Ok(canonical), "what was read comes back");
    true
}

/// The reason with which a peer gave up.
pub fn abort(bytes: &[u8], world: &World) {
    let abort = decode_abort(bytes, world);
    assert!(abort.culprit.is_none_or(|rank| world.contains(rank)), "{abort:?} is of {world:?}");
    assert_clean(&abort.reason, Abort::MAX_REASON);
    assert_eq!(
        decode_abort(&encode_abort(&abort, world.epoch()), world),
        abort,
        "an abort comes back as it was sent"
    );
}

/// The last packet of a peer's connection.
pub fn close(code: u32, reason: &[u8], world: &World) {
    let close =
        ApplicationClose { error_code: VarInt::from_u32(code), reason: Bytes::copy_from_slice(reason) };
    match loss(&ConnectionError::ApplicationClosed(close), world) {
        Loss::Closed => assert_eq!(code, 0, "only an ordinary end says nothing"),
        Loss::Aborted(abort) => assert_clean(&abort.reason, Abort::MAX_REASON),
        Loss::Protocol { reason } => assert_clean(&reason, Abort::MAX_REASON + 40),
        other => panic!("a close with code {code} was taken for {other:?}"),
    }
}

/// The rank that a certificate names; a certificate is DER, whoever signed it.
pub fn certificate(der: &[u8]) -> Option<Rank> {
    certified_rank(&CertificateDer::from(der))
}

/// Text of a peer, fit to be printed in a line.
fn assert_clean(text: &str, most: usize) {
    assert!(text.len() <= most, "{} bytes, {most} at most", text.len());
    assert!(!text.chars().any(char::is_control), "control characters in {text:?}");
}
