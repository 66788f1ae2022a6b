//! UDP datagrams between real sockets over an emulated network, without privileges.

use std::io::{self, IoSliceMut};
use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::os::fd::OwnedFd;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;
use quinn_udp::{EcnCodepoint, RecvMeta, Transmit, UdpSockRef, UdpSocketState};

use super::carrier::{Carrier, Line, Packet, Ports};
use super::config::LinkConfig;

/// IPv4 and UDP headers, which a line carries too.
const HEADERS: u64 = 28;

/// The largest IP packet that a line carries, as Ethernet's; longer ones are lost, and not counted.
const LONGEST: u64 = 1500;

/// Datagrams that come together are taken up to this many bytes at a time, a limit of the system.
const TAKEN: usize = 1 << 16;

/// And so many of these in one system call.
const BATCH: usize = 8;

/// Bytes that leave in one system call at most: the system's limit is 64 KiB with headers.
const SENT: usize = 60_000;

/// Asked of the system for each socket: what comes while the thread waits for a core must fit.
const SOCKET_BUFFER: usize = 8 << 20;

/// Carries datagrams between the UDP sockets of nodes 0..n, on loopback and over an emulated network.
///
/// Node i sends to [`address`](Self::address)`(i, j)` what is for node j, and hears node j from there. A node is where
/// [`place`](Self::place) says, or where its last datagram came from; what is for a node that is nowhere yet is dropped. So are
/// datagrams of more than 1472 bytes, which Ethernet does not carry.
///
/// **Cost**: one thread, n (n - 1) sockets; at 1 Gbit/s of datagrams of 1452 bytes that leave their sender in batches,
/// see the module's tests for what it took.
pub struct Relay {
    carrier: Carrier,
    addresses: Vec<Option<SocketAddr>>,
    places: Places,
    nodes: u32,
}

type Places = Arc<Mutex<Vec<Option<SocketAddr>>>>;

impl Relay {
    /// Begins to carry between `nodes` nodes whose lines and wires are as `link` says.
    ///
    /// # Errors
    ///
    /// Of the system: no sockets left, no thread.
    pub fn start(nodes: u32, link: LinkConfig, seed: u64) -> io::Result<Self> {
        let places: Places = Arc::new(Mutex::new(vec![None; nodes as usize]));
        let mut ports = Vec::new();
        let mut addresses = Vec::new();
        for (node, peer) in (0..nodes).flat_map(|node| (0..nodes).map(move |peer| (node, peer))) {
            let port = (node != peer).then(|| Port::open(node, peer)).transpose()?;
            addresses.push(port.as_ref().map(|port| port.socket.local_addr()).transpose()?);
            ports.push(port);
        }
        let ports = Udp { nodes, ports, places: places.clone(), buffer: vec![0; BATCH * TAKEN] };
        Ok(Self { carrier: Carrier::start(nodes, link, seed, ports)?, addresses, places, nodes })
    }

    /// Where `node` sends to, and hears from, `peer`. `None` for itself, and for nodes that do not exist.
    #[must_use]
    pub fn address(&self, node: u32, peer: u32) -> Option<SocketAddr> {
        let inside = node < self.nodes && peer < self.nodes;
        self.addresses.get(index(self.nodes, node, peer)).copied().flatten().filter(|_| inside)
    }

    /// Says where the socket of `node` is.
    pub fn place(&self, node: u32, address: SocketAddr) {
        let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(place) = places.get_mut(node as usize) {
            *place = Some(address);
        }
    }

    /// The network, to be changed and read.
    #[must_use]
    pub fn carrier(&self) -> &Carrier {
        &self.carrier
    }
}

fn index(nodes: u32, node: u32, peer: u32) -> usize {
    node as usize * nodes as usize + peer as usize
}

/// By [`index`].
struct Udp {
    nodes: u32,
    ports: Vec<Option<Port>>,
    places: Places,
    buffer: Vec<u8>,
}

/// What `node` takes for `peer`.
struct Port {
    socket: UdpSocket,
    state: UdpSocketState,
    node: u32,
    peer: u32,
    waiting: Waiting,
}

