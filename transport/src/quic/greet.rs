//! Hellos and verdicts on a fresh connection, from both sides.
//!
//! A connection counts once both sides have said yes: with a certificate that the other side refuses, a client's
//! handshake and first writes still succeed, and the alert comes later.

use std::cmp::Ordering;
use std::time::Duration;

use quinn::{Connection, ConnectionError, ReadError, ReadExactError, RecvStream, SendStream, WriteError};
use rustls::pki_types::{CertificateDer, ServerName};

use super::close;
use super::error::JoinError;
use super::hello::{Hello, HelloError, MAX_REASON, PREFIX_BYTES, Verdict, printable};
use super::identity::{certified_rank, rank_name};
use super::members::Members;
use super::seats::{Seat, Seats};
use crate::frame::WIRE_VERSION;
use crate::world::{Rank, World};

/// How long handshake and hellos may take, each.
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

/// How long a refusal may take to be delivered.
const GOODBYE: Duration = Duration::from_secs(1);

/// A connection that both sides have agreed to, and the stream on which they did.
pub(super) struct Greeted {
    pub(super) rank: Rank,
    pub(super) connection: Connection,
    pub(super) send: SendStream,
    pub(super) receive: RecvStream,
}

/// Why a connection did not come to count.
pub(super) enum Unheard {
    /// A member of the run disagrees, or refuses this node: joining is over.
    Fatal(JoinError),
    /// A member says that this node's rank is taken.
    Duplicate,
    /// A stranger, or an accident: it is dropped, and joining goes on.
    Dropped(String),
    /// No one was heard.
    Silent(String),
}

/// The dialer's side, towards `rank`, whose certificate TLS has checked.
pub(super) async fn dial(
    connection: Connection,
    rank: Rank,
    own: &Hello,
    members: &Members,
) -> Result<Greeted, Unheard> {
    let talk = async {
        let (mut send, mut receive) = connection.open_bi().await.map_err(|error| ended(&error, rank, own))?;
        write(&mut send, &own.encode(), rank, own).await?;
        let theirs = read_hello(&mut receive, rank, own).await?;
        let judged = theirs.and_then(|theirs| {
            let differs = own.compare(rank, &theirs);
            // Ranks of another epoch are other ranks.
            if theirs.rank == rank || is_epoch(&differs) {
                differs
            } else {
                Err(claim(&connection, &theirs, members))
            }
        });
        conclude(&connection, rank, own, judged, &mut send, &mut receive).await?;
        Ok((send, receive))
    };
    let (send, receive) = patiently(&connection, talk).await?;
    Ok(Greeted { rank, connection, send, receive })
}

/// The listener's side, towards whoever it is.
pub(super) async fn answer(
    connection: Connection,
    own: &Hello,
    members: &Members,
    seats: &Seats,
) -> Result<Greeted, Unheard> {
    let talk = async {
        let certificate =
            certificate(&connection).ok_or_else(|| Unheard::Dropped("no certificate".into()))?;
        let Some(certified) = certified_rank(&certificate) else {
            return Err(Unheard::Dropped("its certificate is for no rank".into()));
        };
        let member = members.rank(certified);
        // Only for errors of who is none.
        let rank = member.unwrap_or(certified);
        let (mut send, mut receive) =
            connection.accept_bi().await.map_err(|error| ended(&error, rank, own))?;
        let theirs = read_hello(&mut receive, rank, own).await?;
        write(&mut send, &own.encode(), rank, own).await?;
        if member.is_none() {
            let reason =
                format!("its certificate, for rank {certified}, is of no member of epoch {}", own.epoch);
            write(&mut send, &Verdict::No(reason.clone()).encode(), rank, own).await?;
            delivered(&mut send).await;
            return Err(Unheard::Dropped(reason));
        }
        let judged = theirs.and_then(|theirs| {
            let differs = own.compare(rank, &theirs);
            let claimed = members.certificate(theirs.rank);
            if is_epoch(&differs) || claimed.is_some_and(|claimed| is_certified(&certificate, claimed)) {
                differs.map(|()| theirs)
            } else {
                Err(claim(&connection, &theirs, members))
            }
        });
        let rank = judged.as_ref().map_or(rank, |theirs| theirs.rank);
        if let Ok(theirs) = &judged {
            if rank <= own.rank || rank.0 >= own.size {
                let (own, size) = (own.rank, own.size);
                let reason = format!("rank {rank} does not dial rank {own} in a world of {size}");
                return Err(Unheard::Dropped(reason));
            }
            let taken = match seats.take(rank, theirs.generation, &connection) {
                Seat::Free => None,
                Seat::Taken => Some(Verdict::Duplicate),
                Seat::Alive => Some(Verdict::Alive),
            };
            if let Some(verdict) = taken {
                write(&mut send, &verdict.encode(), rank, own).await?;
                delivered(&mut send).await;
                return Err(Unheard::Dropped(format!("rank {rank} has joined already")));
            }
        }
        conclude(&connection, rank, own, judged.map(drop), &mut send, &mut receive).await?;
        Ok((rank, send, receive))
    };
    let (rank, send, receive) = patiently(&connection, talk).await?;
    Ok(Greeted { rank, connection, send, receive })
}

