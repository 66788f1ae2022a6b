//! Real processes, killed and stopped: the test binary starts itself as rank 1.
#![cfg(unix)]

use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use gradwire_transport::quic::{Config, Identity, QuicMesh, Rendezvous};
use gradwire_transport::{Event, Loss, Mesh, Rank, World};

use crate::raw::Run;
use crate::support::{LOCALHOST, event, frame};

const ADDRESS: &str = "GRADWIRE_TEST_ADDRESS";
const RUN: &str = "GRADWIRE_TEST_RUN";

fn config(run: &Path, rank: u32, silence: Duration, rendezvous: String) -> Config {
    let identity = Identity::load(&run.join(format!("rank-{rank}.pem"))).unwrap();
    let world = World::new(rank, 2, 0).unwrap();
    let join = Duration::from_secs(20);
    Config {
        bind: Some(LOCALHOST),
        silence,
        join,
        ..Config::new(identity, world, Rendezvous::Address(rendezvous))
    }
}

/// Not a test of its own: rank 1, which joins, says where it listens, sends back what comes, and waits to be ended.
#[test]
fn child() {
    let (Ok(address), Ok(run)) = (std::env::var(ADDRESS), std::env::var(RUN)) else { return };
    let pending = QuicMesh::bind(config(run.as_ref(), 1, Duration::from_secs(60), address)).unwrap();
    let local = pending.local_addr();
    let mut mesh = pending.join().unwrap();
    println!("\nlistening on {local}");
    let until = Instant::now() + Duration::from_secs(60);
    while let Event::Frame(from, got) = mesh.receive(until) {
        mesh.send(from, frame(1, got.header.operation.step, got.payload.len()));
    }
}

/// Rank 0, and rank 1 in a process of its own.
fn with_child(run: &Run, silence: Duration) -> (QuicMesh, Child, SocketAddr) {
    let pending = QuicMesh::bind(config(&run.path(), 0, silence, String::new())).unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["process::child", "--exact", "--nocapture"])
        .env(ADDRESS, pending.local_addr().to_string())
        .env(RUN, run.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mesh = pending.join().unwrap();
    let lines = BufReader::new(child.stdout.take().unwrap()).lines();
    let said =
        |line: std::io::Result<String>| Some(line.ok()?.strip_prefix("listening on ")?.parse().unwrap());
    let address = lines.filter_map(said).next().unwrap();
    (mesh, child, address)
}

#[test]
fn a_killed_process_is_silent_and_so_is_a_stopped_one() {
    for signal in ["KILL", "STOP"] {
        let run = Run::new(2);
        let silence = Duration::from_secs(2);
        let (mut mesh, mut child, _) = with_child(&run, silence);
        let status = Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).status();
        assert!(status.unwrap().success(), "kill -{signal}");
        let began = Instant::now();
        let lost = event(&mut mesh);
        println!("kill -{signal}, deadline {silence:?}: {lost:?} after {:?}", began.elapsed());
        child.kill().unwrap();
        child.wait().unwrap();
        let Event::Lost(Rank(1), Loss::Silent { silent, deadline }) = lost else { panic!("{lost:?}") };
        assert!(
            deadline == silence && silent >= silence && silent <= silence * 6 / 5,
            "silent for {silent:?}"
        );
    }
}

#[test]
fn a_process_that_was_killed_and_starts_again_is_noticed_before_its_silence() {
    let run = Run::new(2);
    let silence = Duration::from_secs(25);
    let (mut mesh, mut child, address) = with_child(&run, silence);
    child.kill().unwrap();
    child.wait().unwrap();
    // The same rank at the same address; it does not even have to join.
    let mut again = config(&run.path(), 1, silence, "unused:1".into());
    again.bind = Some(address);
    let _again = QuicMesh::bind(again).unwrap();
    let began = Instant::now();
    mesh.send(Rank(1), frame(0, 1, 100));
    assert_eq!(event(&mut mesh), Event::Lost(Rank(1), Loss::Closed));
    println!("restart noticed after {:?}", began.elapsed());
}

/// Sends a signal, and waits until the system says that the process is in the state that it leads to.
#[cfg(target_os = "linux")]
fn signal(child: &Child, signal: &str, stopped: bool) {
    let id = child.id();
    let status = Command::new("kill").args([&format!("-{signal}"), &id.to_string()]).status();
    assert!(status.unwrap().success(), "kill -{signal}");
    let is_stopped = || {
        let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap();
        stat.rsplit_once(") ").unwrap().1.starts_with('T')
    };
    while is_stopped() != stopped {
        std::thread::sleep(Duration::from_millis(1));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn a_process_that_is_stopped_for_less_than_the_silence_answers_when_it_goes_on_and_nobody_is_told() {
    let run = Run::new(2);
    let (mut mesh, mut child, _) = with_child(&run, Duration::from_secs(60));
    for step in 1..4 {
        signal(&child, "STOP", true);
        mesh.send(Rank(1), frame(0, step, 100));
        let until = Instant::now() + Duration::from_millis(700);
        assert_eq!(mesh.receive(until), Event::Timeout, "step {step}: it is stopped");
        signal(&child, "CONT", false);
        assert_eq!(event(&mut mesh), Event::Frame(Rank(1), frame(1, step, 100)));
    }
    child.kill().unwrap();
    child.wait().unwrap();
}
