//! QUIC endpoints on a virtual clock over `sim::Network`: seconds of a WAN in a moment, whatever the machine does.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::num::NonZeroU64;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::{Bytes, BytesMut};
use gradwire_transport::quic::Tuning;
use gradwire_transport::sim::{LinkConfig, Network};
use quinn_proto::congestion::ControllerFactory;
use quinn_proto::{
    ClientConfig, Connection, ConnectionHandle, DatagramEvent, Dir, Endpoint, EndpointConfig, Event,
    ServerConfig, StreamEvent, StreamId, TransportConfig, VarInt,
};

/// IPv4 and UDP.
const HEADERS: u64 = 28;
/// What tokio's timer can tell apart.
const TICK: Duration = Duration::from_millis(1);
const PIECE: usize = 1 << 20;

type Factory = Arc<dyn ControllerFactory + Send + Sync>;

/// Several nodes, fully connected: node i dials node j > i.
pub(crate) struct Path {
    pub(crate) network: Network<Datagram>,
    now: Instant,
    begin: Instant,
    nodes: Vec<Node>,
    streams: usize,
}

#[derive(Clone)]
pub(crate) struct Datagram {
    bytes: BytesMut,
}

struct Node {
    endpoint: Endpoint,
    peers: HashMap<ConnectionHandle, Peer>,
}

struct Peer {
    connection: Connection,
    node: u32,
    connected: bool,
    to_send: usize,
    /// Frames under way at most, and how many there were.
    streams: usize,
    begun: i32,
    writing: BTreeMap<StreamId, usize>,
    received: usize,
    /// When bytes arrived, and how many there were by then.
    arrivals: Vec<(Duration, usize)>,
    timeout: Option<Instant>,
}

/// What came of a transfer from one node to another.
#[derive(Clone, Debug)]
pub(crate) struct Carried {
    /// From the start to the last byte.
    pub(crate) seconds: f64,
    /// Bits of payload per second over the middle half of the bytes.
    pub(crate) steady: f64,
    /// Bytes that were sent again over bytes sent.
    pub(crate) lost: f64,
}

fn address(node: u32) -> SocketAddr {
    let [_, _, high, low] = node.to_be_bytes();
    (IpAddr::V4(Ipv4Addr::new(10, 0, high, low)), 7000).into()
}

fn node_of(address: SocketAddr) -> u32 {
    let IpAddr::V4(ip) = address.ip() else { panic!("{address}") };
    let [_, _, high, low] = ip.octets();
    u32::from_be_bytes([0, 0, high, low])
}

impl Path {
    /// Connects one node per factory over `link`, and returns when all have shaken hands.
    pub(crate) fn new(link: LinkConfig, factories: Vec<Factory>, seed: u64) -> Self {
        let issued = rcgen::generate_simple_self_signed(vec!["node".into()]).unwrap();
        let certificate = issued.cert.der().clone();
        let key = rustls::pki_types::PrivatePkcs8KeyDer::from(issued.signing_key.serialize_der());
        let mut roots = rustls::RootCertStore::empty();
        roots.add(certificate.clone()).unwrap();
        let roots = Arc::new(roots);
        let begin = Instant::now();
        let count = u32::try_from(factories.len()).unwrap();
        let mut nodes = Vec::new();
        let rate = NonZeroU64::new(link.rate.unwrap()).unwrap();
        // A peer's share of what a mesh is given for such a line.
        let all = usize::from(Tuning::for_link(rate, link.round_trip()).streams);
        let streams = (all / (factories.len() - 1)).max(4);
        for (index, factory) in factories.into_iter().enumerate() {
            let transport = Arc::new(transport(factory, streams));
            let mut server =
                ServerConfig::with_single_cert(vec![certificate.clone()], key.clone_key().into()).unwrap();
            server.transport_config(transport.clone());
            let mut client = ClientConfig::with_root_certificates(roots.clone()).unwrap();
            client.transport_config(transport);
            let mut random = [0; 32];
            random[0] = u8::try_from(index).unwrap();
            random[1..9].copy_from_slice(&seed.to_le_bytes());
            let endpoint = Endpoint::new(
                Arc::new(EndpointConfig::default()),
                Some(Arc::new(server)),
                true,
                Some(random),
            );
            nodes.push((Node { endpoint, peers: HashMap::new() }, client));
        }
        for from in 0..count {
            for to in from + 1..count {
                let (node, client) = &mut nodes[from as usize];
                let (handle, connection) =
                    node.endpoint.connect(begin, client.clone(), address(to), "node").unwrap();
                node.peers.insert(handle, Peer::new(connection, to, streams));
            }
        }
        let nodes = nodes.into_iter().map(|(node, _)| node).collect();
        let mut path = Self { network: Network::new(count, link, seed), now: begin, begin, nodes, streams };
        let all = |path: &Self| {
            path.nodes.iter().all(|node| {
                node.peers.len() + 1 == path.nodes.len() && node.peers.values().all(|peer| peer.connected)
            })
        };
        assert!(path.run(Duration::from_secs(20), |path| all(path)), "handshakes take too long");
        path
    }

