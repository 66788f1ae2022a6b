//! The QUIC mesh: joining, carrying, losing peers, and peers that mean harm.
#![cfg(feature = "quic")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod epochs;
#[cfg(all(unix, feature = "emulate"))]
mod faults;
#[path = "../common/grid.rs"]
mod grid;
mod hostile;
mod identity;
mod join;
mod late;
#[path = "../common/loss.rs"]
mod loss;
mod many_epochs;
mod mesh;
mod nat;
mod newest;
mod process;
mod raw;
mod strangers;
mod support;
