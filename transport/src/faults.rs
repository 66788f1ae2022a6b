//! What can happen to ranks and the ways between them: what a caller gets, and after which time. Documentation only.
//!
//! A fault that is shorter than its deadline is ridden out without the caller noticing. A longer one is an
//! [`ExchangeError`](crate::ExchangeError) that names the rank at fault on every rank that is left: whoever notices first
//! tells the others whom it blames ([`Abort`](crate::Abort)), and their collective ends with
//! [`Aborted`](crate::ExchangeError::Aborted) and the same [`culprit`](crate::ExchangeError::culprit). Then
//! [the next epoch](#the-next-epoch) can be formed by those that are left.
//!
//! # Deadlines and other times
//!
//! | time | default | set by | when it is over |
//! |---|---|---|---|
//! | no byte of a peer arrives, not even a keep-alive | 10 s (0.1 s to 1 h) | `quic::Config::silence`; `gradwire --deadline` | the peer is lost, [`Silent`](crate::Loss::Silent); looked for every twentieth of it and at least every 0.5 s |
//! | nothing was heard for three tenths of the silence | then every twentieth of it, at least every 0.5 s | with it | a probe is sent, whatever the window says |
//! | between two keep-alives | a fifth of the silence | with it | a packet is sent, by the endpoint's own thread: a rank that computes is never silent |
//! | a peer answers, but sends or takes nothing of a collective | 8 times its longest wait so far, at least 2 min, at most 10 min; 10 min for the first 16 collectives | `Limits::{stall, stall_floor, stall_factor}`, see [`Pace`](crate::collective::Pace) | [`Stalled`](crate::ExchangeError::Stalled) or [`Unread`](crate::ExchangeError::Unread) |
//! | until all ranks have joined | 60 s (at most 30 days) | `quic::Config::join`; `gradwire node --join-timeout` | `quic::JoinError::{Missing, Rendezvous, Resolve}` |
//! | a rank that could not join tells late callers why | 2 s | | it leaves |
//! | one attempt to reach a peer while joining | 3 s, then a pause of 0.1 s (0.5 s if the rank is taken) | | the next attempt |
//! | handshake of a caller, and its hello | 10 s each | | the caller is dropped, and may call again |
//! | the same once all ranks have joined | 2 s for the handshake | | dropped |
//! | a process of a rank that says it is newer is there | until it is heard after 0.5 s, at most 1.3 times the silence | | `quic::JoinError::DuplicateRank` |
//! | `Waiting` is told whom a join waits for | every 5 s | `quic::Config::waiting` | |
//! | [`close`](crate::Communicator::close): what was sent is delivered | the silence | `quic::Config::silence` | the peers are told that not all was delivered |
//! | dropping a mesh: its last packets are sent, and again if they are lost | at most 0.3 s | | the socket is free and the thread has ended |
//!
//! # Faults
//!
//! *Silence* and *stall* are the first and the third time above. Each row is a test, named in the last column: in
//! `tests/quic` of this crate unless another file is given.
//!
//! | fault | what callers get | within | tests |
//! |---|---|---|---|
//! | a process is killed (`kill -9`), its host goes down | [`Silent`](crate::ExchangeError::Silent), with its rank | silence, to silence x 1.2 | `process.rs`: a killed process is silent; `tests/sim.rs`: long faults |
//! | a process stops (SIGSTOP, a frozen VM) for less than the silence | nothing; the step takes that long | it goes on at once | `process.rs`: stopped for less; `tests/sim.rs`: short faults |
//! | a process stops for longer | `Silent` on the others; [`Paused`](crate::Loss::Paused) on itself when it goes on, or what the others told it | silence; at once | `process.rs`; `tests/sim.rs` |
//! | a partition that heals within the silence | nothing; the step takes that long | the next probe: a twentieth of the silence | `faults.rs`: heals; `tests/sim.rs` |
//! | a partition that does not | `Silent` on both sides, with a rank of the other side | silence | `faults.rs`: does not heal |
//! | a process is killed and started again at the same address | [`Closed`](crate::Loss::Closed): the new process answers packets for the old one with a reset that only a holder of its key can make | the next packet, at most a fifth of the silence | `process.rs`: starts again |
//! | the address of a node changes (an address translator forgot it) | nothing on connections that it dialed, to lower ranks; `Silent` on those that it accepted | a round trip; silence | `nat.rs` |
//! | a peer reads slowly | nothing: this rank sends no faster, and keeps two frames for it | | `mesh.rs`: has no room |
//! | a peer takes nothing | [`Unread`](crate::ExchangeError::Unread) | stall | `tests/hostile.rs`; `tests/pace.rs` |
//! | a peer answers and sends nothing: its program hangs | [`Stalled`](crate::ExchangeError::Stalled) | stall | `tests/sans_io.rs`, `tests/pace.rs` |
//! | a peer floods | nothing while it is within what QUIC gives it credit for: it waits. Frames of a collective that has not begun, beyond `Limits::ahead_bytes`: [`Ahead`](crate::FrameError::Ahead) | at once | `hostile.rs`: a flood; `tests/hostile.rs` |
//! | streams that begin and never end | `Stalled` if they hold up a message, else nothing; they are few (`quic::Tuning::streams`) | stall | `hostile.rs`: streams that never end |
//! | a stream that is broken off, bytes that are no frame | [`Protocol`](crate::Loss::Protocol), [`Malformed`](crate::Loss::Malformed) | at once | `hostile.rs` |
//! | datagrams are damaged, repeated or forged on the way | nothing: QUIC drops what is not authentic, and sends it again | a round trip | `tests/relay.rs`: lost and damaged; `strangers.rs`: garbage |
//! | a frame is damaged in memory, before it was encrypted or after | [`Checksum`](crate::FrameError::Checksum), with the sender | at once | `hostile.rs`; `tests/sim.rs`: one turned bit |
//! | a program returns or panics without [`close`](crate::Communicator::close) | `Aborted`, with its rank | at once | `tests/common/loss.rs`, on every mesh |
//! | a second process of a rank while ranks join | the one that bound its socket first: `quic::JoinError::Superseded`; it is replaced, alive or not | at once | `newest.rs` |
//! | a process of a rank that was there before the present one calls | it alone: `quic::JoinError::DuplicateRank` | once the present one is heard | `newest.rs` |
//! | a second process of a rank once all have joined | it alone: `DuplicateRank`, from rank 0 | at once | `late.rs` |
//! | a process of an older epoch calls | it alone: `quic::JoinError::Epoch` | at once | `epochs.rs` |
//! | a process whose certificate is not a member's (revoked) calls | it alone: `quic::JoinError::Refused` | at once | `epochs.rs` |
//! | a stranger calls | it alone: TLS refuses it | at once | `strangers.rs` |
//!
//! # The next epoch
//!
//! After an error a [`Communicator`](crate::Communicator) has told the others, and does nothing more. Dropping it frees its
//! socket, so the same process can bind the same address again, in a world of the next epoch: with the members that are
//! left (`quic::Members`), whose ranks count up from 0 again in the order of their certificates. *Who* is left is the
//! caller's to say, and must be the same on all ranks; as all of them name the same culprit, leaving out that one will often
//! do. `examples/next_epoch.rs` is such a program; tests are in `epochs.rs`, and in `many_epochs.rs`, which forms twenty in one
//! process and looks for what they leave behind.
//!
//! Ranks need not notice at the same time. One that calls another which is still in the epoch before waits for it until
//! `quic::Config::join`; one that hears of a newer epoch than its own gives up at once (`quic::JoinError::Epoch`), as its
//! world is over. Packets of the epoch before are answered with a reset.
