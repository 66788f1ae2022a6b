//! What can be wrong with an identity.

use std::path::PathBuf;

use crate::world::{Rank, WorldError};

/// An identity that cannot be made, read or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum IdentityError {
    /// A file or folder could not be read or written.
    #[error("{}: {source}", path.display())]
    File {
        /// Which one.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// What was read from a file is no identity.
    #[error("{}: {error}", path.display())]
    In {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        error: Box<IdentityError>,
    },
    /// The folder has files of a run already; nothing was written.
    #[error("{} already holds identities ({name}); keygen never overwrites, choose another folder", dir.display())]
    Existing {
        /// The folder.
        dir: PathBuf,
        /// The first file that is there.
        name: String,
    },
    /// Others than the owner can read or write the key. Refused, as ssh refuses it: a key that others could
    /// copy does not identify anyone.
    #[error("{} has mode {mode:04o}: others can read or write this private key, it needs 0600", path.display())]
    Exposed {
        /// The identity file.
        path: PathBuf,
        /// Its permission bits.
        mode: u32,
    },
    /// Something is missing from the identity.
    #[error("no {what} in the identity ({})", match *what {
        KEY => "it holds a certificate only: rank-R.pem of keygen is an identity, ca.pem is none",
        _ => "certificate, private key and CA certificate are expected, as PEM",
    })]
    Missing {
        /// What is missing.
        what: &'static str,
    },
    /// The identity is there, but cannot be used.
    #[error("identity is unusable: {reason}")]
    Unusable {
        /// What the cryptography says.
        reason: String,
    },
    /// The identity is of another rank than the node that uses it.
    #[error("identity is of rank {identity}, this node is rank {node}")]
    OtherRank {
        /// The rank in the certificate.
        identity: Rank,
        /// The rank whose certificate the node needs.
        node: Rank,
    },
    /// An identity for a rank that cannot exist.
    #[error(transparent)]
    World(#[from] WorldError),
}

impl IdentityError {
    /// Whether a certificate was given where an identity is expected: most often `ca.pem` for `rank-R.pem`.
    #[must_use]
    pub fn is_certificate_only(&self) -> bool {
        match self {
            Self::Missing { what } => *what == KEY,
            Self::In { error, .. } => error.is_certificate_only(),
            _ => false,
        }
    }
}

/// What is missing where only certificates are.
pub(super) const KEY: &str = "private key";
