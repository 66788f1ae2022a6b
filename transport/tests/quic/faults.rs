//! Ways that are cut between real sockets.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transport::quic::{Config, Identity, Members, Peers, QuicMesh, Rendezvous};
use gradwire_transport::sim::Relay;
use gradwire_transport::{Abort, Communicator, Event, ExchangeError, Limits, Loss, Mesh as _, Rank};

use crate::epochs::{config as joining, identities, step, step_of};
use crate::support::{LOCALHOST, LONG, event, frame};

const SIZE: u32 = 3;

/// Three ranks of one run behind an emulated network.
struct Nodes {
    relay: Relay,
    identities: Vec<Identity>,
    silence: Duration,
}

impl Nodes {
    fn new(silence: Duration) -> Self {
        let relay = Relay::start(SIZE, "1Gbit,10ms,0%".parse().unwrap(), 5).unwrap();
        Self { relay, identities: identities(SIZE), silence }
    }

    /// Joins `members` as the holder of certificate `node`, listening where it did before.
    fn join(
        &self,
        node: u32,
        members: &Members,
        epoch: u32,
        at: Option<SocketAddr>,
    ) -> (QuicMesh, SocketAddr) {
        let entry = |peer: u32| {
            let address = self.relay.address(node, peer).unwrap_or(LOCALHOST);
            // The own entry is not used.
            let address = if peer == node { "127.0.0.1:1".into() } else { address.to_string() };
            format!("[[peer]]\nrank = {peer}\naddress = '{address}'\n")
        };
        let text: String = (0..SIZE).map(entry).collect();
        let peers = Peers::parse(&text, SIZE).unwrap().of(members).unwrap();
        let config = Config {
            rendezvous: Rendezvous::Peers(peers),
            silence: self.silence,
            bind: Some(at.unwrap_or(LOCALHOST)),
            ..joining(&self.identities[node as usize], members, epoch, "unused:1")
        };
        let pending = QuicMesh::bind(config).unwrap();
        let address = pending.local_addr();
        self.relay.place(node, address);
        (pending.join().unwrap(), address)
    }

    /// Cuts or mends all ways of `node`.
    fn cut(&self, node: u32, cut: bool) {
        let carrier = self.relay.carrier();
        for other in (0..SIZE).filter(|other| *other != node) {
            for (from, to) in [(node, other), (other, node)] {
                if cut { carrier.cut(from, to) } else { carrier.mend(from, to) }
            }
        }
    }

    fn lost_by_cuts(&self) -> u64 {
        self.relay.carrier().traffic().cut
    }
}

/// Waits for something that must come.
fn until(what: &str, mut done: impl FnMut() -> bool) {
    let began = Instant::now();
    while !done() {
        assert!(began.elapsed() < LONG, "no sign of {what}");
        thread::sleep(Duration::from_millis(1));
    }
}

/// Cuts rank 2 off for `cut` in the middle of steps with messages of `length` bytes; ten more follow when it is back.
fn rides_out(silence: Duration, cut: Duration, length: usize) {
    let nodes = Nodes::new(silence);
    let all = Members::all(SIZE);
    let (steps, last) = (AtomicU64::new(0), AtomicU64::new(u64::MAX));
    thread::scope(|scope| {
        for node in 0..SIZE {
            let (nodes, all, steps, last) = (&nodes, &all, &steps, &last);
            scope.spawn(move || {
                let (mesh, _) = nodes.join(node, all, 0, None);
                let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
                for number in 1.. {
                    step_of(&mut communicator, number, length).unwrap();
                    if node == 0 {
                        steps.store(number, Ordering::SeqCst);
                    }
                    if number >= last.load(Ordering::SeqCst) {
                        break;
                    }
                }
                communicator.close();
            });
        }
        until("five steps", || steps.load(Ordering::SeqCst) >= 5);
        nodes.cut(2, true);
        until("packets that are lost to the cut", || nodes.lost_by_cuts() >= 6);
        let began = Instant::now();
        // What was on its way has long come.
        thread::sleep(Duration::from_secs(1));
        let before = steps.load(Ordering::SeqCst);
        thread::sleep(cut.saturating_sub(began.elapsed()));
        assert_eq!(steps.load(Ordering::SeqCst), before, "nothing comes through");
        // All ranks see it in time: none is further than a step ahead of rank 0.
        last.store(before + 10, Ordering::SeqCst);
        nodes.cut(2, false);
    });
    assert!(steps.load(Ordering::SeqCst) >= 15, "ten steps after it healed");
}

