//! Those who come late, and those who wait: everyone is told what is known.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gradwire_transport::quic::{Agreement, Authority, Config, JoinError, QuicMesh, Waiting};
use gradwire_transport::{Mesh, Rank};

use crate::raw::{Raw, Run};
use crate::strangers;
use crate::support::config;

type Joining = JoinHandle<Result<QuicMesh, JoinError>>;

fn authority() -> Authority {
    Authority::new("test").unwrap()
}

fn start(config: Config) -> Joining {
    thread::spawn(move || QuicMesh::bind(config)?.join())
}

fn leader(config: Config) -> (String, Joining) {
    let pending = QuicMesh::bind(config).unwrap();
    (pending.local_addr().to_string(), thread::spawn(move || pending.join()))
}

fn error(joining: Joining) -> String {
    joining.join().unwrap().err().expect("joined").to_string()
}

fn differs(mut config: Config) -> Config {
    config.agreements = vec![Agreement::new("codec", "sign")];
    config
}

#[test]
fn who_calls_after_rank_0_has_refused_another_is_told_why() {
    let authority = authority();
    let (address, first) = leader(config(&authority, 0, 4, "unused:1"));
    // Ready to call, so that only the call itself is late.
    let late = QuicMesh::bind(config(&authority, 2, 4, &address)).unwrap();
    let refused = error(start(differs(config(&authority, 1, 4, &address))));
    assert_eq!(refused, r#"rank 0 has codec unset, ours is "sign""#);
    let said = late.join().err().unwrap().to_string();
    assert_eq!(said, r#"rank 1 has codec "sign", ours is unset (rank 0 says so, while joining)"#);
    assert_eq!(error(first), r#"rank 1 has codec "sign", ours is unset"#);
}

#[test]
fn of_ranks_that_call_all_at_once_none_is_left_waiting_when_one_disagrees() {
    for round in 0..3 {
        let authority = authority();
        let (address, first) = leader(config(&authority, 0, 5, "unused:1"));
        let rest: Vec<_> = (1..5)
            .map(|rank| {
                let config = config(&authority, rank, 5, &address);
                start(if rank == 3 { differs(config) } else { config })
            })
            .collect();
        assert_eq!(error(first), r#"rank 3 has codec "sign", ours is unset"#, "round {round}");
        for (rank, joining) in (1..).zip(rest) {
            let said = error(joining);
            let due = if rank == 3 {
                r#"rank 0 has codec unset, ours is "sign""#
            } else {
                r#"rank 3 has codec "sign", ours is unset (rank 0 says so, while joining)"#
            };
            assert_eq!(said, due, "round {round}, rank {rank}");
        }
    }
}

#[test]
fn a_process_too_many_is_told_so_when_all_ranks_have_joined() {
    let authority = authority();
    let (address, first) = leader(config(&authority, 0, 2, "unused:1"));
    let second = start(config(&authority, 1, 2, &address));
    let (mut first, second) = (first.join().unwrap().unwrap(), second.join().unwrap().unwrap());
    let surplus = start(config(&authority, 1, 2, &address)).join().unwrap().err().unwrap();
    assert!(matches!(surplus, JoinError::DuplicateRank { rank: Rank(1), by: Rank(0) }), "{surplus}");
    // A stranger learns nothing, and those who have joined notice nothing of either.
    let stranger = start(config(&Authority::new("other").unwrap(), 1, 2, &address)).join().unwrap();
    assert!(matches!(stranger.err().unwrap(), JoinError::Foreign { rank: Rank(0), .. }));
    let due = crate::support::frame(1, 1, 100);
    let mut second = second;
    second.send(Rank(0), due.clone());
    assert_eq!(crate::support::event(&mut first), gradwire_transport::Event::Frame(Rank(1), due));
}

#[test]
fn who_waits_is_told_for_whom_every_few_seconds() {
    let authority = authority();
    let heard: [Arc<Mutex<Vec<Vec<Rank>>>>; 3] = Default::default();
    let listening = |rank: u32, address: &str| {
        let mut config = config(&authority, rank, 4, address);
        config.join = Duration::from_millis(7_000);
        let heard = heard[rank as usize].clone();
        config.waiting =
            Some(Waiting::new(move |missing, _waited| heard.lock().unwrap().push(missing.to_vec())));
        config
    };
    let (address, first) = leader(listening(0, "unused:1"));
    let second = start(listening(1, &address));
    let lost = start(listening(2, "192.0.2.1:7"));
    // Whose patience ends first tells the other.
    for said in [error(first), error(second)] {
        assert!(said.starts_with("ranks 2, 3 did not join within 7.0s"), "{said}");
    }
    error(lost);
    let heard = heard.map(|heard| heard.lock().unwrap().concat());
    assert_eq!(heard, [vec![Rank(2), Rank(3)], vec![Rank(2), Rank(3)], vec![Rank(0)]]);
}

#[test]
fn a_caller_of_another_run_is_mentioned_when_a_rank_does_not_come() {
    // The name of the folder is in the issuer's name, so that it may be the same or another one.
    for name in ["test", "other"] {
        let authority = authority();
        let mut config = config(&authority, 0, 2, "unused:1");
        config.join = Duration::from_secs(2);
        let (address, first) = leader(config);
        let foreign = Authority::new(name).unwrap();
        let said = error(start(crate::support::config(&foreign, 1, 2, &address)));
        assert_eq!(
            said,
            format!(
                "rank 0 at {address} could not be authenticated: its certificate is of another run (another keygen?)"
            )
        );
        let due = "rank 1 did not join within 2.0s; a caller from 127.0.0.1 was turned away: its certificate is of \
                   another run (another keygen?)";
        assert_eq!(error(first), due);
    }
}

#[test]
fn what_was_last_heard_from_rank_0_is_said() {
    let run = Run::new(2);
    let server = Raw::member(&run, 0);
    let address: SocketAddr = server.local_addr();
    let mut dialer = strangers::config(&run, 1, 2, &address.to_string());
    dialer.join = Duration::from_secs(2);
    let joining = start(dialer);
    server.accept().close(0u32.into(), b"");
    server.idle(Duration::from_millis(300));
    drop(server);
    let said = error(joining);
    let start =
        format!("no answer from rank 0 at the rendezvous {address} within 2.0s; the last that was heard");
    assert!(said.starts_with(&start), "{said}");
}
