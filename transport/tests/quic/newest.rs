//! Two processes with one certificate: the newer one is meant.

use std::sync::mpsc;
use std::thread;
use std::time::Duration;

use gradwire_transport::quic::{JoinError, Members, QuicMesh, Waiting};
use gradwire_transport::{Mesh as _, Rank, WIRE_VERSION};

use crate::epochs::{config, identities};
use crate::raw::{Raw, Run, hello, read_hello};
use crate::strangers;

#[test]
fn a_newer_process_of_a_rank_takes_its_place_at_once() {
    let run = Run::new(2);
    // Longer than the test: the place is not given up by silence.
    let mut first = strangers::config(&run, 0, 2, "unused:1");
    first.silence = Duration::from_secs(600);
    let pending = QuicMesh::bind(first).unwrap();
    let address = pending.local_addr();
    let leader = thread::spawn(move || pending.join());
    // Not yet: rank 1 has said hello and not yes, so that rank 0 waits.
    let old = Raw::member(&run, 1);
    let connection = old.connect(address, 0);
    let mut send = old.run(async {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&hello(WIRE_VERSION, 2, 0, 1, &[])).await.unwrap();
        read_hello(&mut receive).await;
        receive.read_exact(&mut [0]).await.unwrap();
        send
    });
    let new = QuicMesh::bind(strangers::config(&run, 1, 2, &address.to_string())).unwrap();
    let new = thread::spawn(move || new.join());
    let closed = old.run(async { connection.closed().await });
    let quinn::ConnectionError::ApplicationClosed(close) = closed else { panic!("{closed}") };
    assert_eq!(close.error_code, 4u32.into(), "superseded");
    assert!(old.run(send.write_all(&[1])).is_err(), "the old one has no say any more");
    let (new, leader) = (new.join().unwrap(), leader.join().unwrap());
    assert!(new.is_ok() && leader.is_ok(), "{:?}, {:?}", new.err(), leader.err());
}

/// Rank 0 of 3, two processes of rank 1 of which the `first` one is heard of before the other joins, and rank 2 in the
/// end: what became of the older and the newer process.
fn twins(older_first: bool) -> [Result<QuicMesh, JoinError>; 2] {
    let identities = identities(3);
    let all = Members::all(3);
    let mut leading = config(&identities[0], &all, 0, "unused:1");
    let (sender, heard) = mpsc::channel();
    leading.waiting = Some(Waiting::new(move |missing, _| {
        let _ = sender.send(missing.to_vec());
    }));
    let pending = QuicMesh::bind(leading).unwrap();
    let address = pending.local_addr().to_string();
    let leader = thread::spawn(move || pending.join());
    let bind = |rank: usize| {
        let mut config = config(&identities[rank], &all, 0, &address);
        config.silence = Duration::from_secs(2);
        QuicMesh::bind(config).unwrap()
    };
    let (older, newer) = (bind(1), bind(1));
    let (first, second) = if older_first { (older, newer) } else { (newer, older) };
    let first = thread::spawn(move || first.join());
    // Every 5 s; rank 1 is there once only rank 2 is missing.
    while heard.recv().unwrap() != [Rank(2)] {}
    let second = thread::spawn(move || second.join());
    let (loser, winner) = if older_first { (first, second) } else { (second, first) };
    let loser = loser.join().unwrap();
    let third = bind(2).join();
    let (winner, leader) = (winner.join().unwrap(), leader.join().unwrap());
    assert!(third.is_ok() && leader.is_ok(), "{:?}, {:?}", third.err(), leader.err());
    [loser, winner]
}

#[test]
fn the_older_process_of_a_rank_learns_that_it_was_superseded() {
    let [older, newer] = twins(true);
    let error = older.err().unwrap();
    assert!(matches!(error, JoinError::Superseded { rank: Rank(1), by: Rank(0) }), "{error}");
    assert_eq!(error.to_string(), "rank 1 was superseded: a newer process of it has called rank 0");
    assert_eq!(newer.unwrap().world().rank(), Rank(1));
}

#[test]
fn a_process_that_is_older_than_the_one_that_is_there_is_turned_away_and_the_world_comes_up() {
    let [older, newer] = twins(false);
    assert_eq!(
        older.err().unwrap().to_string(),
        "rank 1 has joined already, rank 0 says: is it running twice, or was it started again?"
    );
    assert_eq!(newer.unwrap().world().rank(), Rank(1));
}
