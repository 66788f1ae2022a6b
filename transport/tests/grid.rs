//! The grid, mesh by mesh. A new mesh gets a row here.

#[path = "common/grid.rs"]
mod grid;

use gradwire_transport::{Mesh, memory};

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
