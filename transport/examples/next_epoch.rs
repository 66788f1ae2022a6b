//! After a rank is lost, the others go on without it: same processes, same addresses, next epoch.
//!
//!     cargo run -p gradwire-transport --example next_epoch
//!
//! Here four ranks are threads of one process, and in every epoch the last one leaves without a word. Which ranks form the
//! next world is the caller's to decide, and must be the same on all of them: here, all but the one that the error names,
//! which is the same on all.

use std::error::Error;
use std::net::SocketAddr;
use std::thread;

use bytes::Bytes;
use gradwire_transport::quic::{Authority, Config, Identity, Members, QuicMesh, Rendezvous};
use gradwire_transport::{Communicator, ExchangeError, Limits, Operation, Rank, Tag};

type Failure = Box<dyn Error + Send + Sync>;

const SIZE: u32 = 4;

fn main() -> Result<(), Failure> {
    let authority = Authority::new("next_epoch")?;
    let identities = (0..SIZE).map(|rank| authority.issue(rank, SIZE)).collect::<Result<Vec<_>, _>>()?;
    // Rank 0 is never lost here, so it stays the rendezvous.
    let rendezvous: SocketAddr = ([127, 0, 0, 1], 29_417).into();
    let ranks: Vec<_> =
        identities.into_iter().map(|identity| thread::spawn(move || rank(&identity, rendezvous))).collect();
    for rank in ranks {
        rank.join().map_err(|_| "a rank panicked")??;
    }
    Ok(())
}

/// One rank's process.
fn rank(identity: &Identity, rendezvous: SocketAddr) -> Result<(), Failure> {
    let mut members = Members::all(SIZE);
    for epoch in 0.. {
        let world = members.world(identity.rank(), epoch).ok_or("this rank was left out")?;
        let place = Rendezvous::Address(rendezvous.to_string());
        let mut config = Config::new(identity.clone(), world, place);
        let port = if world.rank() == Rank(0) { rendezvous.port() } else { 0 };
        config.bind = Some((rendezvous.ip(), port).into());
        config.members = Some(members.clone());
        // Whoever has not yet noticed that the epoch before is over is waited for, as long as joining may take.
        let mesh = QuicMesh::bind(config)?.join()?;
        let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
        let error = match steps(&mut communicator, epoch) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        println!("epoch {epoch}, {:?} of {}: {error}", world.rank(), world.size());
        let lost = error.culprit().ok_or("nobody is to blame")?;
        // Its socket is free, and nothing of it is left, when this returns.
        drop(communicator);
        members = members.without(&[lost]);
    }
    Ok(())
}

/// Until a rank is lost; the last one leaves in step 3 of epochs 0 and 1.
fn steps(communicator: &mut Communicator, epoch: u32) -> Result<(), ExchangeError> {
    let world = communicator.world();
    for step in 1..=5 {
        if step == 3 && epoch < 2 && world.rank().0 == world.size() - 1 {
            return Ok(());
        }
        let own = Bytes::from(vec![1; 1000]);
        let operation = Operation { step, tag: Tag(0) };
        communicator.all_gather(operation, own, &vec![1000; world.size() as usize])?;
    }
    communicator.close();
    println!("epoch {epoch}, {:?} of {}: five steps", world.rank(), world.size());
    Ok(())
}
