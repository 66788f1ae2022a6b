//! How a gradwire flow and one of TCP Cubic share a line: Mbit/s of each alone, then of both from the same node.
//!
//!     cargo run --release -p gradwire-transport --features emulate,quic --example beside_tcp -- [LINK] [SECONDS] [RATE]
//!
//! Linux, as root or under `unshare -Urn`. TCP is the system's, between two network namespaces, and begins first; gradwire
//! estimates its rate unless RATE declares one. Figures are medians of seconds, over the second half.

fn main() -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    #[cfg(target_os = "linux")]
    return linux::run();
    #[cfg(not(target_os = "linux"))]
    Err("network namespaces need Linux".into())
}

#[cfg(target_os = "linux")]
mod linux {
    use std::error::Error;
    use std::io::{Read, Write};
    use std::net::{Shutdown, TcpListener, TcpStream};
    use std::ops::Range;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::thread::{self, JoinHandle};
    use std::time::Duration;

    use bytes::Bytes;
    use gradwire_transport::quic::{Authority, Config, Congestion, QuicMesh, Rendezvous};
    use gradwire_transport::sim::{LinkConfig, Tunnel};
    use gradwire_transport::{Communicator, Cut, Limits, Operation, Pieces, Rank, Tag, World};

    type Failure = Box<dyn Error + Send + Sync>;

    const SECOND: Duration = Duration::from_secs(1);
    /// More than any line carries meanwhile.
    const ENDLESS: u64 = 1 << 40;
    const PIECE: usize = 128 << 10;

    pub(crate) fn run() -> Result<(), Failure> {
        let arguments: Vec<String> = std::env::args().skip(1).collect();
        let link: LinkConfig = arguments.first().map_or("100Mbit,40ms,0%", String::as_str).parse()?;
        let seconds = arguments.get(1).map_or(Ok(40), |text| text.parse())?;
        let congestion = match arguments.get(2) {
            Some(rate) => Congestion::Paced(rate.parse()?),
            None => Congestion::default(),
        };
        let rate = link.rate.ok_or("a line without a rate has no share")? as f64;
        println!("{link}, {congestion:?}, medians over the second half of {seconds} s");
        for (title, tcp, gradwire) in
            [("TCP alone", true, false), ("gradwire alone", false, true), ("both", true, true)]
        {
            let tunnel = Tunnel::start(2, link, 1)?;
            let tcp = tcp.then(|| Flow::tcp(&tunnel)).transpose()?;
            if tcp.is_some() && gradwire {
                // It was there before.
                thread::sleep(5 * SECOND);
            }
            let gradwire = gradwire.then(|| Flow::gradwire(&tunnel, congestion)).transpose()?;
            let mut rates = [Vec::new(), Vec::new()];
            for _ in 0..seconds {
                let flows = [tcp.as_ref(), gradwire.as_ref()];
                let before = flows.map(|flow| flow.map_or(0, Flow::bytes));
                thread::sleep(SECOND);
                for ((rates, flow), before) in rates.iter_mut().zip(flows).zip(before) {
                    rates.push(8.0 * (flow.map_or(0, Flow::bytes) - before) as f64);
                }
            }
            let measured = tunnel.carrier().take_measured();
            for (name, flow, mut rates) in
                [("TCP Cubic", tcp, rates[0].clone()), ("gradwire", gradwire, rates[1].clone())]
            {
                let Some(flow) = flow else { continue };
                let second = &mut rates.split_off(rates.len() / 2);
                second.sort_by(f64::total_cmp);
                let median = second[second.len() / 2];
                let share = 100.0 * median / rate;
                println!("{title:14}  {name:9}  {:6.1} Mbit/s, {share:4.1} % of the line", median / 1e6);
                flow.end();
            }
            println!(
                "{title:14}  the link: {:.1} Mbit/s, {:.2} ms there and back, {:.3} % lost, {:.3} % dropped by full queues, {:.2} % late",
                measured.rate_bit_s / 1e6,
                measured.round_trip.as_secs_f64() * 1e3,
                measured.loss * 100.0,
                measured.overflowed * 100.0,
                measured.late * 100.0
            );
        }
        Ok(())
    }

    /// Bytes without end from node 0 to node 1.
    struct Flow {
        /// That came.
        bytes: Arc<AtomicU64>,
        end: Box<dyn FnOnce()>,
        threads: Vec<JoinHandle<()>>,
    }

