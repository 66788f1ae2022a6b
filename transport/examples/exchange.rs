//! All-to-all between ranks of one process over QUIC on loopback: MB/s, CPU seconds per GB, memory.
//!
//!     cargo run --release -p gradwire-transport --example exchange -- [RANKS] [MIB_PER_PAIR] [MTU] [REPEATS] [whole]
//!
//! Rate: bytes that all ranks sent, over the time of the slowest. CPU time counts both ends. Memory: the peak beyond
//! what is sent and received, per rank. Messages are streamed into buffers that are there, or with
//! `whole` put together in new ones.

use std::error::Error;
use std::ops::Range;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::quic::{Authority, Config, QuicMesh, Rendezvous};
use gradwire_transport::{Communicator, Cut, Limits, Operation, Pieces, Rank, Tag, World};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let number = |at: usize, default: u32| arguments.get(at).map_or(Ok(default), |text| text.parse());
    let (ranks, mib, mtu, repeats) = (number(0, 2)?, number(1, 64)?, number(2, 1452)?, number(3, 5)?);
    let whole = arguments.get(4).is_some_and(|form| form == "whole");
    let mtu = u16::try_from(mtu)?;

    let authority = Authority::new("exchange")?;
    let config = |rank, rendezvous: String| -> Result<Config, Failure> {
        let world = World::new(rank, ranks, 0)?;
        let mut config = Config::new(authority.issue(rank, ranks)?, world, Rendezvous::Address(rendezvous));
        config.bind = Some(([127, 0, 0, 1], 0).into());
        config.tuning.mtu = mtu;
        Ok(config)
    };
    let first = QuicMesh::bind(config(0, String::new())?)?;
    let address = first.local_addr().to_string();
    let mut pending = vec![first];
    for rank in 1..ranks {
        pending.push(QuicMesh::bind(config(rank, address.clone())?)?);
    }
    // What is sent is the same for all, and what each receives is there before the clock starts.
    let message = Bytes::from(vec![1; mib as usize * 1_048_576]);
    let peers = f64::from(ranks.saturating_sub(1));
    let threads: Vec<_> = pending
        .into_iter()
        .map(|pending| {
            let message = message.clone();
            thread::spawn(move || exchange(pending.join()?, &message, repeats, whole))
        })
        .collect();
    let mut slowest = vec![(Duration::ZERO, 0.0f64); repeats as usize];
    for thread in threads {
        let times = thread.join().map_err(|_| "a rank panicked")??;
        for (slowest, (time, cpu)) in slowest.iter_mut().zip(times) {
            *slowest = (slowest.0.max(time), slowest.1.max(cpu));
        }
    }
    let bytes = f64::from(mib) * 1_048_576.0 * f64::from(ranks) * peers;
    for (time, cpu) in slowest {
        let rate = bytes / time.as_secs_f64() / 1e6;
        println!("{ranks} ranks, {mib} MiB per pair: {rate:.0} MB/s, {:.2} CPU s per GB", cpu / bytes * 1e9);
    }
    let payload = f64::from(mib) * (1.0 + f64::from(ranks) * peers);
    println!("memory beyond the payload: {:.0} MiB per rank", (peak_mib() - payload) / f64::from(ranks));
    Ok(())
}

/// Time and CPU time of this process for each repeat, between two barriers.
fn exchange(
    mesh: QuicMesh,
    message: &Bytes,
    repeats: u32,
    whole: bool,
) -> Result<Vec<(Duration, f64)>, Failure> {
    let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
    let (own, size) = (communicator.world().rank().index(), communicator.world().size() as usize);
    let lengths = vec![message.len() as u64; size];
    let mut copies = Copies { message: message.clone(), received: vec![Vec::new(); size] };
    if !whole {
        copies.received =
            (0..size).map(|rank| vec![2; if rank == own { 0 } else { message.len() }]).collect();
    }
    let mut times = Vec::new();
    for step in 1..=u64::from(repeats) {
        communicator.barrier(Operation { step, tag: Tag(0) })?;
        let (began, cpu) = (Instant::now(), cpu_seconds());
        let operation = Operation { step, tag: Tag(1) };
        if whole {
            communicator.all_to_all(operation, vec![message.clone(); size], &lengths)?;
        } else {
            communicator.stream(operation, &lengths, &lengths, Cut::every(1 << 20), &mut copies)?;
        }
        communicator.barrier(Operation { step, tag: Tag(2) })?;
        times.push((began.elapsed(), cpu_seconds() - cpu));
    }
    communicator.close();
    Ok(times)
}

/// Sends one message to all, and writes what comes to where it belongs.
struct Copies {
    message: Bytes,
    received: Vec<Vec<u8>>,
}

impl Pieces for Copies {
    type Error = Failure;

    fn make(&mut self, _to: Rank, range: Range<u64>) -> Result<Bytes, Failure> {
        Ok(self.message.slice(usize::try_from(range.start)?..usize::try_from(range.end)?))
    }

    fn take(&mut self, from: Rank, offset: u64, bytes: Bytes) -> Result<(), Failure> {
        let start = usize::try_from(offset)?;
        self.received[from.index()][start..start + bytes.len()].copy_from_slice(&bytes);
        Ok(())
    }
}

/// User and system time of this process, from Linux; 0 elsewhere.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15, counted after the name in parentheses, in ticks of 10 ms.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}

/// The most memory that this process had, from Linux; 0 elsewhere.
fn peak_mib() -> f64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let kib =
        status.lines().find_map(|line| line.strip_prefix("VmHWM:")?.split_whitespace().next()?.parse().ok());
    kib.map_or(0.0, |kib: f64| kib / 1024.0)
}
