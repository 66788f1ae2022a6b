//! One rank of a fleet: a process of its own that does what its parent says.

use std::io::BufRead;
use std::net::Ipv4Addr;
use std::sync::mpsc::{Receiver, channel};

use gradwire::transport::quic::{Config, Identity, Peers, QuicMesh, Rendezvous, Tuning};
use gradwire::transport::{Communicator, Limits, World};

use super::arrivals::Timed;
use super::order::{Meet, Order, Said, Work};
use super::work;
use crate::failure::Failure;
use crate::node::parent;
use crate::say;

/// Carries out the order on stdin.
pub(crate) fn run() -> Result<(), Failure> {
    let identity = parent::identity()?;
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line).map_err(Failure::work)?;
    let order = serde_json::from_str(&line).map_err(|error| Failure::Work(format!("stdin: {error}")))?;
    work(identity, &order, &turns()?).or_else(|failure| tell(&Said::Failed { message: failure.to_string() }))
}

pub(super) fn tell(said: &Said) -> Result<(), Failure> {
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

fn work(identity: Identity, order: &Order, turns: &Receiver<()>) -> Result<(), Failure> {
    let pending = QuicMesh::bind(config(identity, order)?).map_err(Failure::work)?;
    tell(&Said::Listening { address: pending.local_addr() })?;
    let (mesh, arrivals) = Timed::new(pending.join().map_err(Failure::work)?);
    let communicator = Communicator::new(Box::new(mesh), Limits::default());
    tell(&Said::Joined)?;
    let result = match &order.work {
        Work::Exchange { bytes } => work::exchange(communicator, &arrivals, *bytes, order, turns)?,
        Work::Step { params, codec } => work::step(communicator, *params, codec, order, turns)?,
    };
    tell(&Said::Left { peak_rss_bytes: peak_rss_bytes(), result })
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

/// User and system time of this process.
pub(super) fn cpu_seconds() -> Option<f64> {
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
    fn linux_tells_time_and_memory_of_this_process() {
        if cfg!(target_os = "linux") {
            assert!(cpu_seconds().is_some_and(|seconds| seconds < 1e6), "{:?}", cpu_seconds());
            assert!(peak_rss_bytes().is_some_and(|bytes| bytes > 1 << 20), "{:?}", peak_rss_bytes());
        }
    }
}
