//! Who gets in, and what those who don't are told.

use std::net::UdpSocket;
use std::thread;
use std::time::Duration;

use gradwire_transport::quic::{Agreement, Authority, Config, JoinError, Peers, QuicMesh, Rendezvous};
use gradwire_transport::{Mesh, Rank, World};

use crate::support::{LOCALHOST, config, join_all, world};

fn authority() -> Authority {
    Authority::new("test").unwrap()
}

/// What each rank of a world that must not come up was told.
fn refusals(size: u32, change: impl Fn(u32, &mut Config)) -> Vec<String> {
    let results = join_all(&authority(), size, change);
    results.into_iter().map(|result| result.err().expect("joined").to_string()).collect()
}

#[test]
fn a_world_of_one_needs_no_one() {
    let mut alone = world(1, |_, _| {}).pop().unwrap();
    alone.close(None);
    assert_eq!(alone.stats().peers.len(), 1);
}

#[test]
fn ranks_may_come_late_and_in_any_order() {
    let authority = authority();
    let first = QuicMesh::bind(config(&authority, 0, 4, "unused:1")).unwrap();
    let address = first.local_addr().to_string();
    let mut threads = vec![thread::spawn(move || first.join())];
    for rank in [3, 1, 2] {
        thread::sleep(Duration::from_millis(100));
        let config = config(&authority, rank, 4, &address);
        threads.push(thread::spawn(move || QuicMesh::bind(config)?.join()));
    }
    let meshes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
    let ranks: Vec<_> = meshes.iter().map(|mesh| mesh.world().rank()).collect();
    assert_eq!(ranks, [Rank(0), Rank(3), Rank(1), Rank(2)]);
}

#[test]
fn a_world_also_joins_by_its_peers_file_and_over_ipv6() {
    for host in ["127.0.0.1", "::1"] {
        // Free ports, for the moment.
        let sockets: Vec<_> = (0..3).map(|_| UdpSocket::bind((host, 0)).unwrap()).collect();
        let addresses: Vec<_> = sockets.iter().map(|socket| socket.local_addr().unwrap()).collect();
        drop(sockets);
        let entry = |(rank, address)| format!("[[peer]]\nrank = {rank}\naddress = \"{address}\"\n");
        let text: String = addresses.iter().enumerate().map(entry).collect();
        let authority = authority();
        // The highest first: it dials ranks that are not there yet.
        let threads: Vec<_> = (0..3u32)
            .rev()
            .map(|rank| {
                let mut config = config(&authority, rank, 3, "");
                config.bind = Some(addresses[rank as usize]);
                config.rendezvous = Rendezvous::Peers(Peers::parse(&text, 3).unwrap());
                let thread = thread::spawn(move || QuicMesh::bind(config)?.join());
                thread::sleep(Duration::from_millis(50));
                thread
            })
            .collect();
        let meshes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
        assert_eq!(meshes.len(), 3);
    }
}

#[test]
fn a_port_in_use_is_named() {
    let taken = UdpSocket::bind(LOCALHOST).unwrap();
    let mut config = config(&authority(), 0, 1, "unused:1");
    config.bind = taken.local_addr().ok();
    let error = QuicMesh::bind(config).err().unwrap();
    assert!(
        matches!(error, JoinError::Bind { address, .. } if Ok(address) == taken.local_addr().map_err(drop))
    );
    assert!(error.to_string().starts_with(&format!("cannot bind UDP {}: ", taken.local_addr().unwrap())));
}

#[test]
fn a_rendezvous_that_is_no_address_is_refused_at_once_on_every_rank() {
    for text in ["garbage", "127.0.0.1", "127.0.0.1:99999", "127.0.0.1:0", "::1:7", ""] {
        for rank in 0..2 {
            let mut config = config(&authority(), rank, 2, text);
            config.bind = None;
            let error = QuicMesh::bind(config).err().unwrap();
            assert!(matches!(&error, JoinError::Address(error) if error.text == text), "{error}");
            assert!(
                error.to_string().starts_with(&format!("rendezvous {text:?} is no address: ")),
                "{error}"
            );
        }
    }
    // Who was told where to listen may leave the port to the system.
    for text in ["127.0.0.1:0", ""] {
        QuicMesh::bind(config(&authority(), 0, 2, text)).unwrap();
    }
    assert!(QuicMesh::bind(config(&authority(), 0, 2, "garbage")).is_err());
}

#[test]
fn a_world_that_was_not_told_where_to_listen_meets_at_an_ipv6_rendezvous() {
    let port = UdpSocket::bind(("::", 0)).unwrap().local_addr().unwrap().port();
    let authority = authority();
    let threads: Vec<_> = (0..3)
        .map(|rank| {
            let mut config = config(&authority, rank, 3, &format!("[::1]:{port}"));
            config.bind = None;
            thread::spawn(move || QuicMesh::bind(config)?.join())
        })
        .collect();
    let meshes: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect();
    assert_eq!(meshes.len(), 3);
}

#[test]
fn options_outside_their_range_are_named() {
    let say = |change: fn(&mut Config)| {
        let mut config = config(&authority(), 0, 1, "unused:1");
        change(&mut config);
        QuicMesh::bind(config).err().unwrap().to_string()
    };
    assert_eq!(say(|it| it.silence = Duration::ZERO), "silence is 0ns, must be 0.1 s to 1 h");
    assert_eq!(say(|it| it.tuning.mtu = 6551), "mtu is 6551, must be 1200 to 6500 bytes");
    assert_eq!(say(|it| it.tuning.streams = 0), "streams is 0, must be 4 to 1024");
}

