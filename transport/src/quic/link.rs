//! One peer's connection, once it is up: its queue, its frames, and its end.

use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn::{Connection, ConnectionError, ReadError, RecvStream, VarInt, WriteError};
use tokio::sync::mpsc::UnboundedReceiver;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::{JoinError, JoinSet};
use tokio::time::MissedTickBehavior;

use super::close;
use super::config::FRAME_COST;
use super::gather::Gather;
use super::load::Share;
use crate::error::{Abort, FrameError, Loss};
use crate::frame::Frame;
use crate::world::{Rank, World};

/// What a link tells its mesh.
pub(super) enum News {
    /// A frame, and its share of the peer's budget, which returns when this is dropped.
    Frame(Rank, Frame, OwnedSemaphorePermit),
    /// There was no room for frames to this peer, and now there is.
    Room(Rank),
    /// The peer is gone; the last news of this link.
    Lost(Rank, Loss),
}

/// Sends the frames of `queue`, each on a stream of its own and at most `streams` at a time. Returns when the
/// queue is closed and everything in it acknowledged, or the connection is gone.
///
/// Earlier frames come first, so that what is lost of one is sent again before anything of a later one. Among streams of
/// one priority it would wait behind all that is written already: a second for 8 MiB at 66 Mbit/s.
pub(super) async fn send_all(
    connection: Connection,
    mut queue: UnboundedReceiver<(Frame, Share)>,
    streams: usize,
) {
    let mut writers = JoinSet::new();
    // Below that of the other streams, which carry a few bytes.
    let mut priorities = (i32::MIN..0).rev().cycle();
    while let Some((frame, share)) = queue.recv().await {
        while writers.try_join_next().is_some() {}
        while writers.len() >= streams {
            writers.join_next().await;
        }
        if connection.close_reason().is_some() {
            return;
        }
        let priority = priorities.next().unwrap_or_default();
        writers.spawn(write(connection.clone(), frame, share, priority));
    }
    while writers.join_next().await.is_some() {}
}

/// Failures are not looked at: they come with the end of the connection, which the receiving side tells.
async fn write(connection: Connection, frame: Frame, share: Share, priority: i32) -> Result<(), WriteError> {
    let mut stream = connection.open_uni().await?;
    stream.set_priority(priority)?;
    let head = Bytes::copy_from_slice(&frame.header.encode(&frame.payload));
    stream.write_all_chunks(&mut [head, frame.payload]).await?;
    // What is left of it is in the connection's window.
    drop(share);
    if stream.finish().is_ok() {
        // Until the last byte is acknowledged: only then is it safe to close.
        let _ = stream.stopped().await;
    }
    Ok(())
}

pub(super) struct Receiver {
    pub(super) connection: Connection,
    pub(super) rank: Rank,
    pub(super) world: World,
    pub(super) silence: Duration,
    /// The connection's window for what it receives.
    pub(super) window: VarInt,
    /// Bytes of frames that may wait for [`crate::Mesh::receive`].
    pub(super) budget: Arc<Semaphore>,
    pub(super) news: Sender<News>,
}

impl Receiver {
    /// Passes on every frame until the connection ends, then says why it ended.
    pub(super) async fn run(self) {
        let mut readers = JoinSet::new();
        let mut fault = None;
        let mut watch = Watch::new(self.silence);
        let mut tick = tokio::time::interval(watch.period());
        tick.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let end = loop {
            tokio::select! {
                stream = self.connection.accept_uni() => match stream {
                    Ok(stream) => {
                        readers.spawn(read(stream, self.rank, self.budget.clone(), self.news.clone()));
                    }
                    Err(end) => break end,
                },
                Some(read) = readers.join_next(), if !readers.is_empty() => self.note(&mut fault, read),
                _ = tick.tick() => {
                    let heard = self.connection.stats().udp_rx.datagrams;
                    if let Some(loss) = watch.tick(Instant::now(), heard) {
                        self.end(&mut fault, loss);
                    }
                    if watch.probes() {
                        self.probe();
                    }
                }
            }
        };
        // Streams that had arrived in full can still be read.
        while let Some(read) = readers.join_next().await {
            self.note(&mut fault, read);
        }
        let loss = match (fault, end) {
            (Some(fault), _) => fault,
            // This side left; there is no one to tell.
            (None, ConnectionError::LocallyClosed) => return,
            // QUIC's own timer, which counts only what was authentic.
            (None, ConnectionError::TimedOut) => watch.timed_out(Instant::now()),
            (None, end) => close::loss(&end, &self.world),
        };
        // The mesh is gone if this fails, and nobody asks any more.
        let _ = self.news.send(News::Lost(self.rank, loss));
    }

