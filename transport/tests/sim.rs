//! The mesh on a virtual clock: what each fault looks like to the ranks, and when.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::sim::{self, Fault, Killed, SimConfig, SimMesh};
use gradwire_transport::{
    Communicator, Event, ExchangeError, FrameError, Limits, Loss, Mesh, Operation, Rank, Tag,
};

const SILENCE: Duration = Duration::from_secs(10);

fn config(link: &str, faults: Vec<(Duration, Fault)>) -> SimConfig {
    SimConfig { link: link.parse().unwrap(), silence: SILENCE, seed: 1, faults }
}

/// Runs `rank` on every rank of a world; `None` for who was killed.
fn world<T: Send>(size: u32, config: &SimConfig, rank: impl Fn(SimMesh) -> T + Sync) -> Vec<Option<T>> {
    thread::scope(|scope| {
        let rank = &rank;
        let start = |mesh| scope.spawn(move || rank(mesh));
        let threads: Vec<_> = sim::mesh(size, 0, config).into_iter().map(start).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, T>| match thread.join() {
            Ok(value) => Some(value),
            Err(payload) => {
                assert!(payload.is::<Killed>(), "a rank panicked");
                None
            }
        };
        threads.into_iter().map(end).collect()
    })
}

/// Ten all-to-alls of painted blocks, and what came of them.
fn exchange(mesh: SimMesh) -> (Result<(), ExchangeError>, Duration) {
    let clock = mesh.clock();
    let (own, size) = (mesh.world().rank().0, mesh.world().size());
    let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
    let block = |from: u32, to: u32| Bytes::from(format!("{from} to {to}, painted"));
    let result = (1..=10).try_for_each(|step| {
        let outgoing = (0..size).map(|to| block(own, to)).collect();
        let due: Vec<Bytes> = (0..size).map(|from| block(from, own)).collect();
        let expected: Vec<u64> = due.iter().map(|block| block.len() as u64).collect();
        let got = communicator.all_to_all(Operation { step, tag: Tag(0) }, outgoing, &expected)?;
        assert_eq!(got, due, "step {step}");
        Ok(())
    });
    communicator.close();
    (result, clock.elapsed())
}

const SOON: Duration = Duration::from_millis(100);

#[test]
fn a_lossy_link_delays_and_loses_nothing() {
    for link in
        ["1Gbit,80ms,0%", "10Mbit,80ms,20%", "1Gbit,80ms,5%,burst=4,jitter=3ms,reorder=20%,duplicate=20%"]
    {
        let first = world(8, &config(link, Vec::new()), exchange);
        for outcome in first.iter().flatten() {
            assert_eq!(outcome.0, Ok(()), "{link}");
            assert!(
                outcome.1 >= 10 * Duration::from_millis(40),
                "{link}: ten one-way delays, {:?}",
                outcome.1
            );
        }
        assert_eq!(first, world(8, &config(link, Vec::new()), exchange), "{link}: the same run twice");
    }
}

#[test]
fn short_faults_are_ridden_out() {
    let rank = Rank(2);
    let length = SILENCE - Duration::from_secs(1);
    let faults = [
        Fault::Stop { rank, length },
        Fault::Partition { ranks: vec![rank], length: Some(length) },
        Fault::Slow { rank, rate: 50_000 },
    ];
    for fault in faults {
        let outcomes = world(4, &config("1Gbit,80ms,0%", vec![(SOON, fault.clone())]), exchange);
        assert!(outcomes.iter().flatten().all(|outcome| outcome.0.is_ok()), "{fault:?}: {outcomes:?}");
    }
}

#[test]
fn long_faults_name_the_rank_that_had_them_on_every_other_rank() {
    let rank = Rank(2);
    let length = SILENCE + Duration::from_secs(1);
    let faults = [
        Fault::Crash(rank),
        Fault::Stop { rank, length },
        Fault::Partition { ranks: vec![rank], length: Some(length) },
        Fault::Partition { ranks: vec![rank], length: None },
        Fault::Corrupt(rank),
        Fault::Repeat(rank),
    ];
    for fault in faults {
        let outcomes = world(4, &config("1Gbit,80ms,0%", vec![(SOON, fault.clone())]), exchange);
        for other in [0, 1, 3] {
            let (result, at) = outcomes[other].as_ref().unwrap();
            let error = result.as_ref().unwrap_err();
            assert_eq!(error.culprit(), Some(rank), "{fault:?}: {error}");
            assert!(*at <= SOON + length + SILENCE, "{fault:?}: rank {other} at {at:?}");
        }
        assert_eq!(outcomes[2].is_none(), matches!(fault, Fault::Crash(_)), "{fault:?}");
        if let Fault::Stop { .. } = fault {
            let (result, _) = outcomes[2].as_ref().unwrap();
            let paused = matches!(result, Err(ExchangeError::Lost { loss: Loss::Paused { paused }, .. }) if *paused == length);
            assert!(paused, "the rank that was stopped knows it: {result:?}");
        }
    }
}

#[test]
fn one_turned_bit_is_a_bad_frame() {
    let faults = vec![(SOON, Fault::Corrupt(Rank(1)))];
    let outcomes = world(2, &config("1Gbit,80ms,0%", faults), exchange);
    let (result, _) = outcomes[0].as_ref().unwrap();
    let checksum = matches!(
        result,
        Err(ExchangeError::Frame { rank: Rank(1), source: FrameError::Checksum { .. }, .. })
    );
    assert!(checksum, "{result:?}");
}

#[test]
fn time_passes_only_when_all_wait_and_costs_nothing() {
    let start = Instant::now();
    let hour = Duration::from_secs(3600);
    let ends = world(3, &config("1Gbit,80ms,0%", Vec::new()), |mut mesh| {
        let clock = mesh.clock();
        mesh.advance(hour);
        assert_eq!(clock.elapsed(), hour, "after computing");
        let until = mesh.now() + hour;
        let event = mesh.receive(until);
        (event, clock.elapsed())
    });
    assert_eq!(ends[0], Some((Event::Timeout, 2 * hour)), "nobody left before");
    assert!(start.elapsed() < Duration::from_secs(60), "six hours took {:?}", start.elapsed());
}
