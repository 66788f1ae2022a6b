//! Ranks that are measured, each a process of its own, over loopback or an emulated link.

mod arrivals;
pub(super) mod link;
pub(super) mod order;
mod rank;
mod ranks;
pub(super) mod way;
mod work;

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::time::{Duration, Instant};

use gradwire::transport::quic::Authority;
use gradwire::transport::sim::{LinkConfig, LinkError};

use crate::failure::Failure;
use crate::say::note;

use link::{Emulator, LATE_SHARE, Link, Measured};
use order::{Meet, Order, Said, Turn, Work};
use ranks::Ranks;
use way::Way;

pub(crate) use rank::run as rank;

/// How long ranks may take to join and to leave, which they know better themselves.
const JOIN: Duration = Duration::from_secs(120);

/// What a fleet shall do.
#[derive(Clone, Debug)]
pub(super) struct Plan<'a> {
    pub(super) nodes: u32,
    /// Turns that are measured, after one that is not.
    pub(super) repeats: u32,
    pub(super) work: Work,
    pub(super) way: Way,
    pub(super) link: Option<&'a LinkConfig>,
    /// As it is told of its line, in bits per second.
    pub(super) link_rate: Option<NonZeroU64>,
    /// What its windows are made for, instead of the mesh's default: rate and round trip of its line.
    pub(super) windows: Option<(NonZeroU64, Duration)>,
    /// For one turn.
    pub(super) limit: Duration,
}

/// What it did.
#[derive(Debug)]
pub(super) struct Done {
    /// By turn and rank.
    pub(super) turns: Vec<Vec<Turn>>,
    pub(super) link: Option<Link>,
    /// The largest of all ranks.
    pub(super) peak_rss_bytes: Option<u64>,
}

impl Done {
    /// A figure of every turn.
    pub(super) fn each(&self, figure: impl Fn(&[Turn]) -> f64) -> Vec<f64> {
        self.turns.iter().map(|turn| figure(turn)).collect()
    }
}

impl Plan<'_> {
    /// What was done or, inside, why it was given up although nothing failed.
    pub(super) fn run(&self) -> Result<Result<Done, String>, Failure> {
        let emulator = self.link.map(|link| Emulator::start(self.nodes, link)).transpose()?;
        let ranks = self.start(emulator.as_ref())?;
        self.turns(emulator.as_ref(), ranks)
    }

    /// All ranks, joined.
    fn start(&self, emulator: Option<&Emulator>) -> Result<Ranks, Failure> {
        // Lives in this process alone: keys go to the ranks through their stdin, and never into a file.
        let authority = Authority::new("bench").map_err(Failure::work)?;
        let until = Instant::now() + JOIN;
        let late = || Failure::Work(format!("not all of {} ranks joined within {JOIN:?}", self.nodes));
        let mut ranks = Ranks::new();
        let mut rendezvous = String::new();
        for rank in 0..self.nodes {
            let meet = match emulator {
                Some(emulator) => Meet::Peers(peers(rank, self.nodes, |peer| emulator.address(rank, peer))),
                None => Meet::Address(rendezvous.clone()),
            };
            let identity = authority.issue_pem(rank, self.nodes).map_err(Failure::work)?;
            let Self { nodes, way, link_rate, windows, .. } = *self;
            let (work, turns) = (self.work.clone(), self.repeats + 1);
            ranks.start(&identity, &Order { rank, nodes, work, turns, way, link_rate, windows, meet })?;
            // Each listens before the next one is started: rank 0's address is the meeting point.
            let Some(Said::Listening { address }) = ranks.next(rank, until)? else { return Err(late()) };
            if rank == 0 {
                rendezvous = address.to_string();
            }
            if let Some(emulator) = emulator {
                emulator.place(rank, address);
            }
        }
        ranks.each(until, |said| matches!(said, Said::Joined).then_some(()))?.ok_or_else(late)?;
        Ok(ranks)
    }

    fn turns(&self, emulator: Option<&Emulator>, mut ranks: Ranks) -> Result<Result<Done, String>, Failure> {
        let mut turns: Vec<Vec<Turn>> = Vec::new();
        for number in 0..=self.repeats {
            if number <= 1
                && let Some(emulator) = emulator
            {
                // What passed until the warm-up was over is not measured.
                emulator.take_measured();
            }
            ranks.turn();
            let until = Instant::now() + self.limit;
            let turn = |said: &Said| if let Said::Turn(turn) = said { Some(*turn) } else { None };
            let Some(all) = ranks.each(until, turn)? else {
                let carried = emulator.map(|emulator| emulator.take_measured().rate_bit_s);
                return Ok(Err(self.unfinished(carried)));
            };
            turns.push(all);
        }
        let measured = emulator.map(Emulator::take_measured).unwrap_or_default();
        let left = |said: &Said| match said {
            Said::Left { peak_rss_bytes, result } => Some((*peak_rss_bytes, result.clone())),
            _ => None,
        };
        let left = ranks.each(Instant::now() + JOIN, left)?;
        let left = left.ok_or_else(|| Failure::Work(format!("not all ranks left within {JOIN:?}")))?;
        if let Some(rank) = left.iter().position(|(_, result)| *result != left[0].1) {
            return Err(Failure::Work(format!("rank {rank} has other parameters than rank 0")));
        }
        let peak_rss_bytes = left.iter().map(|(peak, _)| *peak).max().flatten();
        Ok(Ok(Done { turns: turns.split_off(1), link: self.link(measured), peak_rss_bytes }))
    }

    /// What was asked for and what was there; says so if the emulator was not up to it.
    fn link(&self, measured: Measured) -> Option<Link> {
        let link = Link::new(self.link?, measured);
        if measured.late > LATE_SHARE {
            note!(
                "the emulator handed on {:.2} % of the packets over 2 ms late, at most {:.0} ms: this machine is too slow or busy for this link",
                measured.late * 100.0,
                measured.latest_s * 1e3
            );
        }
        Some(link)
    }

    fn unfinished(&self, carried: Option<f64>) -> String {
        let carried = carried.map_or_else(String::new, |rate| {
            format!("; no node received more than {:.1} Mbit/s in any 0.1 s", rate / 1e6)
        });
        format!("one {} took longer than {:.0} s{carried}", self.work.name(), self.limit.as_secs_f64())
    }
}

/// The peers file of `rank`, with the addresses at which the emulator stands for its peers.
fn peers(rank: u32, nodes: u32, address: impl Fn(u32) -> Option<SocketAddr>) -> String {
    let entry = |peer| {
        // Its own is not looked at: it is told where to bind.
        let address = address(peer).unwrap_or(SocketAddr::from(([127, 0, 0, 1], 1)));
        format!("[[peer]]\nrank = {peer}\naddress = \"{address}\"\n")
    };
    debug_assert!(rank < nodes, "rank {rank} of {nodes}");
    (0..nodes).map(entry).collect()
}

/// Ten times as long as `link` needs for this many bytes out of one node, and a few seconds for a start without knowledge
/// of it.
pub(super) fn limit(link: Option<&LinkConfig>, bytes: f64) -> Duration {
    let rate = link.and_then(|link| link.rate).unwrap_or(0);
    if rate == 0 {
        return Duration::from_secs(600);
    }
    Duration::from_secs(10) + Duration::from_secs_f64(10.0 * 8.0 * bytes / rate as f64)
}

pub(super) fn parse_link(text: &str) -> Result<LinkConfig, String> {
    text.parse().map_err(|error: LinkError| error.reason)
}
