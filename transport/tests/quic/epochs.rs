//! After a failure: the same process forms the next epoch, with those that are left.

use std::net::SocketAddr;
use std::thread::{self, JoinHandle};
use std::time::Duration;

use bytes::Bytes;
use gradwire_transport::quic::{Authority, Config, Identity, JoinError, Members, QuicMesh, Rendezvous};
use gradwire_transport::{Abort, Communicator, ExchangeError, Limits, Mesh as _, Rank};

use crate::grid;
use crate::support::{LOCALHOST, painted};

/// Identities of one run, by the ranks in their certificates.
pub(crate) fn identities(size: u32) -> Vec<Identity> {
    let authority = Authority::new("test").unwrap();
    (0..size).map(|rank| authority.issue(rank, size).unwrap()).collect()
}

/// How the holder of `identity` joins `members` in `epoch`.
pub(crate) fn config(identity: &Identity, members: &Members, epoch: u32, rendezvous: &str) -> Config {
    let world = members.world(identity.rank(), epoch).unwrap();
    Config {
        members: Some(members.clone()),
        bind: Some(LOCALHOST),
        silence: Duration::from_secs(10),
        join: Duration::from_secs(20),
        ..Config::new(identity.clone(), world, Rendezvous::Address(rendezvous.into()))
    }
}

fn communicator(mesh: QuicMesh) -> Communicator {
    Communicator::new(Box::new(mesh), Limits::default())
}

/// One all-gather in which every rank sends 3,000 bytes of its own.
pub(crate) fn step(communicator: &mut Communicator, step: u64) -> Result<(), ExchangeError> {
    step_of(communicator, step, 3000)
}

/// The same with messages of `length` bytes.
pub(crate) fn step_of(
    communicator: &mut Communicator,
    step: u64,
    length: usize,
) -> Result<(), ExchangeError> {
    let world = communicator.world();
    let message = |rank: Rank| painted(u64::from(rank.0) + step + u64::from(world.epoch()), length);
    let lengths = vec![length as u64; world.size() as usize];
    let got = communicator.all_gather(grid::operation(step, 1), message(world.rank()), &lengths)?;
    let due: Vec<Bytes> = world.ranks().map(message).collect();
    assert!(got == due, "rank {}: messages of step {step} differ", world.rank());
    Ok(())
}

#[test]
fn those_that_are_left_form_the_next_epoch_at_the_same_addresses_without_starting_again() {
    let identities = identities(4);
    // With rank 0 goes the rendezvous, and every rank has another number afterwards.
    for lost in [Rank(3), Rank(0)] {
        let all = Members::all(4);
        let bind = |rank: u32, rendezvous: &str| {
            let config = config(&identities[rank as usize], &all, 0, rendezvous);
            QuicMesh::bind(config).unwrap()
        };
        let first = bind(0, "unused:1");
        let address = first.local_addr().to_string();
        let pending: Vec<_> = std::iter::once(first).chain((1..4).map(|rank| bind(rank, &address))).collect();
        let addresses: Vec<SocketAddr> = pending.iter().map(|pending| pending.local_addr()).collect();
        let left = all.without(&[lost]);
        let leader = addresses[left.certificate(Rank(0)).unwrap().index()];
        thread::scope(|scope| {
            for ((own, pending), identity) in (0..).map(Rank).zip(pending).zip(&identities) {
                let (all, left, addresses) = (&all, &left, &addresses);
                scope.spawn(move || {
                    let mut communicator = communicator(pending.join().unwrap());
                    step(&mut communicator, 1).unwrap();
                    if own == lost {
                        // As a panic would leave it.
                        return;
                    }
                    let error = step(&mut communicator, 2).unwrap_err();
                    assert_eq!(error.culprit(), Some(lost), "rank {own}: {error}");
                    // Its socket is free when this returns.
                    drop(communicator);
                    assert_eq!(*left, all.without(&[error.culprit().unwrap()]));
                    let mut next = config(identity, left, 1, &leader.to_string());
                    next.bind = Some(addresses[own.index()]);
                    let mut communicator = self::communicator(QuicMesh::bind(next).unwrap().join().unwrap());
                    assert_eq!((communicator.world().size(), communicator.world().epoch()), (3, 1));
                    for number in 1..=3 {
                        step(&mut communicator, number).unwrap();
                    }
                    communicator.close();
                });
            }
        });
    }
}