#[test]
fn a_partition_that_heals_long_before_the_silence_is_ridden_out_and_nobody_is_told() {
    rides_out(Duration::from_secs(60), Duration::from_secs(2), 3000);
}

#[test]
fn a_partition_that_heals_shortly_before_the_silence_is_ridden_out_though_windows_are_full_of_what_was_lost()
{
    rides_out(Duration::from_secs(10), Duration::from_millis(7500), 1 << 20);
}

#[test]
fn a_partition_that_does_not_heal_is_named_on_both_sides_and_the_larger_one_goes_on_as_the_next_epoch() {
    let silence = Duration::from_secs(2);
    let nodes = Nodes::new(silence);
    let all = Members::all(SIZE);
    let steps = AtomicU64::new(0);
    thread::scope(|scope| {
        let ranks: Vec<_> = (0..SIZE)
            .map(|node| {
                let (nodes, all, steps) = (&nodes, &all, &steps);
                scope.spawn(move || {
                    let (mesh, address) = nodes.join(node, all, 0, None);
                    let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
                    let failed = (1..).find_map(|number| {
                        steps.fetch_max(number - 1, Ordering::SeqCst);
                        step(&mut communicator, number).err()
                    });
                    let error = failed.unwrap();
                    if node == 2 {
                        return error;
                    }
                    assert_eq!(error.culprit(), Some(Rank(2)), "rank {node}: {error}");
                    drop(communicator);
                    let left = all.without(&[Rank(2)]);
                    let (mesh, _) = nodes.join(node, &left, 1, Some(address));
                    let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
                    for number in 1..=3 {
                        step(&mut communicator, number).unwrap();
                    }
                    communicator.close();
                    error
                })
            })
            .collect();
        until("five steps", || steps.load(Ordering::SeqCst) >= 5);
        nodes.cut(2, true);
        for (node, rank) in (0..).zip(ranks) {
            let error = rank.join().unwrap();
            println!("rank {node}: {error}");
            // One of the larger side may hear it from the other before it notices itself.
            let silent = |it: &ExchangeError| matches!(it, ExchangeError::Silent { silent, deadline, .. } if *deadline == silence && *silent >= silence);
            let told =
                matches!(&error, ExchangeError::Aborted { abort, .. } if abort.reason.contains("silent for"));
            assert!(silent(&error) || (node != 2 && told), "rank {node}: {error}");
            assert!(node != 2 || error.culprit() < Some(Rank(2)), "rank {node}: {error}");
        }
    });
}

#[test]
fn who_missed_the_end_of_an_epoch_hears_of_it_with_the_next_packet_for_a_peer_that_went_on() {
    // Nobody waits that long.
    let nodes = Nodes::new(Duration::from_secs(600));
    let all = Members::all(SIZE);
    let mut joined: Vec<_> = thread::scope(|scope| {
        let start = |node| {
            let (nodes, all) = (&nodes, &all);
            scope.spawn(move || nodes.join(node, all, 0, None))
        };
        let threads: Vec<_> = (0..SIZE).map(start).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let (mut last, _) = joined.pop().unwrap();
    nodes.cut(2, true);
    // Rank 0 leaves, which rank 2 can't hear, and binds its address again.
    let (mut first, address) = joined.swap_remove(0);
    first.close(Some(&Abort { culprit: None, reason: "never arrives".into() }));
    drop(first);
    let again = Config { bind: Some(address), ..joining(&nodes.identities[0], &all, 1, "127.0.0.1:1") };
    let _pending = QuicMesh::bind(again).unwrap();
    nodes.cut(2, false);
    last.send(Rank(0), frame(2, 1, 100));
    assert_eq!(event(&mut last), Event::Lost(Rank(0), Loss::Closed));
}
