//! By which transport and congestion control an exchange goes.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// By which transport and congestion control an exchange goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Way {
    /// QUIC with quinn's Cubic (RFC 9438).
    Cubic,
}