    /// Gives every ordered pair in `pairs` these bytes to carry, from now on.
    pub(crate) fn start(&mut self, pairs: &[(u32, u32)], bytes: usize) {
        self.begin = self.now;
        for (from, to) in pairs {
            self.peer(*from, *to).to_send = bytes;
            let into = self.peer(*to, *from);
            into.received = 0;
            into.arrivals.clear();
        }
        for node in 0..self.nodes.len() {
            self.drive(node);
        }
    }

    /// Runs until `from` has carried `bytes` to `to`, for every pair, or `limit` is over.
    pub(crate) fn carry(&mut self, pairs: &[(u32, u32)], bytes: usize, limit: Duration) -> Vec<Carried> {
        self.start(pairs, bytes);
        let pairs = pairs.to_vec();
        let done = |path: &mut Self| pairs.iter().all(|(from, to)| path.peer(*to, *from).received >= bytes);
        assert!(self.run_mut(limit, done), "not done after {limit:?}");
        pairs.iter().map(|(from, to)| self.carried(*from, *to, bytes)).collect()
    }

    pub(crate) fn received(&mut self, from: u32, to: u32) -> usize {
        self.peer(to, from).received
    }

    pub(crate) fn carried(&mut self, from: u32, to: u32, bytes: usize) -> Carried {
        let peer = self.peer(to, from);
        let at = |share: usize| {
            let wanted = bytes / 4 * share;
            peer.arrivals
                .iter()
                .find(|(_, have)| *have >= wanted)
                .map(|(at, have)| (at.as_secs_f64(), *have))
                .unwrap()
        };
        let ((first, had), (last, have)) = (at(1), at(3));
        let seconds = peer.arrivals.iter().find(|(_, have)| *have >= bytes).unwrap().0.as_secs_f64();
        let steady = 8.0 * (have - had) as f64 / (last - first);
        let stats = self.peer(from, to).connection.stats();
        Carried { seconds, steady, lost: stats.path.lost_bytes as f64 / stats.udp_tx.bytes as f64 }
    }

    /// Smoothed, as `from` sees it.
    pub(crate) fn round_trip(&mut self, from: u32, to: u32) -> Duration {
        self.peer(from, to).connection.rtt()
    }

    /// Lets `time` pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        self.run(time, |_| false);
    }

    fn run(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> bool {
        self.run_mut(limit, |path| done(path))
    }

    fn run_mut(&mut self, limit: Duration, mut done: impl FnMut(&mut Self) -> bool) -> bool {
        let end = self.now + limit;
        for node in 0..self.nodes.len() {
            self.drive(node);
        }
        loop {
            if done(self) {
                return true;
            }
            let timers =
                self.nodes.iter().flat_map(|node| node.peers.values()).filter_map(|peer| peer.timeout);
            let next = timers.chain(self.network.next()).min();
            let Some(next) = next.filter(|next| *next <= end) else {
                self.now = end;
                return false;
            };
            self.now = self.now.max(next);
            let mut touched = vec![false; self.nodes.len()];
            while let Some(arrival) = self.network.poll(self.now) {
                touched[arrival.to as usize] = true;
                self.arrive(arrival.from, arrival.to, arrival.packet);
            }
            for (node, touched) in self.nodes.iter_mut().zip(&mut touched) {
                for peer in node.peers.values_mut() {
                    if peer.timeout.is_some_and(|timeout| timeout <= self.now) {
                        peer.connection.handle_timeout(self.now);
                        *touched = true;
                    }
                }
            }
            for (node, touched) in touched.into_iter().enumerate() {
                if touched {
                    self.drive(node);
                }
            }
        }
    }

    fn arrive(&mut self, from: u32, to: u32, packet: Datagram) {
        let node = &mut self.nodes[to as usize];
        let mut buffer = Vec::new();
        match node.endpoint.handle(self.now, address(from), None, None, packet.bytes, &mut buffer) {
            Some(DatagramEvent::NewConnection(incoming)) => {
                let accepted = node.endpoint.accept(incoming, self.now, &mut buffer, None);
                let (handle, connection) = accepted.map_err(|error| error.cause).unwrap();
                node.peers.insert(handle, Peer::new(connection, from, self.streams));
            }
            Some(DatagramEvent::ConnectionEvent(handle, event)) => {
                if let Some(peer) = node.peers.get_mut(&handle) {
                    peer.connection.handle_event(event);
                }
            }
            Some(DatagramEvent::Response(transmit)) => {
                let bytes = BytesMut::from(&buffer[..transmit.size]);
                self.send(to, node_of(transmit.destination), bytes);
            }
            None => {}
        }
    }

    fn send(&mut self, from: u32, to: u32, bytes: BytesMut) {
        let size = bytes.len() as u64 + HEADERS;
        self.network.send(self.now, from, to, size, Datagram { bytes });
    }

    fn drive(&mut self, index: usize) {
        let from = u32::try_from(index).unwrap();
        let Node { endpoint, peers } = &mut self.nodes[index];
        let mut out = Vec::new();
        for (handle, peer) in peers.iter_mut() {
            loop {
                peer.work(self.now.duration_since(self.begin));
                while let Some(event) = peer.connection.poll_endpoint_events() {
                    if let Some(event) = endpoint.handle_event(*handle, event) {
                        peer.connection.handle_event(event);
                    }
                }
                let mut sent = false;
                let mut buffer = Vec::new();
                while let Some(transmit) = peer.connection.poll_transmit(self.now, 10, &mut buffer) {
                    let segment = transmit.segment_size.unwrap_or(transmit.size);
                    for bytes in buffer[..transmit.size].chunks(segment) {
                        out.push((peer.node, BytesMut::from(bytes)));
                    }
                    buffer.clear();
                    sent = true;
                }
                if !sent {
                    break;
                }
            }
            // A timer of the real thing wakes at the next millisecond.
            peer.timeout = peer.connection.poll_timeout().map(|timeout| {
                let nanos = timeout.saturating_duration_since(self.begin).as_nanos();
                let ticks = u32::try_from(nanos.div_ceil(TICK.as_nanos())).unwrap();
                (self.begin + TICK * ticks).max(self.now + Duration::from_micros(10))
            });
        }
        for (to, bytes) in out {
            self.send(from, to, bytes);
        }
    }

    fn peer(&mut self, node: u32, other: u32) -> &mut Peer {
        self.nodes[node as usize].peers.values_mut().find(|peer| peer.node == other).unwrap()
    }
}

