//! Twenty epochs in one process: nothing of those before is left. The test binary starts itself, because threads and
//! descriptors of other tests would count too.
#![cfg(target_os = "linux")]

use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transport::quic::{Members, QuicMesh};
use gradwire_transport::{Communicator, Limits, Rank};

use crate::epochs::{config, identities, step};
use crate::support::LONG;

const ASKED: &str = "GRADWIRE_TEST_EPOCHS";

/// Threads and open files of this process.
fn held() -> (usize, usize) {
    let count = |what: &str| std::fs::read_dir(format!("/proc/self/{what}")).unwrap().count();
    (count("task"), count("fd"))
}

/// Not a test of its own: forms twenty epochs of three ranks, each of which ends in a failure.
#[test]
fn child() {
    if std::env::var(ASKED).is_err() {
        return;
    }
    let identities = identities(3);
    let members = Members::all(3);
    let mut addresses = [None; 3];
    let mut before = None;
    for epoch in 0..20 {
        let mut rendezvous = String::from("unused:1");
        let pending: Vec<_> = identities
            .iter()
            .zip(&mut addresses)
            .map(|(identity, address)| {
                let mut config = config(identity, &members, epoch, &rendezvous);
                config.bind = config.bind.map(|any| address.unwrap_or(any));
                let pending = QuicMesh::bind(config).unwrap();
                let local = *address.get_or_insert(pending.local_addr());
                if identity.rank() == Rank(0) {
                    rendezvous = local.to_string();
                }
                pending
            })
            .collect();
        let ranks: Vec<_> = pending
            .into_iter()
            .map(|pending| {
                thread::spawn(move || {
                    let mut communicator =
                        Communicator::new(Box::new(pending.join().unwrap()), Limits::default());
                    let own = communicator.world().rank();
                    step(&mut communicator, 1).unwrap();
                    if own == Rank(epoch % 3) {
                        return None;
                    }
                    Some(step(&mut communicator, 2).unwrap_err())
                })
            })
            .collect();
        let errors: Vec<_> = ranks.into_iter().filter_map(|rank| rank.join().unwrap()).collect();
        assert!(errors.iter().all(|error| error.culprit() == Some(Rank(epoch % 3))), "{errors:?}");
        // The first epoch leaves what the process keeps for good.
        let due = *before.get_or_insert_with(held);
        // A thread that has been joined can be listed for a moment.
        let began = Instant::now();
        while held() != due {
            assert!(began.elapsed() < LONG, "epoch {epoch}: {:?}, {due:?} before", held());
            thread::sleep(Duration::from_millis(1));
        }
    }
    println!("\nended with {:?} threads and files", held());
}

#[test]
fn twenty_epochs_in_one_process_leave_no_thread_and_no_file_behind() {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["many_epochs::child", "--exact", "--nocapture"])
        .env(ASKED, "1")
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success(), "{said}{}", String::from_utf8_lossy(&output.stderr));
    assert!(said.contains("\nended with "), "the child did nothing: {said}");
}
