//! The QUIC mesh: joining, carrying, losing peers, and peers that mean harm.
#![cfg(feature = "quic")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../common/grid.rs"]
mod grid;
mod hostile;
mod identity;
mod join;
mod late;
#[path = "../common/loss.rs"]
mod loss;
mod mesh;
mod process;
mod raw;
mod strangers;
mod support;