/// Datagrams of one length that leave together; the last one may be shorter.
#[derive(Default)]
struct Waiting {
    bytes: Vec<u8>,
    length: usize,
    count: usize,
    ecn: Option<EcnCodepoint>,
}

impl Waiting {
    /// Whether a datagram can join what waits.
    fn takes(&self, packet: &Packet, most: usize) -> bool {
        let whole = self.bytes.len() == self.count * self.length;
        let fits = packet.payload.len() <= self.length && self.bytes.len() + packet.payload.len() <= SENT;
        whole && fits && !packet.payload.is_empty() && self.count < most && packet.ecn == self.ecn
    }
}

impl Port {
    fn open(node: u32, peer: u32) -> io::Result<Self> {
        let socket = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0))?;
        let reference = UdpSockRef::from(&socket);
        let state = UdpSocketState::new(reference)?;
        // Less is no error: what does not fit is lost, as on a busy host.
        let _ = state.set_recv_buffer_size((&socket).into(), SOCKET_BUFFER);
        let _ = state.set_send_buffer_size((&socket).into(), SOCKET_BUFFER);
        Ok(Self { socket, state, node, peer, waiting: Waiting::default() })
    }

    fn push(&mut self, packet: &Packet, place: Option<SocketAddr>) {
        if !self.waiting.takes(packet, self.state.max_gso_segments()) {
            self.flush(place);
            (self.waiting.length, self.waiting.ecn) = (packet.payload.len(), packet.ecn);
        }
        self.waiting.bytes.extend_from_slice(&packet.payload);
        self.waiting.count += 1;
    }

    fn flush(&mut self, place: Option<SocketAddr>) {
        let Waiting { bytes, length, count, ecn } = &self.waiting;
        if let Some(destination) = place.filter(|_| *count > 0) {
            let segment_size = (*count > 1).then_some(*length);
            let transmit = Transmit { destination, ecn: *ecn, contents: bytes, segment_size, src_ip: None };
            // What can't be sent is lost, as on a wire.
            if let Err(error) = self.state.try_send((&self.socket).into(), &transmit) {
                tracing::debug!(%error, %destination, "a datagram was not handed on");
            }
        }
        self.waiting.bytes.clear();
        self.waiting.count = 0;
    }
}

impl Udp {
    fn place(&self, node: u32) -> Option<SocketAddr> {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
        places.get(node as usize).copied().flatten()
    }
}

impl Ports for Udp {
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.ports.iter().flatten().map(|port| Ok(port.socket.try_clone()?.into())).collect()
    }

    fn receive(&mut self, index: usize, line: &mut Line<'_>) {
        let Some(port) = self.ports.iter().flatten().nth(index) else { return };
        let mut slices: Vec<_> = self.buffer.chunks_exact_mut(TAKEN).map(IoSliceMut::new).collect();
        let mut metas = [RecvMeta::default(); BATCH];
        // An error is one of a datagram sent before, whose receiver is gone.
        let received = port.state.recv((&port.socket).into(), &mut slices, &mut metas).unwrap_or(0);
        for (slice, meta) in slices.iter().zip(&metas).take(received) {
            let mut places = self.places.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(place) = places.get_mut(port.node as usize) {
                *place = Some(meta.addr);
            }
            drop(places);
            let all = Bytes::copy_from_slice(&slice[..meta.len]);
            for start in (0..meta.len).step_by(meta.stride.max(1)) {
                let datagram = all.slice(start..meta.len.min(start + meta.stride));
                let bytes = datagram.len() as u64 + HEADERS;
                if bytes > LONGEST {
                    continue;
                }
                line.put(port.node, port.peer, bytes, datagram, meta.ecn);
            }
        }
    }

    fn send(&mut self, from: u32, to: u32, packet: &Packet) {
        let place = self.place(to);
        // The one by which `to` knows `from`.
        if let Some(Some(port)) = self.ports.get_mut(index(self.nodes, to, from)) {
            port.push(packet, place);
        }
    }

    fn flush(&mut self) {
        let places = self.places.lock().unwrap_or_else(PoisonError::into_inner).clone();
        for port in self.ports.iter_mut().flatten() {
            port.flush(places.get(port.node as usize).copied().flatten());
        }
    }
}