fn start(config: Config) -> JoinHandle<Result<QuicMesh, JoinError>> {
    thread::spawn(move || QuicMesh::bind(config)?.join())
}

#[test]
fn who_has_not_noticed_yet_that_its_world_has_ended_is_waited_for() {
    let identities = identities(2);
    let all = Members::all(2);
    let pending = QuicMesh::bind(config(&identities[0], &all, 0, "unused:1")).unwrap();
    let address = pending.local_addr();
    let second = start(config(&identities[1], &all, 0, &address.to_string()));
    let mut first = communicator(pending.join().unwrap());
    // Rank 1 gives up while rank 0 computes.
    let mut second = communicator(second.join().unwrap().unwrap());
    second.abort(&Abort { culprit: None, reason: "lost its disk".into() });
    drop(second);
    let next = || config(&identities[1], &all, 1, &address.to_string());
    let impatient = Config { join: Duration::from_secs(2), ..next() };
    let error = QuicMesh::bind(impatient).unwrap().join().err().unwrap();
    assert_eq!(
        error.to_string(),
        format!(
            "no answer from rank 0 at the rendezvous {address} within 2.0s; the last that was heard from it: it is in epoch 0, ours is 1"
        )
    );
    let second = start(next());
    let error = step(&mut first, 1).unwrap_err();
    assert_eq!(error.to_string(), "lost its disk (rank 1 says so, step 1)");
    drop(first);
    let mut again = config(&identities[0], &all, 1, "unused:1");
    again.bind = Some(address);
    let mesh = QuicMesh::bind(again).unwrap().join().unwrap();
    assert_eq!((mesh.world().epoch(), second.join().unwrap().unwrap().world().epoch()), (1, 1));
}

#[test]
fn callers_of_an_older_epoch_and_who_is_left_out_are_told_so_and_stop_no_one() {
    let identities = identities(4);
    let left = Members::of([Rank(0), Rank(1)]);
    let pending = QuicMesh::bind(config(&identities[0], &left, 2, "unused:1")).unwrap();
    let address = pending.local_addr().to_string();
    let leader = thread::spawn(move || pending.join());
    let say = |config: Config| start(config).join().unwrap().err().unwrap().to_string();
    // Still in the world of before, a member of this one or not.
    for rank in [1, 3] {
        let old = config(&identities[rank], &Members::all(4), 1, &address);
        assert_eq!(say(old), "rank 0 is in epoch 2, ours is 1");
    }
    // Revoked: by its own reckoning it is rank 1.
    let revoked = config(&identities[3], &Members::of([Rank(0), Rank(3)]), 2, &address);
    assert_eq!(
        say(revoked),
        "rank 0 refused this node: its certificate, for rank 3, is of no member of epoch 2"
    );
    let member = start(config(&identities[1], &left, 2, &address)).join().unwrap();
    let leader = leader.join().unwrap();
    assert!(member.is_ok() && leader.is_ok(), "{:?}, {:?}", member.err(), leader.err());
}

#[test]
fn members_that_the_world_does_not_have_are_refused_before_anything_is_bound() {
    let identities = identities(3);
    let say = |members: Members| {
        let mut config = config(&identities[2], &Members::all(3), 0, "unused:1");
        config.members = Some(members);
        QuicMesh::bind(config).err().unwrap().to_string()
    };
    assert_eq!(say(Members::all(2)), "members is 2 for 3, must be as many as the world has ranks");
    assert_eq!(say(Members::of([Rank(1), Rank(2), Rank(5)])), "identity is of rank 2, this node is rank 5");
}
