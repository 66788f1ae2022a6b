//! The QUIC mesh: joining, carrying, losing peers, and peers that mean harm.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod join;
mod mesh;
mod support;