    fn note(&self, fault: &mut Option<Loss>, read: Result<Result<(), Loss>, JoinError>) {
        match read {
            Ok(Ok(())) => {}
            Ok(Err(loss)) => self.end(fault, loss),
            Err(error) => self.end(fault, Loss::Protocol { reason: format!("could not be read: {error}") }),
        }
    }

    /// Sends a packet that the peer will answer; a full window lets it pass.
    fn probe(&self) {
        // A larger window has to be said, and then it is the old one again.
        let more = VarInt::from_u64(self.window.into_inner() + 1).unwrap_or(VarInt::MAX);
        self.connection.set_receive_window(more);
        self.connection.set_receive_window(self.window);
    }

    /// The peer is at fault: tell it, and remember the first reason.
    fn end(&self, fault: &mut Option<Loss>, loss: Loss) {
        if fault.is_none() {
            let reason = loss.to_string();
            let abort = Abort { culprit: Some(self.rank), reason };
            close::abort(&self.connection, &abort, self.world.epoch());
            *fault = Some(loss);
        }
    }
}

/// One stream, one frame. An error is the peer's fault; the end of the connection is not an error here.
///
/// All of it is read as it comes: it has its place already. Its end is read when the budget has room for the frame; until
/// then the stream stays open, and takes the place of another.
async fn read(
    mut stream: RecvStream,
    rank: Rank,
    budget: Arc<Semaphore>,
    news: Sender<News>,
) -> Result<(), Loss> {
    let mut gather = Gather::default();
    while !gather.is_complete() {
        match stream.read_chunk(usize::MAX, false).await {
            Ok(Some(chunk)) => gather.put(chunk.offset, &chunk.bytes)?,
            Ok(None) => break,
            Err(error) => return fault(error),
        }
    }
    let frame = gather.finish()?;
    let cost = u32::try_from(FRAME_COST + frame.payload.len()).unwrap_or(u32::MAX);
    let Ok(permit) = budget.acquire_many_owned(cost).await else { return Ok(()) };
    match stream.read_chunk(usize::MAX, false).await {
        Ok(None) => {}
        Ok(Some(chunk)) => {
            let length = chunk.offset + chunk.bytes.len() as u64;
            return Err(FrameError::Oversized { length, limit: frame.wire_bytes() }.into());
        }
        Err(error) => return fault(error),
    }
    let _ = news.send(News::Frame(rank, frame, permit));
    Ok(())
}

fn fault(error: ReadError) -> Result<(), Loss> {
    match error {
        ReadError::ConnectionLost(_) => Ok(()),
        other => Err(Loss::Protocol { reason: format!("broke off a frame: {other}") }),
    }
}

/// Notices silence by counting what arrives at the socket for this connection.
///
/// QUIC's own idle timer is not enough: it restarts with the first packet that *this* side sends after it heard
/// something, so with keep-alives a dead peer shows only after up to 6/5 of the deadline.
struct Watch {
    deadline: Duration,
    datagrams: u64,
    silent: Duration,
    last: Option<Instant>,
    /// When this process last stood still for long, and for how long.
    woke: Option<(Instant, Duration)>,
}

impl Watch {
    fn new(deadline: Duration) -> Self {
        Self { deadline, datagrams: 0, silent: Duration::ZERO, last: None, woke: None }
    }

    /// How often to look: the error of the measured silence.
    fn period(&self) -> Duration {
        (self.deadline / 20).min(Duration::from_millis(500))
    }

