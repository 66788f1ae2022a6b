//! All ranks of a world in one process, over the in-process mesh.

use std::thread;

use gradwire::transport::{Communicator, Limits, memory};

/// Runs `rank` once per rank, each on a thread with its communicator; results in rank order.
pub(crate) fn fleet<T: Send>(world_size: u32, rank: impl Fn(u32, Communicator) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let rank = &rank;
        let threads: Vec<_> = (0..)
            .zip(memory::mesh(world_size, 0))
            .map(|(r, mesh)| {
                scope.spawn(move || rank(r, Communicator::new(Box::new(mesh), Limits::default())))
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
