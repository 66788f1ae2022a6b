//! TLS 1.3 with certificates on both sides and the run's CA as the only root.

use std::sync::Arc;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use rustls::RootCertStore;
use rustls::client::Resumption;
use rustls::crypto::{CryptoProvider, ring};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};

use super::identity::{Identity, IdentityError};

/// The application protocol. It has no version in it: another wire version is refused by the hello, by name,
/// where TLS could only say "no application protocol".
pub(super) const ALPN: &[u8] = b"gradwire";

/// Ring, with AES-128-GCM first: the fastest of the three per packet here, and enough for gradients.
pub(super) fn provider() -> CryptoProvider {
    let mut provider = ring::default_provider();
    let suite = ring::cipher_suite::TLS13_AES_128_GCM_SHA256;
    provider.cipher_suites.sort_by_key(|other| *other != suite);
    provider
}

pub(super) struct Tls {
    pub(super) client: Arc<QuicClientConfig>,
    pub(super) server: Arc<QuicServerConfig>,
}

/// Both sides' configuration. The client checks the server's name, which is the rank it dials; the server can
/// only check that the client belongs to the run, the hello does the rest.
pub(super) fn configure(identity: &Identity) -> Result<Tls, IdentityError> {
    identity.check()?;
    let provider = Arc::new(provider());
    let mut roots = RootCertStore::empty();
    roots.add(identity.authority()).map_err(unusable)?;
    let roots = Arc::new(roots);
    let chain = || vec![identity.certificate()];

    let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_root_certificates(roots.clone())
        .with_client_auth_cert(chain(), identity.key())
        .map_err(unusable)?;
    client.alpn_protocols = vec![ALPN.to_vec()];
    client.enable_early_data = false;
    client.resumption = Resumption::disabled();

    let members =
        WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().map_err(unusable)?;
    let mut server = rustls::ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .map_err(unusable)?
        .with_client_cert_verifier(members)
        .with_single_cert(chain(), identity.key())
        .map_err(unusable)?;
    server.alpn_protocols = vec![ALPN.to_vec()];
    server.max_early_data_size = 0;
    // Both, or rustls would keep sessions that no one resumes.
    server.session_storage = Arc::new(NoServerSessionStorage {});
    server.send_tls13_tickets = 0;

    Ok(Tls {
        client: Arc::new(QuicClientConfig::try_from(client).map_err(unusable)?),
        server: Arc::new(QuicServerConfig::try_from(server).map_err(unusable)?),
    })
}

fn unusable(reason: impl std::fmt::Display) -> IdentityError {
    IdentityError::Unusable { reason: reason.to_string() }
}
