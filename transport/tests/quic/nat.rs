//! The address of a node changes while it is connected.

use std::net::{SocketAddr, UdpSocket};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::{self, JoinHandle};
use std::time::Duration;

use gradwire_transport::quic::{Config, Members, QuicMesh};
use gradwire_transport::{Communicator, Event, Limits, Loss, Rank};

use crate::epochs::{config, identities, step};
use crate::support::{LOCALHOST, event};

/// An address translator between one node and another: what comes from inside leaves from an address outside, and the way
/// back. Both addresses can be exchanged for others.
struct Nat {
    sides: Arc<Sides>,
    thread: Option<JoinHandle<()>>,
}

struct Sides {
    /// Where the node that dials sends to.
    inside: Mutex<UdpSocket>,
    /// What the node that is dialed sees.
    outside: Mutex<UdpSocket>,
    /// Datagrams that came back to the present address outside.
    returned: AtomicU64,
    over: AtomicBool,
}

/// A socket whose reads end soon.
fn socket() -> UdpSocket {
    let socket = UdpSocket::bind(LOCALHOST).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
    socket
}

impl Sides {
    fn carry(&self, server: SocketAddr) {
        let (mut buffer, mut client) = ([0; 2048], None);
        while !self.over.load(Ordering::Relaxed) {
            let came = self.inside.lock().unwrap().recv_from(&mut buffer);
            if let Ok((length, from)) = came {
                client = Some(from);
                // What cannot be sent is lost, as on a wire.
                let _ = self.outside.lock().unwrap().send_to(&buffer[..length], server);
            }
            while let Ok((length, _)) = self.returning(&mut buffer) {
                self.returned.fetch_add(1, Ordering::Relaxed);
                if let Some(client) = client {
                    let _ = self.inside.lock().unwrap().send_to(&buffer[..length], client);
                }
            }
        }
    }

    fn returning(&self, buffer: &mut [u8]) -> std::io::Result<(usize, SocketAddr)> {
        self.outside.lock().unwrap().recv_from(buffer)
    }
}

impl Nat {
    fn new(server: SocketAddr) -> Self {
        let sides = Arc::new(Sides {
            inside: Mutex::new(socket()),
            outside: Mutex::new(socket()),
            returned: AtomicU64::new(0),
            over: AtomicBool::new(false),
        });
        let shared = sides.clone();
        Self { sides, thread: Some(thread::spawn(move || shared.carry(server))) }
    }

    fn inside(&self) -> SocketAddr {
        self.sides.inside.lock().unwrap().local_addr().unwrap()
    }

    /// From now on another address stands for the node that dials, and nothing that is sent to the old one arrives.
    fn move_dialer(&self) {
        let mut outside = self.sides.outside.lock().unwrap();
        *outside = socket();
        self.sides.returned.store(0, Ordering::Relaxed);
    }

    /// The same for the node that is dialed.
    fn move_listener(&self) {
        *self.sides.inside.lock().unwrap() = socket();
    }
}

impl Drop for Nat {
    fn drop(&mut self) {
        self.sides.over.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
fn a_dialer_whose_address_changes_goes_on_and_nobody_is_told() {
    const STEPS: u64 = 20;
    let identities = identities(2);
    let all = Members::all(2);
    let pending = QuicMesh::bind(config(&identities[0], &all, 0, "unused:1")).unwrap();
    let nat = Nat::new(pending.local_addr());
    let other = config(&identities[1], &all, 0, &nat.inside().to_string());
    let steps = |mesh: QuicMesh, after: &dyn Fn(u64)| {
        let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
        for number in 1..=STEPS {
            step(&mut communicator, number).unwrap();
            after(number);
        }
        communicator.close();
    };
    thread::scope(|scope| {
        scope.spawn(|| steps(pending.join().unwrap(), &|_| ()));
        let dialer = QuicMesh::bind(other).unwrap().join().unwrap();
        steps(dialer, &|number| {
            if number % 5 == 0 && number < STEPS {
                nat.move_dialer();
            }
        });
    });
    assert!(nat.sides.returned.load(Ordering::Relaxed) > 0, "the last five steps went by the last address");
}

#[test]
fn a_listener_whose_address_changes_is_silent_for_those_that_dialed_it_and_they_for_it() {
    let silence = Duration::from_secs(1);
    let identities = identities(2);
    let all = Members::all(2);
    let with =
        |rank: usize, rendezvous: &str| Config { silence, ..config(&identities[rank], &all, 0, rendezvous) };
    let pending = QuicMesh::bind(with(0, "unused:1")).unwrap();
    let nat = Nat::new(pending.local_addr());
    let other = with(1, &nat.inside().to_string());
    let listener = thread::spawn(move || pending.join().unwrap());
    let mut dialer = QuicMesh::bind(other).unwrap().join().unwrap();
    let mut listener = listener.join().unwrap();
    nat.move_listener();
    for (mesh, other) in [(&mut listener, Rank(1)), (&mut dialer, Rank(0))] {
        let lost = event(mesh);
        assert!(
            matches!(lost, Event::Lost(rank, Loss::Silent { deadline, .. }) if rank == other && deadline == silence),
            "{lost:?}"
        );
    }
}
