//! A mesh on a virtual clock: ordinary blocking ranks, one at a time, the same run for the same seed.
//!
//! **What.** [`mesh`] gives each rank of a world an endpoint, for a thread of its own. Exactly one thread runs at a time;
//! the others wait for their turn. The clock stands still while a rank runs and goes on to the next event when all
//! wait in [`Mesh::receive`] or [`SimMesh::advance`], so hours of deadlines take as long as their frames do.
//!
//! Frames travel whole and are never lost, as over QUIC: a lost transmission is repeated after a timeout, on a way that
//! is cut until it is mended. Acknowledgements and keep-alives cost nothing and are not delayed: a rank is silent from the
//! moment it is stopped, killed or cut off, and noticed [`SimConfig::silence`] later.
//!
//! **Exactness.** The same configuration and the same ranks give the same events at the same times, as long as ranks
//! take time only from [`Mesh::now`] and talk only through their meshes.
//!
//! **Cost.** A switch of threads for each time that a rank waits, and a pass over all ranks for each instant at which
//! something happens; memory for what is under way and 32 bytes per pair of ranks.

use std::panic;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use super::LinkConfig;
use super::clock::State;
use crate::error::{Abort, Loss};
use crate::frame::Frame;
use crate::mesh::{Event, Mesh};
use crate::stats::{PeerStats, Stats};
use crate::world::{Rank, World};

/// What a simulated world is like, and what befalls it.
#[derive(Clone, Debug)]
pub struct SimConfig {
    /// Every node's line and every way between two; its queue is not looked at, senders wait instead.
    pub link: LinkConfig,
    /// How long a peer may be silent, above zero. The QUIC mesh waits 10 s by default.
    pub silence: Duration,
    /// Seed of all chance.
    pub seed: u64,
    /// Faults, and when after the start. Their ranks are in the world.
    pub faults: Vec<(Duration, Fault)>,
}

/// What can befall ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// As `kill -9`: the rank's thread unwinds with [`Killed`] and nobody is told.
    Crash(Rank),
    /// As SIGSTOP and SIGCONT: the rank does not run, nor its mesh. Of stops that overlap, it is the last one's end that
    /// counts.
    Stop {
        /// Who.
        rank: Rank,
        /// For how long.
        length: Duration,
    },
    /// No way between these ranks and the others. A way that several partitions cut is mended with the last of them.
    Partition {
        /// One side; the other is the rest of the world.
        ranks: Vec<Rank>,
        /// For how long; `None` for ever.
        length: Option<Duration>,
    },
    /// A rank's line is slow from now on.
    Slow {
        /// Whose.
        rank: Rank,
        /// Bits per second, at least 1.
        rate: u64,
    },
    /// One bit of the next frame that the rank sends turns over.
    Corrupt(Rank),
    /// The next frame that the rank sends comes twice.
    Repeat(Rank),
}

/// What the thread of a rank that was killed unwinds with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Killed;

struct Shared {
    state: Mutex<State>,
    /// By rank: told when it is that rank's turn.
    turns: Vec<Condvar>,
}

/// One rank's end of a simulated mesh. Every call but [`world`](Mesh::world) waits for the rank's turn.
pub struct SimMesh {
    world: World,
    start: Instant,
    shared: Arc<Shared>,
    stats: Stats,
    closed: bool,
}

/// The clock of a simulated world, also after its end.
#[derive(Clone)]
pub struct SimClock {
    start: Instant,
    shared: Arc<Shared>,
}

impl SimClock {
    /// Virtual time since the start of the world.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now.saturating_duration_since(self.start)
    }
}

/// Connects `world_size` ranks in `epoch`; the endpoints come by rank. **Each must be moved to a thread of its own, or
/// dropped**: time stands still until every rank waits or is gone.
///
/// # Panics
///
/// If `world_size` is not in 1..=[`MAX_WORLD_SIZE`](crate::world::MAX_WORLD_SIZE).
#[must_use]
pub fn mesh(world_size: u32, epoch: u32, config: &SimConfig) -> Vec<SimMesh> {
    let start = Instant::now();
    let shared = Arc::new(Shared {
        state: Mutex::new(State::new(world_size, start, config)),
        turns: (0..world_size).map(|_| Condvar::new()).collect(),
    });
    let end = |rank| {
        let world = match World::new(rank, world_size, epoch) {
            Ok(world) => world,
            Err(error) => panic!("caller: {error}"),
        };
        let stats = Stats { peers: vec![PeerStats::default(); world_size as usize] };
        SimMesh { world, start, shared: Arc::clone(&shared), stats, closed: false }
    };
    (0..world_size.max(1)).map(end).collect()
}

