//! Real datagrams over an emulated link. Times are bounded from below only: a busy machine is slow, never fast.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::quic::{Authority, Config, Peers, Pending, QuicMesh, Rendezvous};
use gradwire_transport::sim::{LinkConfig, Relay, Traffic, WireConfig};
use gradwire_transport::{
    Abort, Communicator, Event, Frame, Header, Limits, Loss, Mesh, Operation, Rank, Tag, World,
};

/// What waits longer than this has failed.
const LONG: Duration = Duration::from_secs(30);

struct Nodes {
    relay: Relay,
    sockets: Vec<UdpSocket>,
}

impl Nodes {
    fn new(count: u32, link: &str) -> Self {
        let link: LinkConfig = link.parse().unwrap();
        let relay = Relay::start(count, link, 7).unwrap();
        let sockets: Vec<_> =
            (0..count).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
        for (node, socket) in (0..).zip(&sockets) {
            socket.set_nonblocking(true).unwrap();
            relay.place(node, socket.local_addr().unwrap());
        }
        Self { relay, sockets }
    }

    fn send(&self, from: u32, to: u32, payload: &[u8]) {
        let address = self.relay.address(from, to).unwrap();
        let sent = self.sockets[from as usize].send_to(payload, address).unwrap();
        assert_eq!(sent, payload.len(), "a datagram is sent whole");
    }