impl Peer {
    fn new(connection: Connection, node: u32, streams: usize) -> Self {
        Self {
            connection,
            node,
            connected: false,
            to_send: 0,
            streams,
            begun: 0,
            writing: BTreeMap::new(),
            received: 0,
            arrivals: Vec::new(),
            timeout: None,
        }
    }

    /// What the application would do: write pieces on streams of their own, read whatever came.
    fn work(&mut self, elapsed: Duration) {
        while let Some(event) = self.connection.poll() {
            match event {
                Event::Connected => self.connected = true,
                Event::Stream(StreamEvent::Readable { id }) => self.read(id, elapsed),
                Event::Stream(StreamEvent::Opened { dir: Dir::Uni }) => {
                    while let Some(id) = self.connection.streams().accept(Dir::Uni) {
                        self.read(id, elapsed);
                    }
                }
                Event::ConnectionLost { reason } => panic!("node {}: {reason}", self.node),
                _ => {}
            }
        }
        while self.to_send > 0 && self.connection.streams().send_streams() < self.streams {
            let Some(id) = self.connection.streams().open(Dir::Uni) else { break };
            self.begun += 1;
            self.connection.send_stream(id).set_priority(-self.begun).unwrap();
            let piece = self.to_send.min(PIECE);
            self.to_send -= piece;
            self.writing.insert(id, piece);
        }
        let zeros = Bytes::from_static(&[0; 1 << 16]);
        self.writing.retain(|id, left| {
            let mut stream = self.connection.send_stream(*id);
            while *left > 0 {
                let mut chunks = [zeros.slice(..zeros.len().min(*left))];
                match stream.write_chunks(&mut chunks) {
                    Ok(written) => *left -= written.bytes,
                    Err(_) => return true,
                }
            }
            stream.finish().unwrap();
            false
        });
    }

    fn read(&mut self, id: StreamId, elapsed: Duration) {
        let mut stream = self.connection.recv_stream(id);
        let Ok(mut chunks) = stream.read(false) else { return };
        while let Ok(Some(chunk)) = chunks.next(usize::MAX) {
            self.received += chunk.bytes.len();
        }
        let _ = chunks.finalize();
        self.arrivals.push((elapsed, self.received));
    }
}

/// As a mesh has it.
fn transport(factory: Factory, streams: usize) -> TransportConfig {
    let window = (streams * PIECE) as u64;
    let control = 1 << 20;
    let mut transport = TransportConfig::default();
    transport
        .max_idle_timeout(Some(VarInt::from_u32(10_000).into()))
        .keep_alive_interval(Some(Duration::from_secs(2)))
        .max_concurrent_uni_streams(u32::try_from(streams).unwrap().into())
        .stream_receive_window(2_300_000u32.into())
        .receive_window(VarInt::from_u64(window / 2 + control).unwrap())
        .send_window(window + control)
        .initial_rtt(Duration::from_millis(100))
        .congestion_controller_factory(factory);
    transport
}
