//! Network namespaces on an emulated network. Where the system does not permit them, these tests say so and pass, unless
//! `GRADWIRE_REQUIRE_TUNNEL` is set.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream, UdpSocket};
use std::thread;
use std::time::{Duration, Instant};

use gradwire_transport::sim::Tunnel;

/// A tunnel, where there can be one.
fn tunnel(nodes: u32, link: &str) -> Option<Tunnel> {
    match Tunnel::start(nodes, link.parse().unwrap(), 1) {
        Ok(tunnel) => Some(tunnel),
        Err(error)
            if matches!(error.kind(), ErrorKind::PermissionDenied | ErrorKind::NotFound)
                && std::env::var_os("GRADWIRE_REQUIRE_TUNNEL").is_none() =>
        {
            eprintln!("skipped, as the system does not permit it: {error}");
            None
        }
        Err(error) => panic!("{error}"),
    }
}

/// A cycle of 251, so that nothing that moved looks right.
fn painted(bytes: usize) -> Vec<u8> {
    (0..251).cycle().take(bytes).collect()
}

#[test]
fn tcp_crosses_a_link_that_loses_and_delays() {
    const BYTES: usize = 1 << 20;
    let Some(tunnel) = tunnel(2, "100Mbit,20ms,3%") else { return };
    let listener = tunnel.within(1, || TcpListener::bind((Tunnel::address(1), 0))).unwrap().unwrap();
    let address = listener.local_addr().unwrap();
    let begun = Instant::now();
    let mut near = tunnel.within(0, move || TcpStream::connect(address)).unwrap().unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(20), "connected in {:?}", begun.elapsed());
    let (mut far, from) = listener.accept().unwrap();
    Tunnel::use_cubic(&near).unwrap();
    assert_eq!(from.ip(), Tunnel::address(0));
    let receiver = thread::spawn(move || -> io::Result<Vec<u8>> {
        let mut received = vec![0; BYTES];
        far.read_exact(&mut received)?;
        Ok(received)
    });
    near.write_all(&painted(BYTES)).unwrap();
    assert!(receiver.join().unwrap().unwrap() == painted(BYTES), "other bytes came");
    let traffic = tunnel.carrier().traffic();
    assert!(traffic.delivered_bytes > BYTES as u64 && traffic.lost > 0, "{traffic:?}");
    assert!(traffic.mean_delay() >= Duration::from_millis(10), "{traffic:?}");
}

#[test]
fn a_way_that_is_cut_carries_nothing_and_the_others_all() {
    let Some(tunnel) = tunnel(3, "1Gbit,2ms,0%") else { return };
    let socket = |node| {
        let bound = tunnel.within(node, move || UdpSocket::bind((Tunnel::address(node), 7)));
        let socket = bound.unwrap().unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        socket
    };
    let (zero, one, two) = (socket(0), socket(1), socket(2));
    tunnel.carrier().cut(0, 1);
    zero.send_to(b"lost", (Tunnel::address(1), 7)).unwrap();
    // The system does not know that nobody is there.
    zero.send_to(b"nobody", (Ipv4Addr::new(198, 18, 9, 9), 7)).unwrap();
    zero.send_to(b"comes", (Tunnel::address(2), 7)).unwrap();
    let mut buffer = [0; 16];
    let (length, from) = two.recv_from(&mut buffer).unwrap();
    assert_eq!((&buffer[..length], from), (&b"comes"[..], (Tunnel::address(0), 7).into()));
    assert_eq!(tunnel.carrier().traffic().cut, 2, "{:?}", tunnel.carrier().traffic());
    tunnel.carrier().mend(0, 1);
    zero.send_to(b"mended", (Tunnel::address(1), 7)).unwrap();
    let (length, _) = one.recv_from(&mut buffer).unwrap();
    assert_eq!(&buffer[..length], b"mended");
}