    /// Waits until all of `sent` datagrams have come to an end.
    fn settle(&self, sent: u64) -> Traffic {
        let start = Instant::now();
        loop {
            let traffic = self.relay.carrier().traffic();
            if traffic.delivered + traffic.lost + traffic.cut + traffic.overflowed == sent {
                return traffic;
            }
            assert!(start.elapsed() < LONG, "{sent} sent, {traffic:?}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// What has come to a node.
    fn take(&self, node: u32) -> Vec<(SocketAddr, Vec<u8>)> {
        let mut buffer = [0; 2000];
        let socket = &self.sockets[node as usize];
        let next =
            || socket.recv_from(&mut buffer).ok().map(|(length, from)| (from, buffer[..length].to_vec()));
        std::iter::from_fn(next).collect()
    }
}

/// Datagram number `number`: its number, then a pattern, in a length that changes.
fn painted(number: u32) -> Vec<u8> {
    let length = 4 + number % 7 * 100;
    number
        .to_le_bytes()
        .into_iter()
        .chain((4..length).map(|i| u8::try_from((i + number) % 251).unwrap()))
        .collect()
}

#[test]
fn datagrams_arrive_whole_and_in_order_from_where_their_sender_is_sent_to_and_not_before_the_delay() {
    let nodes = Nodes::new(3, "1Gbit,40ms,0%");
    let start = Instant::now();
    for number in 0..60 {
        nodes.send(0, 1, &painted(number));
        nodes.send(2, 1, &painted(1000 + number));
    }
    let traffic = nodes.settle(120);
    assert!(start.elapsed() >= Duration::from_millis(20), "{:?}", start.elapsed());
    assert!(traffic.mean_delay() >= Duration::from_millis(20), "{traffic:?}");
    let lengths: u64 =
        (0..60).map(|n| 2 * 28 + painted(n).len() as u64 + painted(1000 + n).len() as u64).sum();
    assert_eq!((traffic.delivered, traffic.delivered_bytes), (120, lengths), "IP and UDP headers count");
    let all = nodes.take(1);
    for (peer, first) in [(0, 0), (2, 1000)] {
        let address = nodes.relay.address(1, peer).unwrap();
        let of: Vec<_> =
            all.iter().filter(|(from, _)| *from == address).map(|(_, payload)| payload).collect();
        let sent: Vec<_> = (first..first + 60).map(painted).collect();
        assert_eq!(of, sent.iter().collect::<Vec<_>>(), "from node {peer}");
    }
    assert_eq!(all.len(), 120);
    assert!(nodes.take(0).is_empty() && nodes.take(2).is_empty(), "nobody else hears them");
}

#[test]
fn the_share_that_is_lost_is_the_one_asked_for_and_the_rest_arrives() {
    let nodes = Nodes::new(2, "10Gbit,0ms,5%");
    let mut received = 0;
    for round in 1..=200 {
        for number in 0..50 {
            nodes.send(0, 1, &painted(number));
        }
        nodes.settle(round * 50);
        received += nodes.take(1).len() as u64;
    }
    let traffic = nodes.relay.carrier().traffic();
    assert_eq!(received, traffic.delivered);
    // Five standard deviations of 10,000 draws.
    assert!((traffic.loss() - 0.05).abs() < 0.011, "{traffic:?}");
    let measured = nodes.relay.carrier().take_measured();
    assert_eq!((measured.packets, measured.loss), (received, traffic.loss()));
    assert_eq!(nodes.relay.carrier().take_measured().packets, 0, "it starts anew");
}

#[test]
fn a_way_that_is_cut_carries_nothing_until_it_is_mended_and_the_way_back_is_another() {
    let nodes = Nodes::new(2, "1Gbit,2ms,0%");
    nodes.relay.carrier().cut(0, 1);
    nodes.send(0, 1, b"lost");
    nodes.send(1, 0, b"back");
    assert_eq!(nodes.settle(2).cut, 1);
    assert!(nodes.take(1).is_empty(), "the way is cut");
    assert_eq!(nodes.take(0), [(nodes.relay.address(0, 1).unwrap(), b"back".to_vec())]);
    nodes.relay.carrier().mend(0, 1);
    nodes.send(0, 1, b"there");
    assert_eq!(nodes.settle(3).delivered, 2);
    assert_eq!(nodes.take(1), [(nodes.relay.address(1, 0).unwrap(), b"there".to_vec())]);
}

#[test]
fn rate_and_delay_can_be_changed_while_it_runs() {
    let nodes = Nodes::new(2, "1Gbit,2ms,0%,queue=1MB");
    // 1 ms for each of 1000 bytes with headers.
    nodes.relay.carrier().set_rate(0, Some(8_000_000));
    let start = Instant::now();
    for _ in 0..50 {
        nodes.send(0, 1, &[1; 972]);
    }
    assert_eq!(nodes.settle(50).delivered, 50);
    assert!(start.elapsed() >= Duration::from_millis(51), "{:?}", start.elapsed());

    nodes.relay.carrier().set_rate(0, None);
    nodes.relay.carrier().set_wire(0, 1, WireConfig::new(Duration::from_millis(70)));
    nodes.relay.carrier().take_measured();
    nodes.send(0, 1, b"far");
    nodes.settle(51);
    let measured = nodes.relay.carrier().take_measured();
    assert_eq!(measured.packets, 1);
    assert!(measured.round_trip >= Duration::from_millis(140), "{measured:?}");
}

#[test]
fn a_corrupted_datagram_differs_in_one_bit() {
    let nodes = Nodes::new(2, "1Gbit,0ms,0%");
    nodes.relay.carrier().set_corrupted(1.0);
    for number in 0..20 {
        nodes.send(0, 1, &painted(number));
    }
    nodes.settle(20);
    let received = nodes.take(1);
    assert_eq!(received.len(), 20);
    for (number, (_, payload)) in (0..).zip(received) {
        let sent = painted(number);
        assert_eq!(payload.len(), sent.len());
        let bits: u32 = payload.iter().zip(&sent).map(|(got, sent)| (got ^ sent).count_ones()).sum();
        assert_eq!(bits, 1, "datagram {number}");
    }
}

#[test]
fn a_node_is_where_it_last_sent_from_and_nowhere_before_it_is_placed() {
    let relay = Relay::start(2, "1Gbit,0ms,0%".parse().unwrap(), 1).unwrap();
    assert!(relay.address(0, 0).is_none() && relay.address(0, 2).is_none() && relay.address(2, 0).is_none());
    let sockets = (0..2).map(|_| UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let nodes = Nodes { relay, sockets };
    nodes.send(0, 1, b"nobody");
    nodes.settle(1);
    // Node 1 has sent now, and so has a place.
    nodes.send(1, 0, b"here");
    nodes.settle(2);
    nodes.send(0, 1, b"found");
    nodes.settle(3);
    nodes.sockets[1].set_nonblocking(true).unwrap();
    assert_eq!(nodes.take(1), [(nodes.relay.address(1, 0).unwrap(), b"found".to_vec())]);
}

/// A rank that finds the others where the relay stands for them.
fn bind(authority: &Authority, relay: &Relay, rank: u32, size: u32) -> Pending {
    let entry = |peer| {
        let own = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
        let address = relay.address(rank, peer).unwrap_or(own);
        format!("[[peer]]\nrank = {peer}\naddress = '{address}'\n")
    };
    let text: String = (0..size).map(entry).collect();
    let rendezvous = Rendezvous::Peers(Peers::parse(&text, size).unwrap());
    let identity = authority.issue(rank, size).unwrap();
    let mut config = Config::new(identity, World::new(rank, size, 0).unwrap(), rendezvous);
    config.bind = Some((Ipv4Addr::LOCALHOST, 0).into());
    let pending = QuicMesh::bind(config).unwrap();
    relay.place(rank, pending.local_addr());
    pending
}

#[test]
fn a_mesh_over_the_relay_exchanges_what_it_should_although_packets_are_lost_and_damaged() {
    const SIZE: u32 = 3;
    let authority = Authority::new("test").unwrap();
    let relay = Relay::start(SIZE, "200Mbit,4ms,1%,queue=1MB".parse().unwrap(), 3).unwrap();
    relay.carrier().set_corrupted(0.002);
    let message = |from: u32, to: u32| -> Bytes {
        (0..1_500_000_u32).map(|i| u8::try_from((i + 7 * from + 13 * to) % 251).unwrap()).collect()
    };
    let rank = |rank: u32| {
        let pending = bind(&authority, &relay, rank, SIZE);
        thread::spawn(move || {
            let mut communicator = Communicator::new(Box::new(pending.join().unwrap()), Limits::default());
            let outgoing = (0..SIZE).map(|to| message(rank, to)).collect();
            let operation = Operation { step: 1, tag: Tag(1) };
            let received = communicator.all_to_all(operation, outgoing, &[1_500_000; SIZE as usize]).unwrap();
            communicator.close();
            let right = (0..SIZE).all(|from| received[from as usize] == message(from, rank));
            (right, communicator.stats().total().udp_bytes_lost)
        })
    };
    let threads: Vec<_> = (0..SIZE).map(rank).collect();
    for thread in threads {
        let (right, lost) = thread.join().unwrap();
        assert!(right, "a message differs");
        assert!(lost > 0, "1 % of about 2000 packets");
    }
    let measured = relay.carrier().take_measured();
    assert!(measured.loss > 0.002 && measured.round_trip >= Duration::from_millis(4), "{measured:?}");
}

#[test]
fn a_datagram_that_is_too_long_for_the_wire_does_not_arrive() {
    let nodes = Nodes::new(2, "1Gbit,0ms,0%");
    nodes.send(0, 1, &[1; 1473]);
    nodes.send(0, 1, &[2; 1472]);
    assert_eq!(nodes.settle(1).delivered, 1);
    let lengths: Vec<_> = nodes.take(1).iter().map(|(_, payload)| payload.len()).collect();
    assert_eq!(lengths, [1472]);
}

/// A closed connection takes no acknowledgements, so its window stays as full as it was.
#[test]
fn a_rank_that_gives_up_with_a_full_window_is_heard() {
    let authority = Authority::new("test").unwrap();
    let relay = Relay::start(2, "100Mbit,10ms,0%".parse().unwrap(), 3).unwrap();
    let ranks = [0, 1].map(|rank| bind(&authority, &relay, rank, 2));
    let [mut leaver, mut stayer] =
        ranks.map(|pending| thread::spawn(|| pending.join().unwrap())).map(|thread| thread.join().unwrap());
    let sent = |mesh: &QuicMesh| mesh.stats().total().udp_bytes_sent;
    let joined = sent(&leaver);
    let operation = Operation { step: 1, tag: Tag(0) };
    for piece in 0..8 {
        let payload = Bytes::from(vec![0; 1 << 20]);
        let (total, offset, length) = (8 << 20, piece << 20, 1 << 20);
        let header = Header { operation, epoch: 0, from: Rank(0), total, offset, length };
        leaver.send(Rank(1), Frame { header, payload });
    }
    // Nothing is acknowledged any more, until nothing is sent any more.
    relay.carrier().cut(1, 0);
    let mut before = 0;
    while before < joined + 10_000 || before != sent(&leaver) {
        before = sent(&leaver);
        thread::sleep(Duration::from_millis(200));
    }
    let abort = Abort { culprit: Some(Rank(0)), reason: "gave up".into() };
    leaver.close(Some(&abort));
    let lost = loop {
        match stayer.receive(Instant::now() + LONG) {
            Event::Frame(..) => {}
            event => break event,
        }
    };
    assert_eq!(lost, Event::Lost(Rank(0), Loss::Aborted(abort)));
}
