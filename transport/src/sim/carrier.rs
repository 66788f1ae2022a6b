//! Real packets on an emulated network: one thread that takes them in, waits, and hands them on.

use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bytes::Bytes;
use quinn_udp::EcnCodepoint;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;

use super::config::{LinkConfig, WireConfig};
use super::measured::{Measured, Meter};
use super::network::{Network, Traffic};
use super::random::Random;

/// Packets that are due within this time leave together: system calls for single ones would take most of a core.
const GRAIN: Duration = Duration::from_micros(200);

/// A packet under way.
#[derive(Clone, Debug)]
pub(super) struct Packet {
    pub(super) payload: Bytes,
    pub(super) ecn: Option<EcnCodepoint>,
    came: Instant,
    bytes: u64,
}

/// Where packets come from and go to.
pub(super) trait Ports: Send + 'static {
    /// What becomes readable when packets have come, in the order of [`receive`](Self::receive)'s index.
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>>;

    /// Passes on some of what has come to the port with this index.
    fn receive(&mut self, index: usize, line: &mut Line<'_>);

    /// Hands on a packet, now or with the next [`flush`](Self::flush).
    fn send(&mut self, from: u32, to: u32, packet: &Packet);

    /// Hands on what is left.
    fn flush(&mut self);
}

/// Where [`Ports`] put what has come.
pub(super) struct Line<'a> {
    state: &'a mut State,
    now: Instant,
}

impl Line<'_> {
    /// A packet of `bytes` bytes on the line; `payload` is what is carried.
    pub(super) fn put(&mut self, from: u32, to: u32, bytes: u64, payload: Bytes, ecn: Option<EcnCodepoint>) {
        let State { network, random, corrupted, .. } = &mut *self.state;
        let payload = if random.chance(*corrupted) { flipped(payload, random) } else { payload };
        let packet = Packet { payload, ecn, came: self.now, bytes };
        network.send(self.now, from, to, bytes, packet);
    }
}

/// One bit of `payload` inverted.
fn flipped(payload: Bytes, random: &mut Random) -> Bytes {
    let mut changed = payload.to_vec();
    if !changed.is_empty() {
        let bit = random.below(8 * changed.len() as u64);
        // Below the length, so it fits.
        changed[usize::try_from(bit / 8).unwrap_or(0)] ^= 1 << (bit % 8);
    }
    changed.into()
}

struct State {
    network: Network<Packet>,
    meter: Meter,
    /// Of what is not the network's business.
    random: Random,
    /// Share of packets that lose a bit.
    corrupted: f64,
}

/// An emulated network at work, and what can be changed about it meanwhile. Dropping it ends it; what is under way is lost.
pub struct Carrier {
    state: Arc<Mutex<State>>,
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
}

impl Carrier {
    pub(super) fn start(nodes: u32, link: LinkConfig, seed: u64, ports: impl Ports) -> io::Result<Self> {
        let state = Arc::new(Mutex::new(State {
            network: Network::new(nodes, link, seed),
            meter: Meter::new(nodes, Instant::now()),
            random: Random::new(!seed),
            corrupted: 0.0,
        }));
        let (stop, stopped) = UnixStream::pair()?;
        let mut descriptors = vec![OwnedFd::from(stopped)];
        descriptors.extend(ports.descriptors()?);
        let shared = state.clone();
        let thread = std::thread::Builder::new()
            .name("gradwire-link".into())
            .spawn(move || carry(ports, &descriptors, &shared))?;
        Ok(Self { state, stop, thread: Some(thread) })
    }

    /// Cuts the way `from` -> `to`. What is under way arrives.
    pub fn cut(&self, from: u32, to: u32) {
        self.state().network.cut(from, to, true);
    }

    /// Mends the way `from` -> `to`.
    pub fn mend(&self, from: u32, to: u32) {
        self.state().network.cut(from, to, false);
    }

    /// Gives `node`'s lines another rate, in bits per second; `None` for no limit.
    pub fn set_rate(&self, node: u32, rate: Option<u64>) {
        self.state().network.set_rate(node, rate);
    }

    /// Makes the way `from` -> `to` another one.
    pub fn set_wire(&self, from: u32, to: u32, wire: WireConfig) {
        self.state().network.set_wire(from, to, wire);
    }

    /// From now on this share of packets, 0 to 1, arrives with one bit inverted. Default: none.
    pub fn set_corrupted(&self, share: f64) {
        self.state().corrupted = share;
    }

    /// What the network did so far.
    #[must_use]
    pub fn traffic(&self) -> Traffic {
        self.state().network.traffic()
    }

    /// What was measured since the last call, or since the start.
    pub fn take_measured(&self) -> Measured {
        let State { network, meter, .. } = &mut *self.state();
        meter.take(network.traffic(), Instant::now())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        lock(&self.state)
    }
}

/// A panic elsewhere leaves nothing half done that matters here.
fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Drop for Carrier {
    fn drop(&mut self) {
        // The other end hears of it, and only ever fails to if it is gone.
        let _ = self.stop.shutdown(std::net::Shutdown::Both);
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

/// Carries packets until the first of `descriptors` closes; the others are the ports'.
///
/// At the priority of everyone else: a wire that runs before the ranks wakes for each of their packets, and takes the processor
/// from them. On two cores two ranks carried 69 % of 1 Gbit/s so, and 84 % without.
fn carry(mut ports: impl Ports, descriptors: &[OwnedFd], state: &Mutex<State>) {
    let mut waits: Vec<_> = descriptors.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    let mut served = Instant::now();
    let mut next: Option<Instant> = None;
    loop {
        let timeout = next.map(|next| {
            let until = next.max(served + GRAIN).saturating_duration_since(Instant::now());
            // Below 2 minutes: delays are.
            Timespec::try_from(until).unwrap_or(Timespec { tv_sec: 1, tv_nsec: 0 })
        });
        match poll(&mut waits, timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => {
                tracing::error!(%error, "the emulated link ends");
                return;
            }
        }
        if !waits[0].revents().is_empty() {
            return;
        }
        let mut state = lock(state);
        let mut line = Line { now: Instant::now(), state: &mut state };
        for (index, _) in waits[1..].iter().enumerate().filter(|(_, wait)| !wait.revents().is_empty()) {
            ports.receive(index, &mut line);
        }
        served = Instant::now();
        let State { network, meter, .. } = &mut *state;
        while let Some(arrival) = network.poll(served) {
            let packet = &arrival.packet;
            meter.note(arrival.to, packet.bytes, packet.came, arrival.at, served);
            ports.send(arrival.from, arrival.to, packet);
        }
        ports.flush();
        next = network.next();
    }
}
