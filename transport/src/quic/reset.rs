//! How a node that was killed and started again lets its former peers know: by stateless resets (RFC 9000, 10.3).
//!
//! A packet for a connection that the new process does not know is answered with a token that only a holder of
//! the node's private key can compute. Peers then notice the restart with their next packet (0.04 s when frames
//! flow) instead of at the deadline for silence. Two running processes of one identity could be made to reset
//! each other's connections by someone who sees their packets; one identity is for one process.

use std::sync::Arc;
use std::time::Duration;

use quinn::{ConnectionId, ConnectionIdGenerator, EndpointConfig};
use ring::hmac;
use ring::rand::{SecureRandom as _, SystemRandom};

use super::identity::Identity;

const CID_BYTES: usize = 8;

pub(super) fn endpoint_config(identity: &Identity) -> EndpointConfig {
    let mut config = EndpointConfig::new(Arc::new(reset_key(identity)));
    config.cid_generator(|| Box::new(RandomIds(SystemRandom::new())));
    config
}

/// The same for every process of this identity, and of no use for anything else.
fn reset_key(identity: &Identity) -> hmac::Key {
    let label = hmac::Key::new(hmac::HMAC_SHA256, b"gradwire stateless reset");
    let secret = hmac::sign(&label, identity.key().secret_der());
    hmac::Key::new(hmac::HMAC_SHA256, secret.as_ref())
}

/// Connection IDs without a mark of the process that made them: quinn's default recognizes only its own, and
/// would not answer for those of the process before.
struct RandomIds(SystemRandom);

impl ConnectionIdGenerator for RandomIds {
    fn generate_cid(&mut self) -> ConnectionId {
        let mut bytes = [0; CID_BYTES];
        // It cannot fail once the system is up, and keys were made before; a zero ID would be noticed as taken.
        let _ = self.0.fill(&mut bytes);
        ConnectionId::new(&bytes)
    }

    fn cid_len(&self) -> usize {
        CID_BYTES
    }

    fn cid_lifetime(&self) -> Option<Duration> {
        None
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;
    use crate::quic::Authority;

    #[test]
    fn the_key_is_the_identitys_and_no_other_ones() {
        let authority = Authority::new("test").unwrap();
        let (one, other) = (authority.issue(0, 2).unwrap(), authority.issue(0, 2).unwrap());
        let token = |identity: &Identity| hmac::sign(&reset_key(identity), b"connection").as_ref().to_vec();
        assert_eq!(token(&one), token(&one.clone()));
        assert_ne!(token(&one), token(&other));
    }
}