#[test]
fn what_ranks_disagree_on_is_named_on_both_sides_with_both_values() {
    let agree = |codec: &str, layout: &str| {
        vec![Agreement::new("codec", codec), Agreement::new("model layout", layout)]
    };
    let said = refusals(2, |rank, config| {
        config.agreements = agree(["loco scale 5", "sign"][rank as usize], "ab12");
    });
    assert_eq!(
        said,
        [
            r#"rank 1 has codec "sign", ours is "loco scale 5""#,
            r#"rank 0 has codec "loco scale 5", ours is "sign""#
        ]
    );
    let said = refusals(2, |rank, config| config.agreements = agree("loco", ["ab12", "cd34"][rank as usize]));
    assert_eq!(
        said,
        [
            r#"rank 1 has model layout "cd34", ours is "ab12""#,
            r#"rank 0 has model layout "ab12", ours is "cd34""#
        ]
    );
}

#[test]
fn another_world_size_is_named_on_both_sides() {
    let said = refusals(2, |rank, config| {
        if rank == 1 {
            config.world = World::new(1, 3, 0).unwrap();
        }
    });
    assert_eq!(said, ["rank 1 has world size 3, ours is 2", "rank 0 has world size 2, ours is 3"]);
}

#[test]
fn a_rank_of_an_older_epoch_gives_up_at_once_and_one_of_a_newer_waits_for_it_to_come_back() {
    let said = refusals(2, |rank, config| {
        config.world = World::new(rank, 2, rank * 4).unwrap();
        config.join = Duration::from_secs(if rank == 1 { 3 } else { 20 });
    });
    assert_eq!(said[0], "rank 1 is in epoch 4, ours is 0");
    assert!(said[1].starts_with("no answer from rank 0 at the rendezvous "), "{}", said[1]);
    assert!(
        said[1].ends_with(" within 3.0s; the last that was heard from it: rank 0 is in epoch 0, ours is 4"),
        "{}",
        said[1]
    );
}

#[test]
fn a_rank_that_waits_is_told_who_disagreed() {
    // Rank 2 is the one that differs; rank 1 agrees with rank 0 and only hears of it.
    let authority = authority();
    let first = QuicMesh::bind(config(&authority, 0, 3, "unused:1")).unwrap();
    let address = first.local_addr().to_string();
    let leader = thread::spawn(move || first.join());
    let second = config(&authority, 1, 3, &address);
    let waiting = thread::spawn(move || QuicMesh::bind(second)?.join());
    // Rank 1 only has something to hear if it is there.
    thread::sleep(Duration::from_secs(1));
    let mut third = config(&authority, 2, 3, &address);
    third.agreements = vec![Agreement::new("codec", "sign")];
    let differs = QuicMesh::bind(third).unwrap().join().err().unwrap();
    assert_eq!(differs.to_string(), r#"rank 0 has codec unset, ours is "sign""#);
    let error = leader.join().unwrap().err().unwrap();
    assert_eq!(error.to_string(), r#"rank 2 has codec "sign", ours is unset"#);
    let error = waiting.join().unwrap().err().unwrap();
    assert_eq!(
        error.to_string(),
        r#"rank 2 has codec "sign", ours is unset (rank 0 says so, while joining)"#
    );
}

#[test]
fn a_rank_that_never_comes_is_named_by_everyone() {
    let authority = authority();
    let mut first = config(&authority, 0, 3, "unused:1");
    first.join = Duration::from_secs(3);
    let first = QuicMesh::bind(first).unwrap();
    let address = first.local_addr().to_string();
    let leader = thread::spawn(move || first.join());
    let second = config(&authority, 1, 3, &address);
    let waiting = thread::spawn(move || QuicMesh::bind(second)?.join());
    let error = leader.join().unwrap().err().unwrap();
    assert!(matches!(&error, JoinError::Missing { missing, .. } if *missing == [Rank(2)]), "{error}");
    assert_eq!(error.to_string(), "rank 2 did not join within 3.0s");
    let error = waiting.join().unwrap().err().unwrap();
    assert_eq!(error.culprit(), Some(Rank(2)), "{error}");
    assert_eq!(error.to_string(), "rank 2 did not join within 3.0s (rank 0 says so, while joining)");
}

#[test]
fn a_rank_whose_patience_ends_first_still_knows_who_is_missing() {
    let authority = authority();
    let first = QuicMesh::bind(config(&authority, 0, 3, "unused:1")).unwrap();
    let address = first.local_addr().to_string();
    let leader = thread::spawn(move || first.join());
    let mut second = config(&authority, 1, 3, &address);
    second.join = Duration::from_secs(3);
    let error = QuicMesh::bind(second).unwrap().join().err().unwrap();
    assert_eq!(error.to_string(), "rank 2 did not join within 3.0s");
    let error = leader.join().unwrap().err().unwrap();
    assert_eq!(error.culprit(), Some(Rank(2)), "{error}");
}

#[test]
fn a_rendezvous_where_no_one_answers_is_named() {
    let silent = UdpSocket::bind(LOCALHOST).unwrap();
    let address = silent.local_addr().unwrap().to_string();
    let mut config = config(&authority(), 1, 2, &address);
    config.join = Duration::from_millis(500);
    let error = QuicMesh::bind(config).unwrap().join().err().unwrap();
    assert_eq!(
        error.to_string(),
        format!("no answer from rank 0 at the rendezvous {address} within 500.0ms")
    );
}

#[test]
fn a_name_that_does_not_resolve_is_named() {
    let mut config = config(&authority(), 1, 2, "no-such-host.invalid:7000");
    config.join = Duration::from_millis(1500);
    let error = QuicMesh::bind(config).unwrap().join().err().unwrap();
    assert!(error.to_string().contains("no-such-host.invalid:7000"), "{error}");
    assert_eq!(error.culprit(), Some(Rank(0)), "{error}");
}