impl SimMesh {
    /// The world's clock, for who looks on.
    #[must_use]
    pub fn clock(&self) -> SimClock {
        SimClock { start: self.start, shared: Arc::clone(&self.shared) }
    }

    /// Pretends to compute for `duration`: time passes, and what comes is found afterwards.
    pub fn advance(&mut self, duration: Duration) {
        let mut state = self.enter();
        let until = state.now + duration;
        state.compute(self.own(), until);
        drop(self.yield_turn(state));
    }

    fn own(&self) -> u32 {
        self.world.rank().0
    }

    /// Waits for this rank's turn. The thread of a killed rank ends here.
    fn enter(&self) -> MutexGuard<'_, State> {
        match self.enter_alive() {
            Some(state) => state,
            None => panic::resume_unwind(Box::new(Killed)),
        }
    }

    fn enter_alive(&self) -> Option<MutexGuard<'_, State>> {
        let own = self.own();
        let state = self.shared.state.lock().unwrap_or_else(PoisonError::into_inner);
        let state = self.shared.turns[own as usize]
            .wait_while(state, |state| state.running != Some(own) && !state.is_dead(own))
            .unwrap_or_else(PoisonError::into_inner);
        (!state.is_dead(own)).then_some(state)
    }

    /// Lets the others run until it is this rank's turn again.
    fn yield_turn(&self, mut state: MutexGuard<'_, State>) -> MutexGuard<'_, State> {
        self.pass_on(&mut state);
        drop(state);
        self.enter()
    }

    fn pass_on(&self, state: &mut State) {
        if let Some(next) = state.next_turn() {
            self.shared.turns[next as usize].notify_all();
        }
        for (rank, turn) in (0..).zip(&self.shared.turns) {
            if state.is_dead(rank) {
                turn.notify_all();
            }
        }
    }
}

impl Mesh for SimMesh {
    fn world(&self) -> World {
        self.world
    }

    fn now(&self) -> Instant {
        self.enter().now
    }

    fn send(&mut self, to: Rank, frame: Frame) {
        if self.closed || to == self.world.rank() || !self.world.contains(to) {
            return;
        }
        let bytes = frame.wire_bytes();
        self.enter().send(self.own(), to.0, frame);
        let stats = &mut self.stats.peers[to.index()];
        stats.frames_sent += 1;
        stats.frame_bytes_sent += bytes;
    }

    fn receive(&mut self, until: Instant) -> Event {
        let own = self.own();
        let mut state = self.enter();
        let event = match state.take(own) {
            Some(event) => Some(event),
            None => {
                state.wait(own, until);
                state = self.yield_turn(state);
                state.take(own)
            }
        };
        drop(state);
        if let Some(Event::Frame(from, frame)) = &event {
            let stats = &mut self.stats.peers[from.index()];
            stats.frames_received += 1;
            stats.frame_bytes_received += frame.wire_bytes();
        }
        event.unwrap_or(Event::Timeout)
    }

    fn close(&mut self, abort: Option<&Abort>) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        let own = self.own();
        let Some(mut state) = self.enter_alive() else { return };
        let loss = abort.map_or(Loss::Closed, |abort| Loss::Aborted(abort.clone()));
        if abort.is_none() && state.under_way(own) > 0 {
            let deadline = state.now + state.silence();
            state.drain(own, deadline);
            self.pass_on(&mut state);
            drop(state);
            let Some(again) = self.enter_alive() else { return };
            state = again;
        }
        state.tell(own, &loss);
    }

    fn stats(&self) -> Stats {
        self.stats.clone()
    }
}

impl Drop for SimMesh {
    fn drop(&mut self) {
        let how = if thread::panicking() { "panicked" } else { "ended without closing" };
        self.close(Some(&Abort { culprit: Some(self.world.rank()), reason: how.to_owned() }));
        if let Some(mut state) = self.enter_alive() {
            state.leave(self.own());
            self.pass_on(&mut state);
        }
    }
}
