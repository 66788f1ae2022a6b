//! One UDP socket, one QUIC endpoint, and a thread of their own.
//!
//! A thread of its own, because under CPU contention an endpoint that shared its thread with computing fell to
//! half the throughput, where the kernel's TCP did not.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use quinn::{ClientConfig, IdleTimeout, MtuDiscoveryConfig, ServerConfig, TransportConfig, VarInt};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::runtime::{Builder, Handle};
use tokio::sync::oneshot;

use super::bind::bind;
use super::config::{Config, Tuning};
use super::error::JoinError;
use super::{reset, tls};

/// A stream's flow-control window: more than one frame, so that no frame waits for credit in its middle.
const STREAM_WINDOW: u32 = 2_300_000;

/// Handshakes that may wait to be looked at; more are answered with a refusal.
const MAX_INCOMING: usize = 256;

/// How long a leaving node lingers so that its last packets reach slow peers (three probe timeouts, as QUIC
/// asks, are about 0.1 s on a site).
const LINGER: Duration = Duration::from_millis(300);

/// The running endpoint. Dropping it sends what is left to say and ends the thread.
pub(super) struct Driver {
    pub(super) endpoint: quinn::Endpoint,
    pub(super) runtime: Handle,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Driver {
    pub(super) fn bind(config: &Config) -> Result<Self, JoinError> {
        let tls = tls::configure(&config.identity)?;
        let transport = Arc::new(transport(config)?);
        let mut server = ServerConfig::with_crypto(tls.server);
        server.transport_config(transport.clone()).max_incoming(MAX_INCOMING);
        // A hello and its handshake are 4 KiB; the default of 10 MiB is for 0-RTT, which is off.
        server.incoming_buffer_size(64 << 10).incoming_buffer_size_total(16 << 20);
        let mut client = ClientConfig::new(tls.client);
        client.transport_config(transport);
        let mut common = reset::endpoint_config(&config.identity);
        common.max_udp_payload_size(config.tuning.mtu.max(1472)).map_err(|_| JoinError::Option {
            option: "mtu",
            value: config.tuning.mtu.to_string(),
            range: "1200 to 6500 bytes",
        })?;

        let socket = bind(config, |address| socket(address, &config.tuning))?;
        let runtime = Builder::new_current_thread().enable_all().build().map_err(JoinError::Thread)?;
        let handle = runtime.handle().clone();
        let mut endpoint = {
            let _context = handle.enter();
            quinn::Endpoint::new(common, Some(server), socket, Arc::new(quinn::TokioRuntime))
                .map_err(JoinError::Thread)?
        };
        endpoint.set_default_client_config(client);

        let (stop, stopped) = oneshot::channel();
        let lingering = endpoint.clone();
        let thread = std::thread::Builder::new()
            .name("gradwire-quic".into())
            .spawn(move || {
                runtime.block_on(async {
                    // An error is a dropped sender, which means the same.
                    let _ = stopped.await;
                    let _ = tokio::time::timeout(LINGER, lingering.wait_idle()).await;
                });
            })
            .map_err(JoinError::Thread)?;
        Ok(Self { endpoint, runtime: handle, stop: Some(stop), thread: Some(thread) })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.endpoint.local_addr()
    }

    /// Runs `work` on the endpoint's thread and waits for it; `None` if the thread is gone.
    pub(super) fn run<T: Send + 'static>(&self, work: impl Future<Output = T> + Send + 'static) -> Option<T> {
        let (done, result) = std::sync::mpsc::sync_channel(1);
        self.runtime.spawn(async move {
            // The other end can only be gone if this process is ending.
            let _ = done.send(work.await);
        });
        result.recv().ok()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

fn transport(config: &Config) -> Result<TransportConfig, JoinError> {
    let Config { silence, tuning, world, .. } = config;
    let mut transport = TransportConfig::default();
    let idle = IdleTimeout::try_from(*silence).map_err(|_| JoinError::Option {
        option: "silence",
        value: format!("{silence:?}"),
        range: "0.1 s to 1 h",
    })?;
    let mut discovery = MtuDiscoveryConfig::default();
    discovery.upper_bound(tuning.mtu);
    transport
        .max_idle_timeout(Some(idle))
        .keep_alive_interval(Some(*silence / 5))
        .max_concurrent_bidi_streams(1u32.into())
        .max_concurrent_uni_streams(tuning.streams_of_one(world).into())
        .stream_receive_window(STREAM_WINDOW.into())
        .receive_window(VarInt::from_u64(tuning.receive_window(world)).unwrap_or(VarInt::MAX))
        .send_window(tuning.send_window(world))
        // Frames one after the other instead of all at once: the receiver can start on the first, and it takes
        // 2.3 instead of 2.6 CPU s per GB (loopback, 2 ranks, both ends).
        .send_fairness(false)
        .mtu_discovery_config(Some(discovery))
        .congestion_controller_factory(config.congestion.factory())
        // A first guess for the handshake's timer, 3 x as long; the default of 333 ms makes a lost first
        // packet cost a second.
        .initial_rtt(Duration::from_millis(100))
        .datagram_receive_buffer_size(None);
    Ok(transport)
}

fn socket(address: SocketAddr, tuning: &Tuning) -> io::Result<std::net::UdpSocket> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() && address.ip().is_unspecified() {
        socket.set_only_v6(false)?;
    }
    socket.bind(&address.into())?;
    let asked = tuning.socket_buffer;
    for (name, set) in [
        ("send", Socket::set_send_buffer_size as fn(&Socket, usize) -> io::Result<()>),
        ("receive", Socket::set_recv_buffer_size),
    ] {
        if let Err(error) = set(&socket, asked) {
            tracing::debug!(name, asked, %error, "socket buffer stays as it is");
        }
    }
    let (send, receive) = (socket.send_buffer_size().unwrap_or(0), socket.recv_buffer_size().unwrap_or(0));
    if send.min(receive) < asked {
        tracing::debug!(asked, send, receive, "the system gives less socket buffer");
    }
    Ok(socket.into())
}
