//! A peer with a certificate and no manners: QUIC by hand.
//!
//! Its runtime only runs inside [`Raw::run`]; between calls it is as a process that was stopped.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use gradwire_transport::quic::{Identity, keygen};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{ClientConfig, Connection, Endpoint, RecvStream, SendStream, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use tempfile::TempDir;
use tokio::runtime::Runtime;

use crate::support::{LOCALHOST, LONG};

/// A run on disk: identities for the mesh under test and for raw peers.
pub(crate) struct Run {
    dir: TempDir,
}

impl Run {
    pub(crate) fn new(size: u32) -> Self {
        let dir = tempfile::tempdir().unwrap();
        keygen(&dir.path().join("run"), size).unwrap();
        Self { dir }
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir.path().join("run")
    }

    pub(crate) fn pem(&self, name: &str) -> String {
        std::fs::read_to_string(self.dir.path().join("run").join(name)).unwrap()
    }

    pub(crate) fn identity(&self, rank: u32) -> Identity {
        Identity::load(&self.dir.path().join(format!("run/rank-{rank}.pem"))).unwrap()
    }
}

pub(crate) struct Raw {
    runtime: Runtime,
    endpoint: Endpoint,
}

impl Raw {
    /// A peer that shows the certificate in `identity` and trusts the CA in `root`.
    pub(crate) fn new(identity: &str, root: &str) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let chain = || vec![CertificateDer::from_pem_slice(identity.as_bytes()).unwrap()];
        let key = || PrivateKeyDer::from_pem_slice(identity.as_bytes()).unwrap();
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(root.as_bytes()).unwrap()).unwrap();
        let roots = Arc::new(roots);
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut client = rustls::ClientConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_root_certificates(roots.clone())
            .with_client_auth_cert(chain(), key())
            .unwrap();
        client.alpn_protocols = vec![b"gradwire".to_vec()];
        let verifier = WebPkiClientVerifier::builder_with_provider(roots, provider.clone()).build().unwrap();
        let mut server = rustls::ServerConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&rustls::version::TLS13])
            .unwrap()
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain(), key())
            .unwrap();
        server.alpn_protocols = vec![b"gradwire".to_vec()];
        let server = ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(server).unwrap()));
        let mut endpoint = {
            let _context = runtime.enter();
            Endpoint::server(server, LOCALHOST).unwrap()
        };
        let client = QuicClientConfig::try_from(client).unwrap();
        endpoint.set_default_client_config(ClientConfig::new(Arc::new(client)));
        Self { runtime, endpoint }
    }

    /// The rank `rank` of `run`, without manners.
    pub(crate) fn member(run: &Run, rank: u32) -> Self {
        Self::new(&run.pem(&format!("rank-{rank}.pem")), &run.pem("ca.pem"))
    }

    pub(crate) fn local_addr(&self) -> SocketAddr {
        self.endpoint.local_addr().unwrap()
    }

    pub(crate) fn run<T>(&self, work: impl Future<Output = T>) -> T {
        self.runtime.block_on(async { tokio::time::timeout(LONG, work).await.unwrap() })
    }

    /// Lets the connections live for a while.
    pub(crate) fn idle(&self, time: Duration) {
        self.runtime.block_on(async { tokio::time::sleep(time).await });
    }

    pub(crate) fn connect(&self, address: SocketAddr, rank: u32) -> Connection {
        self.run(async {
            self.endpoint.connect(address, &format!("rank-{rank}.gradwire")).unwrap().await.unwrap()
        })
    }

    pub(crate) fn accept(&self) -> Connection {
        self.run(async { self.endpoint.accept().await.unwrap().await.unwrap() })
    }

    /// The next caller, or why its handshake failed.
    pub(crate) async fn accept_raw(&self) -> Result<Connection, quinn::ConnectionError> {
        self.endpoint.accept().await.unwrap().await
    }

    /// Dials, says `hello` and yes, and hears the answer: a member of the mesh from then on.
    pub(crate) fn join(&self, address: SocketAddr, rank: u32, hello: &[u8]) -> Member {
        let connection = self.connect(address, rank);
        self.run(async {
            let (mut send, mut receive) = connection.open_bi().await.unwrap();
            send.write_all(hello).await.unwrap();
            read_hello(&mut receive).await;
            send.write_all(&[1]).await.unwrap();
            let mut verdict = [0];
            receive.read_exact(&mut verdict).await.unwrap();
            assert_eq!(verdict, [1], "refused");
            Member { connection, hello: (send, receive) }
        })
    }
}

pub(crate) struct Member {
    pub(crate) connection: Connection,
    hello: (SendStream, RecvStream),
}

impl Member {
    /// Where everyone is, from rank 0, in a world on IPv4.
    pub(crate) async fn table(&mut self) -> Vec<SocketAddr> {
        loop {
            let mut head = [0; 5];
            self.hello.1.read_exact(&mut head).await.unwrap();
            let mut body = vec![0; usize::from(head[1]) + 256 * usize::from(head[2])];
            self.hello.1.read_exact(&mut body).await.unwrap();
            // 1 says who is missing, 2 is the table: 4, the address, the port.
            if head[0] == 2 {
                let entry =
                    |it: &[u8]| ([it[1], it[2], it[3], it[4]], u16::from_le_bytes([it[5], it[6]])).into();
                return body.chunks(7).map(entry).collect();
            }
        }
    }
}

/// A hello of any version and content, of a process that is older than any other.
pub(crate) fn hello(version: u16, size: u32, epoch: u32, rank: u32, agreements: &[(&str, &str)]) -> Vec<u8> {
    let mut body = [size.to_le_bytes(), epoch.to_le_bytes(), rank.to_le_bytes()].concat();
    body.extend(1u64.to_le_bytes());
    body.extend(u16::try_from(agreements.len()).unwrap().to_le_bytes());
    for text in agreements.iter().flat_map(|(name, value)| [name, value]) {
        body.extend(u16::try_from(text.len()).unwrap().to_le_bytes());
        body.extend(text.as_bytes());
    }
    let mut out = b"GRDH".to_vec();
    out.extend(version.to_le_bytes());
    out.extend(u16::try_from(body.len()).unwrap().to_le_bytes());
    out.extend(body);
    out
}

/// The other side's hello: its version and its body.
pub(crate) async fn read_hello(receive: &mut RecvStream) -> (u16, Vec<u8>) {
    let mut prefix = [0; 8];
    receive.read_exact(&mut prefix).await.unwrap();
    assert_eq!(&prefix[..4], b"GRDH", "magic");
    let mut body = vec![0; usize::from(u16::from_le_bytes([prefix[6], prefix[7]]))];
    receive.read_exact(&mut body).await.unwrap();
    (u16::from_le_bytes([prefix[4], prefix[5]]), body)
}