fn is_epoch(differs: &Result<(), JoinError>) -> bool {
    matches!(differs, Err(JoinError::Epoch { .. }))
}

/// Says our verdict and hears theirs. Our own finding comes first, because it names what differs.
async fn conclude(
    connection: &Connection,
    rank: Rank,
    own: &Hello,
    judged: Result<(), JoinError>,
    send: &mut SendStream,
    receive: &mut RecvStream,
) -> Result<(), Unheard> {
    let verdict = match &judged {
        Ok(()) => Verdict::Yes,
        Err(error) => Verdict::No(error.to_string()),
    };
    let said = write(send, &verdict.encode(), rank, own).await;
    let heard = read_verdict(receive, rank, own).await;
    if let Err(error) = judged {
        delivered(send).await;
        connection.close(close::REFUSED, error.to_string().as_bytes());
        return Err(match error {
            // It has yet to learn that its world has ended, and may come back in this one.
            JoinError::Epoch { theirs, ours, .. } if theirs < ours => Unheard::Dropped(error.to_string()),
            error => Unheard::Fatal(error),
        });
    }
    said?;
    match heard? {
        Verdict::Yes => Ok(()),
        Verdict::Duplicate => Err(Unheard::Duplicate),
        Verdict::Alive => Err(Unheard::Fatal(JoinError::DuplicateRank { rank: own.rank, by: rank })),
        Verdict::No(reason) => Err(Unheard::Fatal(JoinError::Refused { rank, reason })),
    }
}

async fn patiently<T>(
    connection: &Connection,
    talk: impl Future<Output = Result<T, Unheard>>,
) -> Result<T, Unheard> {
    let late = || Unheard::Dropped(format!("no hello within {PATIENCE:.0?}"));
    let result = tokio::time::timeout(PATIENCE, talk).await.unwrap_or_else(|_| Err(late()));
    if result.is_err() {
        // Without a reason: a caller that was dropped by accident shall try again.
        connection.close(close::CLOSED, b"");
    }
    result
}

/// Waits until the other side has all that was written: closing at once would take it back.
async fn delivered(send: &mut SendStream) {
    let _ = send.finish();
    let _ = tokio::time::timeout(GOODBYE, send.stopped()).await;
}

/// The outer error ends the talk; the inner one still wants to be told to the peer.
async fn read_hello(
    receive: &mut RecvStream,
    rank: Rank,
    own: &Hello,
) -> Result<Result<Hello, JoinError>, Unheard> {
    let mut prefix = [0; PREFIX_BYTES];
    read(receive, &mut prefix, rank, own).await?;
    let length = match Hello::decode_prefix(&prefix) {
        Ok(length) => length,
        Err(HelloError::Version { theirs }) => {
            return Ok(Err(JoinError::Version { rank, theirs, ours: WIRE_VERSION }));
        }
        Err(error) => return Err(Unheard::Dropped(error.to_string())),
    };
    let mut body = vec![0; length];
    read(receive, &mut body, rank, own).await?;
    Hello::decode_body(&body).map(Ok).map_err(|error| Unheard::Dropped(error.to_string()))
}

async fn read_verdict(receive: &mut RecvStream, rank: Rank, own: &Hello) -> Result<Verdict, Unheard> {
    let mut kind = [0];
    read(receive, &mut kind, rank, own).await?;
    let [kind] = kind;
    let mut reason = Vec::new();
    if kind == 0 {
        let mut length = [0; 2];
        read(receive, &mut length, rank, own).await?;
        reason.resize(usize::from(u16::from_le_bytes(length)).min(MAX_REASON), 0);
        read(receive, &mut reason, rank, own).await?;
    }
    Verdict::decode(kind, &reason).ok_or_else(|| Unheard::Dropped(format!("verdict {kind} is unknown")))
}

async fn read(receive: &mut RecvStream, into: &mut [u8], rank: Rank, own: &Hello) -> Result<(), Unheard> {
    receive.read_exact(into).await.map_err(|error| match error {
        ReadExactError::ReadError(ReadError::ConnectionLost(error)) => ended(&error, rank, own),
        other => Unheard::Dropped(other.to_string()),
    })
}

async fn write(send: &mut SendStream, bytes: &[u8], rank: Rank, own: &Hello) -> Result<(), Unheard> {
    send.write_all(bytes).await.map_err(|error| match error {
        WriteError::ConnectionLost(error) => ended(&error, rank, own),
        other => Unheard::Dropped(other.to_string()),
    })
}