    fn tick(&mut self, now: Instant, datagrams: u64) -> Option<Loss> {
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        self.last = Some(now);
        if since >= self.deadline {
            self.woke = Some((now, since));
        }
        if datagrams != self.datagrams {
            self.datagrams = datagrams;
            self.silent = Duration::ZERO;
            return None;
        }
        // If this process itself was stopped or starved, the time is not the peer's: what came meanwhile is
        // still in the socket.
        self.silent += since.min(2 * self.period());
        (self.silent >= self.deadline).then(|| self.loss(now, self.silent))
    }

    /// Whether to send something, to hear whether the peer is back: not before three tenths of the deadline have passed
    /// (keep-alives are two apart), then with each look.
    ///
    /// QUIC alone probes at intervals that double, so after a way was cut for more than half of the deadline the next probe can
    /// come too late.
    fn probes(&self) -> bool {
        self.silent >= self.deadline * 3 / 10
    }

    /// What it means that QUIC's idle timer ran out at `now`.
    fn timed_out(&self, now: Instant) -> Loss {
        self.loss(now, self.silent.max(self.deadline))
    }

    /// Whose silence it is. A process that stood still finds its peers gone, because they lost it: QUIC's timer also
    /// counts the time in which it did not look, and fires before what came meanwhile is read.
    fn loss(&self, now: Instant, silent: Duration) -> Loss {
        let since = self.last.map_or(Duration::ZERO, |last| now.saturating_duration_since(last));
        if since >= self.deadline {
            return Loss::Paused { paused: since };
        }
        match self.woke {
            Some((woke, paused)) if now.saturating_duration_since(woke) < 2 * self.deadline => {
                Loss::Paused { paused }
            }
            _ => Loss::Silent { silent, deadline: self.deadline },
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEADLINE: Duration = Duration::from_secs(10);

    #[test]
    fn silence_is_noticed_at_its_deadline_and_counted_from_the_last_datagram() {
        let mut watch = Watch::new(DEADLINE);
        let start = Instant::now();
        let mut said = None;
        for tick in 0..100u32 {
            // Something comes until 5 s.
            let datagrams = u64::from(tick.min(10));
            if let Some(loss) = watch.tick(start + watch.period() * tick, datagrams) {
                said.get_or_insert((tick, loss));
            }
        }
        assert_eq!(said, Some((30, Loss::Silent { silent: DEADLINE, deadline: DEADLINE })));
    }

    #[test]
    fn a_silent_peer_is_probed_from_three_tenths_of_its_deadline_on() {
        let mut watch = Watch::new(DEADLINE);
        let start = Instant::now();
        let mut probes = Vec::new();
        for tick in 0..10u32 {
            watch.tick(start + watch.period() * tick, 0);
            probes.push(watch.probes());
        }
        assert_eq!(probes, (0..10).map(|looks| looks >= 6).collect::<Vec<_>>());
        watch.tick(start + watch.period() * 10, 1);
        assert!(!watch.probes(), "it was heard");
    }

    #[test]
    fn a_pause_of_this_process_is_not_the_peers_silence() {
        let mut watch = Watch::new(DEADLINE);
        let start = Instant::now();
        assert_eq!(watch.tick(start, 1), None);
        assert_eq!(watch.timed_out(start + 2 * DEADLINE), Loss::Paused { paused: 2 * DEADLINE });
        let silent = Loss::Silent { silent: DEADLINE, deadline: DEADLINE };
        assert_eq!(watch.timed_out(start + watch.period()), silent);
        // The first look after the pause may come before QUIC's timer, and find what had come before the pause.
        let woke = start + 100 * DEADLINE;
        assert_eq!(watch.tick(woke, 2), None);
        assert_eq!(watch.timed_out(woke), Loss::Paused { paused: 100 * DEADLINE });
        // Long after it, silence is the peer's again.
        let mut later = woke;
        let loss = loop {
            later += watch.period();
            let heard = if later < woke + 3 * DEADLINE { later.duration_since(start).as_millis() } else { 0 };
            if let Some(loss) = watch.tick(later, u64::try_from(heard).unwrap_or(0)) {
                break loss;
            }
        };
        assert_eq!(loss, silent);
    }
}