    impl Flow {
        fn tcp(tunnel: &Tunnel) -> Result<Self, Failure> {
            let listener = tunnel.within(1, || TcpListener::bind((Tunnel::address(1), 0)))??;
            let address = listener.local_addr()?;
            let mut near = tunnel.within(0, move || TcpStream::connect(address))??;
            let (mut far, _) = listener.accept()?;
            Tunnel::use_cubic(&near)?;
            let (bytes, ends) = (Arc::new(AtomicU64::new(0)), [near.try_clone()?, far.try_clone()?]);
            let counter = Arc::clone(&bytes);
            let threads = vec![
                thread::spawn(move || while near.write_all(&[0; PIECE]).is_ok() {}),
                thread::spawn(move || {
                    let mut buffer = vec![0; PIECE];
                    while let Ok(count @ 1..) = far.read(&mut buffer) {
                        counter.fetch_add(count as u64, Ordering::Relaxed);
                    }
                }),
            ];
            // An error is that it has ended already.
            let end = Box::new(move || ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both))));
            Ok(Self { bytes, end, threads })
        }

        fn gradwire(tunnel: &Tunnel, congestion: Congestion) -> Result<Self, Failure> {
            let authority = Authority::new("beside-tcp")?;
            let (bytes, stop) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicBool::new(false)));
            let mut pending = Vec::new();
            for rank in 0..2 {
                let rendezvous = Rendezvous::Address(format!("{}:4433", Tunnel::address(0)));
                let mut config = Config::new(authority.issue(rank, 2)?, World::new(rank, 2, 0)?, rendezvous);
                config.bind = Some((Tunnel::address(rank), 4433).into());
                config.congestion = congestion;
                pending.push(tunnel.within(rank, move || QuicMesh::bind(config))??);
            }
            let threads = pending.into_iter().map(|pending| {
                let pieces = Counting {
                    bytes: Arc::clone(&bytes),
                    stop: Arc::clone(&stop),
                    zeros: vec![0; PIECE].into(),
                };
                thread::spawn(move || {
                    if let Err(error) = endless(pending.join(), pieces) {
                        eprintln!("gradwire: {error}");
                    }
                })
            });
            let threads = threads.collect();
            Ok(Self { bytes, end: Box::new(move || stop.store(true, Ordering::Relaxed)), threads })
        }

        fn bytes(&self) -> u64 {
            self.bytes.load(Ordering::Relaxed)
        }

        fn end(self) {
            (self.end)();
            for thread in self.threads {
                // A panic there has been printed already.
                let _ = thread.join();
            }
        }
    }

    fn endless(
        mesh: Result<QuicMesh, impl Error + Send + Sync + 'static>,
        mut pieces: Counting,
    ) -> Result<(), Failure> {
        let limits = Limits { message_bytes: ENDLESS, ..Limits::default() };
        let mut communicator = Communicator::new(Box::new(mesh?), limits);
        let (out, into) = if communicator.world().rank() == Rank(0) { (ENDLESS, 0) } else { (0, ENDLESS) };
        let operation = Operation { step: 1, tag: Tag(0) };
        match communicator.stream(operation, &[out; 2], &[into; 2], Cut::every(PIECE), &mut pieces) {
            // Stopped here, or heard that the other one was.
            Err(_) if pieces.stop.load(Ordering::Relaxed) => Ok(()),
            ended => ended,
        }
    }

    struct Counting {
        bytes: Arc<AtomicU64>,
        stop: Arc<AtomicBool>,
        zeros: Bytes,
    }

    impl Counting {
        fn go_on(&self) -> Result<(), Failure> {
            if self.stop.load(Ordering::Relaxed) { Err("stopped".into()) } else { Ok(()) }
        }
    }

    impl Pieces for Counting {
        type Error = Failure;

        fn make(&mut self, _to: Rank, range: Range<u64>) -> Result<Bytes, Failure> {
            self.go_on()?;
            Ok(self.zeros.slice(..usize::try_from(range.end - range.start)?))
        }

        fn take(&mut self, _from: Rank, _offset: u64, bytes: Bytes) -> Result<(), Failure> {
            self.bytes.fetch_add(bytes.len() as u64, Ordering::Relaxed);
            self.go_on()
        }
    }
}