/// Why a caller's handshake came to nothing.
pub(super) fn failed(error: &ConnectionError) -> String {
    match error {
        ConnectionError::ConnectionClosed(close) if FOREIGN.contains(&u64::from(close.error_code)) => {
            explained("UnknownIssuer")
        }
        error => {
            unauthenticated(error).unwrap_or_else(|| printable(error.to_string().as_bytes(), MAX_REASON))
        }
    }
}

/// What rustls answers to a certificate that does not lead to its root: unknown_ca, and decrypt_error where the issuer's
/// name is known and its key is another, as it is for two runs in folders of one name.
const FOREIGN: [u64; 2] = [0x100 + 48, 0x100 + 51];

/// What the end of a connection to a peer that should be `rank` means, before it counted.
pub(super) fn ended(error: &ConnectionError, rank: Rank, own: &Hello) -> Unheard {
    // Crypto errors are 0x100 plus the TLS alert (RFC 9001, 4.8).
    let crypto = 0x100..0x200;
    match error {
        ConnectionError::ConnectionClosed(close) if crypto.contains(&u64::from(close.error_code)) => {
            let said = printable(&close.reason, MAX_REASON);
            let alert = u64::from(close.error_code) - crypto.start;
            let foreign = FOREIGN.contains(&u64::from(close.error_code));
            let foreign = if foreign { ", it is of another run for it" } else { "" };
            let reason = format!("it does not accept our certificate{foreign} (TLS alert {alert}: {said})");
            Unheard::Fatal(JoinError::Refused { rank, reason })
        }
        ConnectionError::ApplicationClosed(closed) if closed.error_code == close::REFUSED => {
            let reason = printable(&closed.reason, MAX_REASON);
            Unheard::Fatal(JoinError::Refused { rank, reason })
        }
        ConnectionError::ApplicationClosed(closed) if closed.error_code == close::SUPERSEDED => {
            Unheard::Fatal(JoinError::Superseded { rank: own.rank, by: rank })
        }
        ConnectionError::ApplicationClosed(closed)
            if [close::TAKEN, close::ABORTED].contains(&closed.error_code) =>
        {
            let theirs = close::decode_epoch(&closed.reason).unwrap_or(own.epoch);
            match theirs.cmp(&own.epoch) {
                // It may come back in this one, once it has noticed that its world has ended.
                Ordering::Less => {
                    return Unheard::Dropped(format!("it is in epoch {theirs}, ours is {}", own.epoch));
                }
                Ordering::Greater => {
                    return Unheard::Fatal(JoinError::Epoch { rank, theirs, ours: own.epoch });
                }
                Ordering::Equal => {}
            }
            if closed.error_code == close::TAKEN {
                return Unheard::Fatal(JoinError::DuplicateRank { rank: own.rank, by: rank });
            }
            match World::new(own.rank.0, own.size, own.epoch) {
                Ok(world) => {
                    let abort = close::decode_abort(&closed.reason, &world);
                    Unheard::Fatal(JoinError::Aborted { by: rank, abort })
                }
                Err(error) => Unheard::Dropped(error.to_string()),
            }
        }
        ConnectionError::TimedOut => Unheard::Silent("timed out".into()),
        other => Unheard::Dropped(printable(other.to_string().as_bytes(), MAX_REASON)),
    }
}

/// Whether what ended a handshake was our own refusal of the peer's certificate.
pub(super) fn unauthenticated(error: &ConnectionError) -> Option<String> {
    match error {
        ConnectionError::TransportError(error) if (0x100..0x200).contains(&u64::from(error.code)) => {
            Some(explained(&error.reason))
        }
        _ => None,
    }
}

/// What TLS says of a certificate, in the words of someone who made it with keygen.
fn explained(reason: &str) -> String {
    // The second: see FOREIGN.
    if reason.contains("UnknownIssuer") || reason.contains("BadSignature") {
        return "its certificate is of another run (another keygen?)".into();
    }
    if reason.contains("Expired") {
        return format!("its certificate has expired ({reason})");
    }
    printable(reason.as_bytes(), MAX_REASON)
}

pub(super) fn certificate(connection: &Connection) -> Option<CertificateDer<'static>> {
    let chain = connection.peer_identity()?.downcast::<Vec<CertificateDer<'static>>>().ok()?;
    chain.into_iter().next()
}

fn is_certified(certificate: &CertificateDer<'_>, rank: Rank) -> bool {
    let (Ok(leaf), Ok(name)) =
        (webpki::EndEntityCert::try_from(certificate), ServerName::try_from(rank_name(rank)))
    else {
        return false;
    };
    leaf.verify_is_valid_for_subject_name(&name).is_ok()
}

fn claim(connection: &Connection, theirs: &Hello, members: &Members) -> JoinError {
    let certificate = certificate(connection).as_ref().and_then(certified_rank);
    let certificate = certificate.map(|certified| members.rank(certified).unwrap_or(certified));
    JoinError::Claim { address: connection.remote_address(), claimed: theirs.rank, certificate }
}
