//! A mesh of mutually authenticated QUIC connections.
