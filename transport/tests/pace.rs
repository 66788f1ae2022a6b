//! How long a peer may make no progress: learnt from the collectives before, never longer than the cap.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::{
    Abort, Communicator, Event, ExchangeError, Frame, Header, Limits, Mesh, Operation, PeerStats, Rank,
    Stats, Tag, World,
};

const SECOND: Duration = Duration::from_secs(1);
const CAP: Duration = Duration::from_secs(600);

/// Rank 0 of 3 on a clock of its own. Rank 2 is always there at once; rank 1 reaches the barrier of step s after
/// `waits[s - 1]`, and never those beyond.
struct Script {
    world: World,
    now: Instant,
    waits: Vec<Duration>,
    step: u64,
    /// Barriers of this step that are still to come, and when.
    due: Vec<(Instant, Rank)>,
}

impl Script {
    fn new(waits: Vec<Duration>) -> Self {
        let world = World::new(0, 3, 0).unwrap();
        Self { world, now: Instant::now(), waits, step: 0, due: Vec::new() }
    }
}

impl Mesh for Script {
    fn world(&self) -> World {
        self.world
    }

    fn now(&self) -> Instant {
        self.now
    }

    fn send(&mut self, _to: Rank, frame: Frame) {
        let step = frame.header.operation.step;
        if step > self.step {
            self.step = step;
            let wait = self.waits.get(usize::try_from(step - 1).unwrap());
            self.due = wait.map(|wait| (self.now + *wait, Rank(1))).into_iter().collect();
            self.due.push((self.now, Rank(2)));
        }
    }

    fn receive(&mut self, until: Instant) -> Event {
        match self.due.last() {
            Some((at, from)) if *at <= until => {
                let (at, from) = (*at, *from);
                self.due.pop();
                self.now = self.now.max(at);
                let operation = Operation { step: self.step, tag: Tag(0) };
                let header = Header { operation, epoch: 0, from, total: 0, offset: 0, length: 0 };
                Event::Frame(from, Frame { header, payload: Bytes::new() })
            }
            _ => {
                self.now = self.now.max(until);
                Event::Timeout
            }
        }
    }

    fn close(&mut self, _abort: Option<&Abort>) {}

    fn stats(&self) -> Stats {
        Stats { peers: vec![PeerStats::default(); 3] }
    }
}

/// Barriers until one fails: the deadline that rank 1 had in each, and the error. `waits` is when rank 1 comes.
fn run(waits: Vec<Duration>, limits: Limits) -> (Vec<Duration>, ExchangeError) {
    let mut communicator = Communicator::new(Box::new(Script::new(waits)), limits);
    let mut deadlines = Vec::new();
    for step in 1.. {
        deadlines.push(communicator.stats().peers[1].deadline);
        if let Err(error) = communicator.barrier(Operation { step, tag: Tag(0) }) {
            return (deadlines, error);
        }
    }
    unreachable!()
}

fn stalled(step: u64, deadline: Duration) -> ExchangeError {
    ExchangeError::Stalled { rank: Rank(1), waited: deadline, deadline, step, missing: 0, total: 0 }
}

#[test]
fn the_first_steps_have_the_whole_cap_and_the_deadline_then_follows_the_peer() {
    let (deadlines, error) = run(vec![30 * SECOND; 100], Limits::default());
    assert_eq!(deadlines[..16], [CAP; 16]);
    // 8 times 30 s; what is left of the first variation of 15 s fades.
    let last = deadlines[100];
    assert!(last >= 240 * SECOND && last < 241 * SECOND, "{last:?}");
    assert!(deadlines[16..].iter().is_sorted_by(|a, b| a >= b), "{deadlines:?}");
    assert_eq!(error, stalled(101, last), "both numbers are of the deadline that was used");
}

#[test]
fn quick_peers_are_not_given_less_than_the_floor_and_a_first_pause_within_it_is_no_fault() {
    let mut waits = vec![SECOND / 20; 2000];
    // An evaluation on one rank alone, which nobody was told of.
    waits[999] = 110 * SECOND;
    let (deadlines, error) = run(waits, Limits::default());
    assert_eq!(deadlines[999], 120 * SECOND);
    // It may take eight times as long from then on, which the cap limits, and that is not forgotten.
    assert_eq!((deadlines[1000], deadlines[2000]), (CAP, CAP));
    assert_eq!(error, stalled(2001, CAP));
}

#[test]
fn a_pause_beyond_the_floor_of_a_quick_peer_is_its_fault_and_the_cap_alone_can_be_asked_for() {
    let mut waits = vec![SECOND / 20; 100];
    waits[50] = 130 * SECOND;
    let (_, error) = run(waits.clone(), Limits::default());
    assert_eq!(error, stalled(51, 120 * SECOND));
    let fixed = Limits { stall_floor: CAP, ..Limits::default() };
    let (deadlines, error) = run(waits, fixed);
    assert_eq!(deadlines, [CAP; 101]);
    assert_eq!(error, stalled(101, CAP));
}

#[test]
fn each_peer_has_its_own_deadline() {
    let limits = Limits { stall_floor: SECOND, ..Limits::default() };
    let mut communicator = Communicator::new(Box::new(Script::new(vec![5 * SECOND; 200])), limits);
    for step in 1..=200 {
        communicator.barrier(Operation { step, tag: Tag(0) }).unwrap();
    }
    let stats = communicator.stats();
    let deadlines: Vec<_> = stats.peers.iter().map(|peer| peer.deadline.as_secs()).collect();
    assert_eq!(deadlines, [0, 40, 1]);
    assert_eq!(stats.total().deadline.as_secs(), 40);
    // The slow one was to blame, though its deadline passes last: the other one was there.
    let error = communicator.barrier(Operation { step: 201, tag: Tag(0) }).unwrap_err();
    assert_eq!(error.culprit(), Some(Rank(1)), "{error}");
}
