//! IP packets between network namespaces over an emulated network: TCP, and whatever else a system speaks.

use std::fs;
use std::io;
use std::net::Ipv4Addr;
use std::os::fd::{AsFd, OwnedFd};
use std::process::Command;
use std::sync::mpsc::{Sender, channel};
use std::thread::{self, JoinHandle};

use bytes::Bytes;
use rustix::thread::UnshareFlags;
use tun_rs::{DeviceBuilder, SyncDevice};

use super::carrier::{Carrier, Line, Packet, Ports};
use super::config::LinkConfig;

/// The name of the one device in each namespace.
const DEVICE: &str = "gradwire0";

/// Packets that may wait in a device until the emulator takes them: those that come in one turn of another thread.
const WAITING: &str = "10000";

/// Of the devices, as Ethernet has it.
const MTU: usize = 1500;

/// Packets that are taken from one device before the others have their turn.
const BATCH: usize = 128;

/// Written by the thread of each namespace, so for that one alone. TCP gets buffers for long links, and remembers
/// nothing of earlier connections.
const SETTINGS: [(&str, &str); 3] =
    [("tcp_rmem", "4096 131072 67108864"), ("tcp_wmem", "4096 65536 67108864"), ("tcp_no_metrics_save", "1")];

/// Carries the IP packets of nodes 0..n, each of which is a network namespace of its own with one address, over an
/// emulated network.
///
/// Linux, and a process that may make network namespaces and TUN devices: that of root, or one started by `unshare -Urn`
/// where the system lets users do so. Devices are set up with `ip` (iproute2). All of it ends with the last socket.
///
/// **Cost**: n + 1 threads, and two system calls per packet of at most 1500 bytes.
pub struct Tunnel {
    // Ends before the namespaces do.
    carrier: Carrier,
    namespaces: Vec<Namespace>,
}

/// A namespace, and the thread that is in it.
struct Namespace {
    /// `None` once it ends.
    work: Option<Sender<Work>>,
    thread: Option<JoinHandle<()>>,
}

type Work = Box<dyn FnOnce() + Send>;

impl Tunnel {
    /// Makes `nodes` namespaces, at most 65,000, whose lines and wires are as `link` says.
    ///
    /// # Errors
    ///
    /// What the system does not permit or does not have, by name.
    pub fn start(nodes: u32, link: LinkConfig, seed: u64) -> io::Result<Self> {
        let made: Vec<_> = (0..nodes).map(Namespace::start).collect::<io::Result<_>>()?;
        let (namespaces, devices) = made.into_iter().unzip();
        let ports = Tun { devices, buffer: vec![0; MTU] };
        Ok(Self { carrier: Carrier::start(nodes, link, seed, ports)?, namespaces })
    }

    /// The address of `node`, which other nodes reach.
    #[must_use]
    pub fn address(node: u32) -> Ipv4Addr {
        // 198.18.0.0/16 is set aside for measurements of networks.
        let [.., high, low] = (node + 1).to_be_bytes();
        Ipv4Addr::new(198, 18, high, low)
    }

    /// Does `work` on the thread that is in the namespace of `node`: sockets that it makes, and threads and processes that
    /// it starts, are that node's.
    ///
    /// # Errors
    ///
    /// There is no such node, or an earlier `work` panicked.
    pub fn within<T: Send + 'static>(
        &self,
        node: u32,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> io::Result<T> {
        let gone = || io::Error::other(format!("no node {node} of {} takes work", self.namespaces.len()));
        let namespace = self.namespaces.get(node as usize).ok_or_else(gone)?;
        let (sender, done) = channel();
        let work = move || {
            // Who asked waits for it.
            let _ = sender.send(work());
        };
        let queue = namespace.work.as_ref().ok_or_else(gone)?;
        queue.send(Box::new(work)).map_err(|_| gone())?;
        done.recv().map_err(|_| gone())
    }

    /// Makes TCP's congestion control on `socket`, of this or another network, Cubic (RFC 9438), whatever the system's is by
    /// default.
    ///
    /// # Errors
    ///
    /// The system has no Cubic.
    pub fn use_cubic(socket: &impl AsFd) -> io::Result<()> {
        rustix::net::sockopt::set_tcp_congestion(socket, "cubic")
            .map_err(io::Error::from)
            .map_err(|error| io::Error::new(error.kind(), format!("TCP Cubic: {error}")))
    }

    /// The network, to be changed and read.
    #[must_use]
    pub fn carrier(&self) -> &Carrier {
        &self.carrier
    }
}

