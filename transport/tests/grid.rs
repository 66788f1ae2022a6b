//! The grid, mesh by mesh. A new mesh gets a row here.

#[path = "common/grid.rs"]
mod grid;

use std::time::Instant;

use gradwire_transport::{Abort, Event, Frame, Mesh, Rank, Stats, World, memory};

fn in_memory(size: u32) -> Vec<Box<dyn Mesh>> {
    memory::mesh(size, 7).into_iter().map(|mesh| Box::new(mesh) as Box<dyn Mesh>).collect()
}

#[test]
fn memory_carries_the_whole_grid() {
    grid::carries_the_whole_grid(in_memory);
}

#[test]
fn memory_names_rank_and_numbers_of_a_length_mismatch_on_both_sides() {
    grid::a_length_mismatch_names_the_rank_and_both_numbers_on_both_sides(in_memory);
}

/// Has room for one frame per peer, and says so when it has been asked for events a few times.
struct Narrow {
    mesh: Box<dyn Mesh>,
    /// By rank: how many events it takes until there is room again.
    waits: Vec<u32>,
    /// Who was told no.
    asked: Vec<bool>,
}

impl Mesh for Narrow {
    fn world(&self) -> World {
        self.mesh.world()
    }

    fn has_room(&mut self, to: Rank) -> bool {
        assert!(!self.asked[to.index()], "asked again before there is room");
        self.asked[to.index()] = self.waits[to.index()] > 0;
        !self.asked[to.index()]
    }

    fn send(&mut self, to: Rank, frame: Frame) {
        assert_eq!(self.waits[to.index()], 0, "sent without room");
        self.waits[to.index()] = 1 + to.0 % 3;
        self.mesh.send(to, frame);
    }

    fn receive(&mut self, until: Instant) -> Event {
        for (rank, (wait, asked)) in (0..).zip(self.waits.iter_mut().zip(&mut self.asked)) {
            *wait = wait.saturating_sub(1);
            if *wait == 0 && std::mem::take(asked) {
                return Event::Room(Rank(rank));
            }
        }
        let waits = self.asked.iter().any(|asked| *asked);
        self.mesh.receive(if waits { Instant::now() } else { until })
    }

    fn close(&mut self, abort: Option<&Abort>) {
        self.mesh.close(abort);
    }

    fn stats(&self) -> Stats {
        self.mesh.stats()
    }
}

#[test]
fn a_mesh_with_room_for_one_frame_carries_the_whole_grid() {
    grid::carries_the_whole_grid(|size| {
        let narrow = |mesh| {
            let waits = vec![0; size as usize];
            Box::new(Narrow { mesh, waits, asked: vec![false; size as usize] }) as Box<dyn Mesh>
        };
        in_memory(size).into_iter().map(narrow).collect()
    });
}

/// Delivers what rank 0 has for rank 1 to rank 2, and the other way round.
struct Swapping(Box<dyn Mesh>);

impl Mesh for Swapping {
    fn world(&self) -> World {
        self.0.world()
    }

    fn send(&mut self, to: Rank, frame: Frame) {
        let to = match (self.0.world().rank(), to) {
            (Rank(0), Rank(1)) => Rank(2),
            (Rank(0), Rank(2)) => Rank(1),
            _ => to,
        };
        self.0.send(to, frame);
    }

    fn receive(&mut self, until: Instant) -> Event {
        self.0.receive(until)
    }

    fn close(&mut self, abort: Option<&Abort>) {
        self.0.close(abort);
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// The guard of the guard: lengths are right here, and so is every checksum; only the paint shows it.
#[test]
#[should_panic(expected = "called `Result::unwrap()` on an `Err` value")]
fn a_mesh_that_swaps_two_receivers_does_not_pass() {
    grid::all_to_all_delivers_every_block(|size| match size {
        0..3 => in_memory(size),
        _ => in_memory(size).into_iter().map(|mesh| Box::new(Swapping(mesh)) as Box<dyn Mesh>).collect(),
    });
}
