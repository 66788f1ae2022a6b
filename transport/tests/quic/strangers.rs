//! Callers that are no members, or lie: they are kept out, and do not keep members out.

use std::net::{SocketAddr, UdpSocket};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gradwire_transport::quic::{Config, JoinError, QuicMesh, Rendezvous};
use gradwire_transport::{Rank, WIRE_VERSION, World};

use crate::raw::{Raw, Run, hello, read_hello};
use crate::support::{LOCALHOST, config as with_authority};

pub(crate) fn config(run: &Run, rank: u32, size: u32, rendezvous: &str) -> Config {
    Config {
        bind: Some(LOCALHOST),
        silence: Duration::from_secs(10),
        join: Duration::from_secs(20),
        ..Config::new(
            run.identity(rank),
            World::new(rank, size, 0).unwrap(),
            Rendezvous::Address(rendezvous.into()),
        )
    }
}

type Joining = JoinHandle<Result<QuicMesh, JoinError>>;

fn leader(run: &Run, size: u32) -> (SocketAddr, Joining) {
    let pending = QuicMesh::bind(config(run, 0, size, "unused:1")).unwrap();
    (pending.local_addr(), thread::spawn(move || pending.join()))
}

/// A world of two still comes up at `address`.
fn comes_up(run: &Run, address: SocketAddr, leader: Joining) {
    let member = QuicMesh::bind(config(run, 1, 2, &address.to_string())).unwrap().join();
    let leader = leader.join().unwrap();
    assert!(member.is_ok() && leader.is_ok(), "{:?}, {:?}", member.err(), leader.err());
}

#[test]
fn a_client_of_another_run_is_kept_out_though_its_handshake_succeeds() {
    let (run, other) = (Run::new(2), Run::new(2));
    let (address, leader) = leader(&run, 2);
    // It trusts the run's CA, so that it is the server that has to refuse.
    let stranger = Raw::new(&other.pem("rank-1.pem"), &run.pem("ca.pem"));
    let connection = stranger.connect(address, 0);
    stranger.run(async {
        // The refusal may be here already: then there is nothing to open.
        if let Ok((mut send, mut receive)) = connection.open_bi().await {
            let _ = send.write_all(&hello(WIRE_VERSION, 2, 0, 1, &[])).await;
            assert!(receive.read_exact(&mut [0; 8]).await.is_err(), "a stranger was answered");
        }
    });
    comes_up(&run, address, leader);
}

#[test]
fn two_runs_do_not_mix_and_who_is_foreign_is_said() {
    let run = Run::new(2);
    let (address, leader) = leader(&run, 2);
    let authority = gradwire_transport::quic::Authority::new("another").unwrap();
    let other = with_authority(&authority, 1, 2, &address.to_string());
    let error = QuicMesh::bind(other).unwrap().join().err().unwrap();
    assert!(
        matches!(&error, JoinError::Foreign { rank: Rank(0), address: at, .. } if *at == address),
        "{error}"
    );
    comes_up(&run, address, leader);
}

#[test]
fn a_member_whose_certificate_the_other_does_not_know_learns_that_it_was_refused() {
    let (run, other) = (Run::new(2), Run::new(2));
    // Rank 0 of `run`, but it lets only members of `other` in.
    let server = Raw::new(&run.pem("rank-0.pem"), &other.pem("ca.pem"));
    let dialer = config(&run, 1, 2, &server.local_addr().to_string());
    let joining = thread::spawn(move || QuicMesh::bind(dialer)?.join());
    server.idle(Duration::from_secs(1));
    let refused = server.run(async { server.accept_raw().await });
    assert!(refused.is_err(), "the stranger was taken");
    server.idle(Duration::from_millis(200));
    let error = joining.join().unwrap().err().unwrap();
    assert!(matches!(error, JoinError::Refused { rank: Rank(0), .. }), "{error}");
    assert!(error.to_string().contains("does not accept our certificate"), "{error}");
}

#[test]
fn another_rank_than_the_dialed_one_is_foreign() {
    let run = Run::new(3);
    let server = Raw::member(&run, 2);
    let dialer = config(&run, 1, 3, &server.local_addr().to_string());
    let joining = thread::spawn(move || QuicMesh::bind(dialer)?.join());
    let _ = server.run(async { server.accept_raw().await });
    let error = joining.join().unwrap().err().unwrap();
    assert!(matches!(error, JoinError::Foreign { rank: Rank(0), .. }), "{error}");
}

