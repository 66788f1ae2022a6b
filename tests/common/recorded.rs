//! A fleet whose frames are written down.

use std::sync::{Arc, Mutex};
use std::thread;
use std::time::Instant;

use gradwire::transport::mesh::{Event, Mesh};
use gradwire::transport::{Abort, Communicator, Frame, Limits, Rank, Stats, World, memory};

/// A frame that was sent.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sent {
    pub(crate) from: usize,
    pub(crate) to: usize,
    pub(crate) step: u64,
    pub(crate) tag: u16,
    /// Bytes without the frame's header.
    pub(crate) payload: u64,
}

/// What becomes of a frame's payload on its way.
pub(crate) type Change = fn(&Sent, &mut Vec<u8>);

struct Recording<M> {
    mesh: M,
    change: Change,
    record: Arc<Mutex<Vec<Sent>>>,
}

impl<M: Mesh> Mesh for Recording<M> {
    fn world(&self) -> World {
        self.mesh.world()
    }

    fn send(&mut self, to: Rank, mut frame: Frame) {
        let operation = frame.header.operation;
        let sent = Sent {
            from: self.world().rank().index(),
            to: to.index(),
            step: operation.step,
            tag: operation.tag.0,
            payload: frame.payload.len() as u64,
        };
        let mut payload = frame.payload.to_vec();
        (self.change)(&sent, &mut payload);
        frame.payload = payload.into();
        self.record.lock().unwrap().push(sent);
        self.mesh.send(to, frame);
    }

    fn receive(&mut self, until: Instant) -> Event {
        self.mesh.receive(until)
    }

    fn close(&mut self, abort: Option<&Abort>) {
        self.mesh.close(abort);
    }

    fn stats(&self) -> Stats {
        self.mesh.stats()
    }
}

/// As [`fleet`](super::fleet::fleet), with all frames that were sent, each of them as `change` leaves it.
pub(crate) fn recorded<T: Send>(
    world_size: u32,
    change: Change,
    rank: impl Fn(u32, Communicator) -> T + Sync,
) -> (Vec<T>, Vec<Sent>) {
    let record = Arc::new(Mutex::new(Vec::new()));
    let results = thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..)
            .zip(memory::mesh(world_size, 0))
            .map(|(r, mesh)| {
                let mesh = Recording { mesh, change, record: Arc::clone(&record) };
                scope.spawn(move || rank(r, Communicator::new(Box::new(mesh), Limits::default())))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    let record = record.lock().unwrap().clone();
    (results, record)
}
