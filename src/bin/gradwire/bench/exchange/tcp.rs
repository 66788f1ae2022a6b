//! The same exchange by the system's TCP, to compare with: Cubic, plain sockets, on the same emulated link.

use std::fmt;

use serde::Serialize;

use crate::bench::fleet::link::Link;

/// What TCP did, or why that is not known.
#[derive(Debug, Serialize)]
#[serde(untagged)]
pub(super) enum Tcp {
    /// As the fields of a row.
    #[cfg_attr(not(target_os = "linux"), expect(dead_code, reason = "only Linux has network namespaces"))]
    Measured {
        link: Link,
        /// Of one exchange, the median.
        seconds: f64,
        min: f64,
        max: f64,
        gb_per_s: f64,
        goodput_over_link: Option<f64>,
    },
    Missing {
        why: String,
    },
}

impl fmt::Display for Tcp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing { why } => write!(f, "TCP not available: {why}"),
            Self::Measured { link, seconds, min, max, gb_per_s, goodput_over_link } => {
                let share = goodput_over_link
                    .map_or_else(|| "-".into(), |share| format!("{:.1} % of the link", 100.0 * share));
                write!(
                    f,
                    "TCP Cubic: {gb_per_s:.3} GB/s, {share}, {seconds:.3} ({min:.3} to {max:.3}) seconds; {link}",
                )
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
pub(super) fn run(_args: &super::Args) -> Tcp {
    Tcp::Missing { why: "it takes network namespaces, which only Linux has".into() }
}

#[cfg(target_os = "linux")]
pub(super) use linux::run;

#[cfg(target_os = "linux")]
mod linux {
    use std::io::{self, Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread;
    use std::time::{Duration, Instant};

    use gradwire::transport::sim::{LinkConfig, Tunnel};

    use super::super::Args;
    use super::Tcp;
    use crate::bench::fleet::limit;
    use crate::bench::fleet::link::Link;
    use crate::report::tally::median;

    /// Bytes that are written and read at a time.
    const CHUNK: usize = 256 << 10;

    pub(in super::super) fn run(args: &Args) -> Tcp {
        let Some(link) = &args.link else {
            return Tcp::Missing { why: "it is measured on an emulated link, and there is no --link".into() };
        };
        measure(args, link).unwrap_or_else(|why| Tcp::Missing { why })
    }

    fn measure(args: &Args, link: &LinkConfig) -> Result<Tcp, String> {
        let tunnel = Tunnel::start(args.nodes, *link, 1).map_err(|error| error.to_string())?;
        let mut exchange =
            Exchange::start(&tunnel, args.nodes, args.bytes).map_err(|error| format!("TCP: {error}"))?;
        let (mut times, limit) =
            (Vec::new(), limit(args.link.as_ref(), args.bytes as f64 * f64::from(args.nodes - 1)));
        for number in 0..=args.repeats {
            if number <= 1 {
                // What passed until the warm-up was over is not measured.
                tunnel.carrier().take_measured();
            }
            let begun = Instant::now();
            exchange.turn(begun + limit).map_err(|came| {
                let rate = 8.0 * came as f64 / limit.as_secs_f64() / 1e6;
                format!(
                    "one exchange took longer than {:.0} s; {rate:.1} Mbit/s came to all nodes together",
                    limit.as_secs_f64()
                )
            })?;
            if number > 0 {
                times.push(begun.elapsed().as_secs_f64());
            }
        }
        let link = Link::new(link, tunnel.carrier().take_measured().into());
        let seconds = median(&mut times);
        let peers = f64::from(args.nodes - 1);
        let sent = args.bytes as f64 * peers;
        Ok(Tcp::Measured {
            seconds,
            // Sorted by the median.
            min: times.first().copied().unwrap_or(0.0),
            max: times.last().copied().unwrap_or(0.0),
            gb_per_s: sent * f64::from(args.nodes) / seconds / 1e9,
            goodput_over_link: (link.rate_bit_s > 0).then(|| 8.0 * sent / seconds / link.rate_bit_s as f64),
            link,
        })
    }

    /// A connection per pair of nodes, with a thread for each end and way.
    struct Exchange {
        ends: Vec<TcpStream>,
        begin: Vec<Sender<()>>,
        done: Receiver<()>,
        received: Arc<AtomicU64>,
    }

    impl Exchange {
        fn start(tunnel: &Tunnel, nodes: u32, bytes: usize) -> io::Result<Self> {
            let (over, done) = channel();
            let mut exchange = Self { ends: Vec::new(), begin: Vec::new(), done, received: Arc::default() };
            for (node, peer) in (0..nodes).flat_map(|node| (node + 1..nodes).map(move |peer| (node, peer))) {
                let listener =
                    tunnel.within(peer, move || TcpListener::bind((Tunnel::address(peer), 0)))??;
                let address = listener.local_addr()?;
                let near = tunnel.within(node, move || TcpStream::connect(address))??;
                let (far, _) = listener.accept()?;
                for end in [near, far] {
                    Tunnel::use_cubic(&end)?;
                    let (mut reader, mut writer) = (end.try_clone()?, end.try_clone()?);
                    let received = Arc::clone(&exchange.received);
                    exchange.ends.push(end);
                    exchange.thread(over.clone(), move || send(&mut writer, bytes))?;
                    exchange.thread(over.clone(), move || receive(&mut reader, bytes, &received))?;
                }
            }
            Ok(exchange)
        }

        /// Does `work` in every turn, until that fails.
        fn thread(
            &mut self,
            over: Sender<()>,
            mut work: impl FnMut() -> io::Result<()> + Send + 'static,
        ) -> io::Result<()> {
            let (begin, turns) = channel();
            self.begin.push(begin);
            let body = move || {
                for () in turns {
                    if work().is_err() || over.send(()).is_err() {
                        return;
                    }
                }
            };
            thread::Builder::new().name("tcp".into()).spawn(body).map(drop)
        }

        /// One exchange. An error is the number of bytes that came until `until`.
        fn turn(&mut self, until: Instant) -> Result<(), u64> {
            let before = self.received.load(Ordering::Relaxed);
            for begin in &self.begin {
                // A thread that is gone is missed below.
                let _ = begin.send(());
            }
            for _ in &self.begin {
                let wait = until.saturating_duration_since(Instant::now()).max(Duration::from_nanos(1));
                self.done.recv_timeout(wait).map_err(|_| self.received.load(Ordering::Relaxed) - before)?;
            }
            Ok(())
        }
    }

    impl Drop for Exchange {
        fn drop(&mut self) {
            for end in &self.ends {
                // Ends the threads that still wait for bytes or room.
                let _ = end.shutdown(Shutdown::Both);
            }
        }
    }

    fn send(stream: &mut TcpStream, bytes: usize) -> io::Result<()> {
        let chunk = vec![0x5A; CHUNK.min(bytes)];
        let mut left = bytes;
        while left > 0 {
            let now = left.min(chunk.len());
            stream.write_all(&chunk[..now])?;
            left -= now;
        }
        Ok(())
    }

    fn receive(stream: &mut TcpStream, bytes: usize, received: &AtomicU64) -> io::Result<()> {
        let mut chunk = vec![0; CHUNK.min(bytes)];
        let mut left = bytes;
        while left > 0 {
            let most = left.min(chunk.len());
            let now = stream.read(&mut chunk[..most])?;
            if now == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            received.fetch_add(now as u64, Ordering::Relaxed);
            left -= now;
        }
        Ok(())
    }
}
