//! All ranks as threads of this process, over the in-process mesh.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::Duration;

use gradwire::sync::Scheme;
use gradwire::transport::memory::{self, MemoryMesh};
use gradwire::transport::{Communicator, Limits};

use super::{Plan, verdict};
use crate::args::Job;
use crate::event::{Event, Fault};
use crate::failure::Failure;
use crate::rank::Listener;
use crate::{backend, interrupt, rank};

/// Runs the plan with `codec`, and writes the final parameters to `model`.
pub(super) fn run(
    plan: &Plan,
    codec: Scheme,
    model: Option<&Path>,
    take: &mut dyn FnMut(Event) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let (events, inbox) = mpsc::channel();
    for (mesh, backend) in memory::mesh(plan.nodes, 0).into_iter().zip(plan.backends.iter().copied()) {
        let (job, events) = (plan.job.clone(), events.clone());
        let (nodes, own) = (plan.nodes, gradwire::transport::Mesh::world(&mesh).rank().0);
        let model = model.filter(|_| own == 0).map(Path::to_path_buf);
        let body = move || {
            let body = || one(mesh, nodes, backend, &job, codec, model.as_deref(), &events);
            let result = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|_| {
                Err(Fault { rank: own, message: format!("rank {own} panicked"), culprit: Some(own) })
            });
            if let Err(fault) = result {
                // The receiver is gone only when the whole run is.
                let _ = events.send(Event::Failed { fault });
            }
        };
        thread::Builder::new().name(format!("rank {own}")).spawn(body).map_err(Failure::work)?;
    }
    drop(events);

    let mut faults = Vec::new();
    loop {
        match inbox.recv_timeout(Duration::from_millis(50)) {
            Ok(Event::Failed { fault }) => faults.push(fault),
            Ok(event) => take(event)?,
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {}
        }
        // The threads end with the process.
        if interrupt::asked() {
            return Err(Failure::Work("interrupted".into()));
        }
    }
    match verdict::of(&faults, &[]) {
        Some(message) => Err(Failure::Work(message)),
        None => Ok(()),
    }
}

/// One rank, from its data to its final parameters.
fn one(
    mesh: MemoryMesh,
    nodes: u32,
    backend: crate::args::BackendName,
    job: &Job,
    codec: Scheme,
    model: Option<&Path>,
    events: &Sender<Event>,
) -> Result<(), Fault> {
    let communicator = Communicator::new(Box::new(mesh), Limits::default());
    let rank = communicator.world().rank().0;
    let own_fault =
        |failure: Failure| Fault { rank, culprit: Some(rank), message: format!("rank {rank}: {failure}") };
    let mut task = job.load(nodes).map_err(own_fault)?;
    let opened = backend::open(backend, job.adapter.as_deref(), &codec).map_err(own_fault)?;
    let parameters =
        rank::train(communicator, task.as_mut(), job, codec, opened, rank == 0, &mut Told(events))?;
    if let Some(path) = model {
        rank::save(task.as_ref(), &parameters, path).map_err(own_fault)?;
    }
    Ok(())
}

struct Told<'a>(&'a Sender<Event>);

impl Listener for Told<'_> {
    fn tell(&mut self, event: Event) {
        // Fails if the receiver has heard enough.
        let _ = self.0.send(event);
    }
}