#[test]
fn a_member_that_claims_another_rank_is_named() {
    let run = Run::new(3);
    let (address, leader) = leader(&run, 3);
    let liar = Raw::member(&run, 1);
    let connection = liar.connect(address, 0);
    liar.run(async {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&hello(WIRE_VERSION, 3, 0, 2, &[])).await.unwrap();
        read_hello(&mut receive).await;
        let mut verdict = [0];
        receive.read_exact(&mut verdict).await.unwrap();
        assert_eq!(verdict, [0]);
        send.write_all(&[1]).await.unwrap();
        connection.closed().await;
    });
    let error = leader.join().unwrap().err().unwrap();
    let said = format!("a peer at {} claims rank 2, its certificate is for rank 1", liar.local_addr());
    assert_eq!(error.to_string(), said);
    assert_eq!(error.culprit(), Some(Rank(1)));
}

#[test]
fn another_wire_version_is_named_on_both_sides_whoever_dials() {
    let run = Run::new(2);
    let (address, leader) = leader(&run, 2);
    let old = Raw::member(&run, 1);
    let connection = old.connect(address, 0);
    old.run(async {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        // Only the first eight bytes are the same in every version.
        send.write_all(b"GRDH\x63\x00\x03\x00???").await.unwrap();
        assert_eq!(read_hello(&mut receive).await.0, WIRE_VERSION);
        connection.closed().await;
    });
    let error = leader.join().unwrap().err().unwrap();
    assert_eq!(error.to_string(), format!("rank 1 speaks wire version 99, ours is {WIRE_VERSION}"));

    let old = Raw::member(&run, 0);
    let dialer = config(&run, 1, 2, &old.local_addr().to_string());
    let joining = thread::spawn(move || QuicMesh::bind(dialer)?.join());
    let connection = old.accept();
    old.run(async {
        let (mut send, mut receive) = connection.accept_bi().await.unwrap();
        assert_eq!(read_hello(&mut receive).await.0, WIRE_VERSION);
        send.write_all(b"GRDH\x63\x00\x03\x00???").await.unwrap();
        connection.closed().await;
    });
    let error = joining.join().unwrap().err().unwrap();
    assert_eq!(error.to_string(), format!("rank 0 speaks wire version 99, ours is {WIRE_VERSION}"));
}

#[test]
fn hellos_that_never_come_or_make_no_sense_keep_no_one_out() {
    let run = Run::new(2);
    let (address, leader) = leader(&run, 2);
    let bad = Raw::member(&run, 1);
    let _silent = bad.connect(address, 0);
    let connections: Vec<_> = [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        // The longest length, and nothing behind it.
        b"GRDH\x03\x00\xff\xff",
        &hello(WIRE_VERSION, u32::MAX, 0, 1, &[]),
        &hello(WIRE_VERSION, 2, 0, 1, &[("codec", "\x1b[2J")]),
        &hello(WIRE_VERSION, 2, 0, 1, &[("x", ""); 33]),
    ]
    .map(|bytes| {
        let connection = bad.connect(address, 0);
        bad.run(async {
            let (mut send, _receive) = connection.open_bi().await.unwrap();
            send.write_all(bytes).await.unwrap();
            connection.closed().await;
        });
        connection
    })
    .into();
    drop(connections);
    comes_up(&run, address, leader);
}

#[test]
fn garbage_at_the_socket_keeps_no_one_out() {
    let run = Run::new(2);
    let (address, leader) = leader(&run, 2);
    let socket = UdpSocket::bind(LOCALHOST).unwrap();
    // Seed 1; every length up to a full packet, long and short headers of every kind.
    let mut state = 1u64;
    for length in 0..1500usize {
        let datagram: Vec<u8> = (0..length)
            .map(|_| {
                state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                (state >> 56) as u8
            })
            .collect();
        socket.send_to(&datagram, address).unwrap();
    }
    comes_up(&run, address, leader);
}

#[test]
fn a_rank_that_died_while_joining_may_start_again() {
    let run = Run::new(2);
    let mut first = config(&run, 0, 2, "unused:1");
    first.silence = Duration::from_secs(2);
    let pending = QuicMesh::bind(first).unwrap();
    let address = pending.local_addr();
    let leader = thread::spawn(move || pending.join());
    // It takes its seat with its hello, and is killed before it has said yes.
    let dead = Raw::member(&run, 1);
    let connection = dead.connect(address, 0);
    dead.run(async {
        let (mut send, mut receive) = connection.open_bi().await.unwrap();
        send.write_all(&hello(WIRE_VERSION, 2, 0, 1, &[])).await.unwrap();
        read_hello(&mut receive).await;
        receive.read_exact(&mut [0]).await.unwrap();
    });
    drop(dead);
    comes_up(&run, address, leader);
}
