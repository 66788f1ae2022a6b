//! All-to-all between ranks of one process over QUIC on loopback: GB/s, CPU seconds per GB.
//!
//!     cargo run --release -p gradwire-transport --example exchange -- [RANKS] [MIB_PER_PAIR] [MTU] [REPEATS]
//!
//! Rate: bytes that all ranks sent, over the time of the slowest. CPU time counts both ends.

use std::error::Error;
use std::thread;
use std::time::{Duration, Instant};

use bytes::Bytes;
use gradwire_transport::quic::{Authority, Config, QuicMesh, Rendezvous};
use gradwire_transport::{Communicator, Limits, Operation, Tag, World};

type Failure = Box<dyn Error + Send + Sync>;

fn main() -> Result<(), Failure> {
    let mut arguments = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let mut next = |default| arguments.next().unwrap_or(Ok(default));
    let (ranks, mib, mtu, repeats) = (next(2)?, next(64)?, u16::try_from(next(1452)?)?, next(5)?);

    let authority = Authority::new("exchange")?;
    let config = |rank, rendezvous: String| -> Result<Config, Failure> {
        let world = World::new(rank, ranks, 0)?;
        let mut config = Config::new(authority.issue(rank, ranks)?, world, Rendezvous::Address(rendezvous));
        config.bind = Some(([127, 0, 0, 1], 0).into());
        config.tuning.mtu = Some(mtu);
        Ok(config)
    };
    let first = QuicMesh::bind(config(0, String::new())?)?;
    let address = first.local_addr().to_string();
    let mut pending = vec![first];
    for rank in 1..ranks {
        pending.push(QuicMesh::bind(config(rank, address.clone())?)?);
    }
    let threads: Vec<_> = pending
        .into_iter()
        .map(|pending| thread::spawn(move || exchange(pending.join()?, mib, repeats)))
        .collect();
    let mut slowest = vec![(Duration::ZERO, 0.0f64); repeats as usize];
    for thread in threads {
        let times = thread.join().map_err(|_| "a rank panicked")??;
        for (slowest, (time, cpu)) in slowest.iter_mut().zip(times) {
            *slowest = (slowest.0.max(time), slowest.1.max(cpu));
        }
    }
    let bytes = f64::from(mib) * 1_048_576.0 * f64::from(ranks) * f64::from(ranks.saturating_sub(1));
    for (time, cpu) in slowest {
        let rate = bytes / time.as_secs_f64() / 1e6;
        println!(
            "{ranks} ranks, {mib} MiB per pair, mtu {mtu}: {rate:.0} MB/s, {:.2} CPU s per GB",
            cpu / bytes * 1e9
        );
    }
    Ok(())
}

/// Time and CPU time of this process for each repeat, between two barriers.
fn exchange(mesh: QuicMesh, mib: u32, repeats: u32) -> Result<Vec<(Duration, f64)>, Failure> {
    let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
    let size = communicator.world().size() as usize;
    let message = Bytes::from(vec![1; mib as usize * 1_048_576]);
    let expected = vec![message.len() as u64; size];
    let mut times = Vec::new();
    for step in 1..=u64::from(repeats) {
        communicator.barrier(Operation { step, tag: Tag(0) })?;
        let (began, cpu) = (Instant::now(), cpu_seconds());
        communicator.all_to_all(Operation { step, tag: Tag(1) }, vec![message.clone(); size], &expected)?;
        communicator.barrier(Operation { step, tag: Tag(2) })?;
        times.push((began.elapsed(), cpu_seconds() - cpu));
    }
    communicator.close();
    Ok(times)
}

/// User and system time of this process, from Linux; 0 elsewhere.
fn cpu_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // Fields 14 and 15, counted after the name in parentheses, in ticks of 10 ms.
    let fields = stat.rsplit_once(')').map_or("", |(_, rest)| rest).split_whitespace().skip(11).take(2);
    fields.filter_map(|field| field.parse::<f64>().ok()).sum::<f64>() / 100.0
}
