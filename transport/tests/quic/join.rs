//! Who gets in, and what those who don't are told.

use gradwire_transport::Mesh;

use crate::support::world;

#[test]
fn a_world_of_one_needs_no_one() {
    let mut alone = world(1, |_, _| {}).pop().unwrap();
    alone.close(None);
    assert_eq!(alone.stats().peers.len(), 1);
}
