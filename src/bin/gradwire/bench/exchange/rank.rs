//! One rank of `bench exchange`: a process of its own that does what its parent says.

use std::io::BufRead;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, channel};
use std::time::Instant;

use bytes::Bytes;
use gradwire::transport::quic::{Config, Identity, Peers, QuicMesh, Rendezvous, Tuning};
use gradwire::transport::{Communicator, Limits, Operation, Tag, World};

use super::arrivals::Timed;
use super::order::{Meet, Order, Said, Turn};
use crate::failure::Failure;
use crate::node::parent;
use crate::say;

/// Carries out the order on stdin.
pub(crate) fn run() -> Result<(), Failure> {
    let identity = parent::identity()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::work)?;
    let order = serde_json::from_str(&line).map_err(|error| Failure::Work(format!("stdin: {error}")))?;
    exchange(identity, &order, &turns()?)
        .or_else(|failure| tell(&Said::Failed { message: failure.to_string() }))
}

fn tell(said: &Said) -> Result<(), Failure> {
    say::print(serde_json::to_string(said).map_err(Failure::work)?)
}

/// One message per further line on stdin. When that closes, the parent is gone, and so is this process.
fn turns() -> Result<Receiver<()>, Failure> {
    let (sender, turns) = channel();
    let body = move || {
        for _line in std::io::stdin().lines().map_while(Result::ok) {
            // Nobody waits for it once the last turn is over.
            let _ = sender.send(());
        }
        std::process::exit(1);
    };
    std::thread::Builder::new().name("parent".into()).spawn(body).map_err(Failure::work)?;
    Ok(turns)
}

fn exchange(identity: Identity, order: &Order, turns: &Receiver<()>) -> Result<(), Failure> {
    let Order { rank, nodes, bytes, .. } = *order;
    let pending = QuicMesh::bind(config(identity, order)?).map_err(Failure::work)?;
    tell(&Said::Listening { address: pending.local_addr() })?;
    let (mesh, arrivals) = Timed::new(pending.join().map_err(Failure::work)?);
    let mut communicator = Communicator::new(Box::new(mesh), Limits::default());
    tell(&Said::Joined)?;
    // Shared by all peers: what is measured is the exchange, not the making of messages.
    let message: Bytes = pattern(rank).take(bytes).collect();
    let expected = vec![bytes as u64; nodes as usize];
    for turn in 0..order.turns {
        let operation = |part| Operation { step: u64::from(turn) + 1, tag: Tag(part) };
        let outgoing = vec![message.clone(); nodes as usize];
        turns.recv().map_err(Failure::work)?;
        communicator.barrier(operation(0)).map_err(Failure::work)?;
        arrivals.begin();
        let (before, cpu, started) = (communicator.stats().total(), cpu_seconds(), Instant::now());
        let received = communicator.all_to_all(operation(1), outgoing, &expected).map_err(Failure::work)?;
        let (seconds, pace) = (started.elapsed().as_secs_f64(), arrivals.pace());
        // What is counted from here on was sent by everybody.
        communicator.barrier(operation(2)).map_err(Failure::work)?;
        let cpu_seconds = cpu.zip(cpu_seconds()).map(|(before, after)| after - before);
        let after = communicator.stats().total();
        check(rank, bytes, &received)?;
        tell(&Said::Turn(Turn {
            seconds,
            cpu_seconds,
            udp_bytes_sent: after.udp_bytes_sent - before.udp_bytes_sent,
            udp_bytes_lost: after.udp_bytes_lost - before.udp_bytes_lost,
            received: pace,
        }))?;
    }
    communicator.close();
    tell(&Said::Left { peak_rss_bytes: peak_rss_bytes() })
}

fn config(identity: Identity, order: &Order) -> Result<Config, Failure> {
    let rendezvous = match &order.meet {
        Meet::Address(address) => Rendezvous::Address(address.clone()),
        Meet::Peers(text) => Rendezvous::Peers(Peers::parse(text, order.nodes).map_err(Failure::work)?),
    };
    let world = World::new(order.rank, order.nodes, 0).map_err(Failure::work)?;
    let mut config = Config::new(identity, world, rendezvous);
    config.bind = Some((Ipv4Addr::LOCALHOST, 0).into());
    config.congestion = order.way.congestion(order.link_rate);
    if let Some((rate, round_trip)) = order.windows {
        config.tuning = Tuning::for_link(rate, round_trip);
    }
    Ok(config)
}

/// Length of the pattern that messages repeat: no power of two, so that a piece in a wrong place shows.
const CYCLE: usize = 251;

fn pattern(rank: u32) -> impl Iterator<Item = u8> {
    let cycle: Vec<u8> = (0..=250).map(|byte: u8| byte.wrapping_add(rank.to_le_bytes()[0])).collect();
    cycle.into_iter().cycle()
}

/// Refuses what is not what the others sent.
fn check(own: u32, bytes: usize, received: &[Bytes]) -> Result<(), Failure> {
    for (rank, message) in (0..).zip(received) {
        let cycle: Vec<u8> = pattern(rank).take(CYCLE).collect();
        let right = message.len() == bytes && message.chunks(CYCLE).all(|part| part == &cycle[..part.len()]);
        if !right {
            return Err(Failure::Work(format!("rank {own} received another message than rank {rank} sent")));
        }
    }
    Ok(())
}

/// User and system time of this process.
fn cpu_seconds() -> Option<f64> {
    let stat = std::fs::read_to_string("/proc/self/stat").ok()?;
    // Fields 14 and 15, counted after the name in brackets, in ticks of 10 ms.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace().skip(11).map(str::parse::<f64>);
    Some((fields.next()?.ok()? + fields.next()?.ok()?) / 100.0)
}

/// The most memory that this process ever had.
fn peak_rss_bytes() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok()? * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_with_a_wrong_byte_or_of_another_rank_is_noticed() {
        let message = |rank| -> Bytes { pattern(rank).take(1000).collect() };
        assert!(check(0, 1000, &[message(0), message(1)]).is_ok(), "all as sent");
        assert!(check(0, 1000, &[message(1), message(1)]).is_err(), "rank 1's for rank 0's");
        assert!(check(0, 999, &[message(0)]).is_err(), "one byte too many");
        let mut wrong = message(0).to_vec();
        wrong[777] ^= 1;
        assert!(check(0, 1000, &[wrong.into()]).is_err(), "one bit");
    }

    #[test]
    fn linux_tells_time_and_memory_of_this_process() {
        if cfg!(target_os = "linux") {
            assert!(cpu_seconds().is_some_and(|seconds| seconds < 1e6), "{:?}", cpu_seconds());
            assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 1 << 20), "{:?}", peak_rss_bytes());
        }
    }
}