impl Namespace {
    fn start(node: u32) -> io::Result<(Self, SyncDevice)> {
        let (work, orders) = channel::<Work>();
        let (made, device) = channel();
        let thread = thread::Builder::new().name(format!("gradwire-net-{node}")).spawn(move || {
            let device = open(node);
            let failed = device.is_err();
            // Who asked waits for it.
            let _ = made.send(device);
            if !failed {
                orders.into_iter().for_each(|work| work());
            }
        })?;
        let device = device.recv().map_err(|_| io::Error::other("a thread ended early"))??;
        Ok((Self { work: Some(work), thread: Some(thread) }, device))
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        self.work = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has been printed already.
            let _ = thread.join();
        }
    }
}

/// Moves this thread into a namespace of its own, with a device and settings.
fn open(node: u32) -> io::Result<SyncDevice> {
    let failed =
        |what: String| move |error: io::Error| io::Error::new(error.kind(), format!("{what}: {error}"));
    #[expect(deprecated, reason = "of all flags only FILES can break what other threads rely on")]
    let namespace = rustix::thread::unshare(UnshareFlags::NEWNET);
    namespace.map_err(io::Error::from).map_err(failed("a network namespace".into()))?;
    let device = DeviceBuilder::new().name(DEVICE).build_sync();
    let device = device.map_err(failed("a TUN device".into()))?;
    device.set_nonblocking(true)?;
    let address = format!("{}/16", Tunnel::address(node));
    for arguments in [
        &["address", "add", &address, "dev", DEVICE][..],
        &["link", "set", "dev", DEVICE, "mtu", &MTU.to_string(), "txqueuelen", WAITING, "up"],
        &["link", "set", "dev", "lo", "up"],
    ] {
        let command = format!("`ip {}`", arguments.join(" "));
        let output = Command::new("ip").args(arguments).output().map_err(failed(command.clone()))?;
        if !output.status.success() {
            let said = String::from_utf8_lossy(&output.stderr).trim().to_owned();
            return Err(io::Error::other(format!("{command}: {}, {said}", output.status)));
        }
    }
    for (name, value) in SETTINGS {
        let path = format!("/proc/sys/net/ipv4/{name}");
        fs::write(&path, value).map_err(failed(path))?;
    }
    Ok(device)
}

/// By node.
struct Tun {
    devices: Vec<SyncDevice>,
    buffer: Vec<u8>,
}

/// Which node an IPv4 packet is for; `None` for what else a system sends on its own, as IPv6 does.
fn destination(packet: &[u8]) -> Option<u32> {
    let &[first, ref rest @ ..] = packet else { return None };
    let address: [u8; 4] = *rest.get(15..)?.first_chunk()?;
    let [198, 18, high, low] = address else { return None };
    u32::from_be_bytes([0, 0, high, low]).checked_sub(1).filter(|_| first >> 4 == 4)
}

impl Ports for Tun {
    fn descriptors(&self) -> io::Result<Vec<OwnedFd>> {
        self.devices.iter().map(|device| device.as_fd().try_clone_to_owned()).collect()
    }

    fn receive(&mut self, index: usize, line: &mut Line<'_>) {
        let (Some(device), Ok(from)) = (self.devices.get(index), u32::try_from(index)) else { return };
        for _ in 0..BATCH {
            // Most often that there is nothing more.
            let Ok(length) = device.recv(&mut self.buffer) else { return };
            let packet = &self.buffer[..length];
            if let Some(to) = destination(packet) {
                line.put(from, to, length as u64, Bytes::copy_from_slice(packet), None);
            }
        }
    }

    fn send(&mut self, _from: u32, to: u32, packet: &Packet) {
        let Some(device) = self.devices.get(to as usize) else { return };
        // What can't be sent is lost, as on a wire.
        if let Err(error) = device.send(&packet.payload) {
            tracing::debug!(%error, to, "a packet was not handed on");
        }
    }

    fn flush(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_packet_is_for_the_node_whose_address_it_has() {
        let packet = |version: u8, address: Ipv4Addr| {
            let mut packet = vec![0; 40];
            packet[0] = version << 4 | 5;
            packet[16..20].copy_from_slice(&address.octets());
            packet
        };
        for node in [0, 1, 254, 255, 256, 64_999] {
            let packet = packet(4, Tunnel::address(node));
            assert_eq!(destination(&packet), Some(node));
            assert_eq!(destination(&packet[..20]), Some(node));
            assert_eq!(destination(&packet[..19]), None, "not a whole header");
        }
        assert_eq!(destination(&packet(6, Tunnel::address(3))), None, "IPv6");
        assert_eq!(destination(&packet(4, Ipv4Addr::new(198, 18, 0, 0))), None, "the network itself");
        assert_eq!(destination(&packet(4, Ipv4Addr::new(224, 0, 0, 22))), None, "multicast");
        assert_eq!(destination(&[]), None);
    }
}
