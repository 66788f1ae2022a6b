//! throughput
