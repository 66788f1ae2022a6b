//! Every rank a process of its own, over QUIC on loopback.

use std::path::Path;
use std::process::Command;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

use gradwire::transport::quic;

use super::fleet::{Fleet, Message};
use super::progress::Progress;
use super::{Plan, verdict};
use crate::args::{CodecName, name_of};
use crate::event::{Event, Fault};
use crate::failure::Failure;
use crate::interrupt;

/// Time beyond the deadline for silence that the other ranks have to say whom they lost.
const GRACE: Duration = Duration::from_secs(2);

/// Time for a process that is about to end to say why.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// How long rank 0 may take until it can be reached: it loads its data and opens its adapter before.
const START: Duration = Duration::from_secs(60);

/// Runs the plan with `codec`; rank 0 writes the final parameters to `model`.
pub(super) fn run(
    plan: &Plan,
    codec: CodecName,
    model: Option<&Path>,
    progress: &Progress,
    take: &mut dyn FnMut(Event) -> Result<(), Failure>,
) -> Result<(), Failure> {
    // Mode 0700; gone as soon as every rank has joined, so that not even `kill -9` leaves keys behind.
    let mut identities = Some(tempfile::Builder::new().prefix("gradwire-").tempdir().map_err(Failure::work)?);
    let folder = identities.as_ref().map(|folder| folder.path().to_owned()).unwrap_or_default();
    quic::keygen(&folder, plan.nodes).map_err(Failure::work)?;

    let (sender, inbox) = mpsc::channel();
    let mut fleet = Fleet::default();
    fleet.start(0, command(plan, codec, 0, &folder, "127.0.0.1:0", model)?, &sender)?;
    // Held until all processes are started; the inbox ends when the last process has closed its output.
    let mut starter: Option<Sender<Message>> = Some(sender);
    let started = Instant::now();
    let (mut joined, mut done) = (0, 0);
    let mut faults: Vec<Fault> = Vec::new();
    let mut give_up: Option<Instant> = None;
    loop {
        match inbox.recv_timeout(Duration::from_millis(20)) {
            Ok(Message::Line(rank, line)) => progress.say(&format!("rank {rank}: {line}")),
            Ok(Message::Event(event)) => {
                match &event {
                    Event::Listening { address } => {
                        if let Some(sender) = starter.take() {
                            for rank in 1..plan.nodes {
                                fleet.start(
                                    rank,
                                    command(plan, codec, rank, &folder, address, None)?,
                                    &sender,
                                )?;
                            }
                        }
                    }
                    Event::Joined { .. } => joined += 1,
                    Event::Done { .. } => done += 1,
                    Event::Failed { fault } => faults.push(fault.clone()),
                    Event::Step { .. } => {}
                }
                if joined == plan.nodes {
                    identities = None;
                }
                take(event)?;
            }
            Err(RecvTimeoutError::Disconnected) if fleet.all_ended() => break,
            Err(RecvTimeoutError::Disconnected) => std::thread::sleep(Duration::from_millis(5)),
            Err(RecvTimeoutError::Timeout) => {
                if starter.is_some() {
                    if fleet.any_failed() {
                        break;
                    }
                    if started.elapsed() > START {
                        return Err(Failure::Work(format!(
                            "rank 0 was not reachable after {:.0?}, deadline {START:.0?}",
                            started.elapsed()
                        )));
                    }
                }
            }
        }
        if interrupt::asked() {
            return Err(Failure::Work("interrupted, all nodes ended".into()));
        }
        // Whoever is left after that, the drop of `fleet` ends.
        if !faults.is_empty() || fleet.any_failed() || done == plan.nodes {
            let until = *give_up.get_or_insert_with(|| Instant::now() + plan.job.silence + GRACE);
            let blamed = |rank: &u32| faults.iter().any(|fault| fault.culprit == Some(*rank));
            let alive = fleet.alive();
            if !faults.is_empty() && !alive.is_empty() && alive.iter().all(blamed) {
                // Not at once: a blamed rank may be about to say more itself.
                give_up = Some(until.min(Instant::now() + LAST_WORDS));
            }
            if Instant::now() > until {
                break;
            }
        }
    }
    drop(identities);
    let ends = if done == plan.nodes { Vec::new() } else { fleet.ends() };
    // What was said and not heard yet; ends with the last process.
    drop((starter, fleet));
    while let Ok(message) = inbox.recv_timeout(LAST_WORDS) {
        match message {
            Message::Event(Event::Failed { fault }) => faults.push(fault),
            Message::Line(rank, line) => progress.say(&format!("rank {rank}: {line}")),
            Message::Event(_) => {}
        }
    }
    match verdict::of(&faults, &ends) {
        Some(message) => Err(Failure::Work(message)),
        None => Ok(()),
    }
}

/// This program as one node of the run.
fn command(
    plan: &Plan,
    codec: CodecName,
    rank: u32,
    identities: &Path,
    rendezvous: &str,
    model: Option<&Path>,
) -> Result<Command, Failure> {
    let program = std::env::current_exe()
        .map_err(|error| Failure::Work(format!("cannot find this program to start it as a node: {error}")))?;
    let mut command = Command::new(program);
    command.arg("node").args(plan.job.to_flags());
    // As bytes, not as text: a path need not be UTF-8.
    if let Some(data) = &plan.job.data {
        command.arg("--data").arg(data);
    }
    if let Some(model) = model {
        command.arg("--model").arg(model);
    }
    command
        .arg(format!("--codec={}", name_of(codec)))
        .arg(format!("--backend={}", name_of(plan.backends[rank as usize])))
        .arg(format!("--rank={rank}"))
        .arg(format!("--world-size={}", plan.nodes))
        .arg(format!("--rendezvous={rendezvous}"))
        .arg("--bind=127.0.0.1:0")
        .arg("--report-to-parent")
        .arg("--identity")
        .arg(identities.join(format!("rank-{rank}.pem")));
    // The nodes share the cores. The bits do not depend on the number of threads (tested with 1, 2 and 4).
    if std::env::var_os("RAYON_NUM_THREADS").is_none() {
        let cores = std::thread::available_parallelism().map_or(1, std::num::NonZeroUsize::get);
        command.env("RAYON_NUM_THREADS", (cores / plan.nodes as usize).max(1).to_string());
    }
    Ok(command)
}
