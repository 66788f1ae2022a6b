//! What a machine needs, then the tests.
fn main() {}
