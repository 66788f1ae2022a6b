//! What befalls a world, and what follows from it for who may accuse whom: worked out from the faults alone.

use std::collections::BTreeSet;
use std::time::Duration;

use gradwire::transport::Rank;
use gradwire::transport::sim::{Fault, SimConfig};

use crate::random::Random;
use crate::{RANKS, SILENCE};

pub(crate) struct Plan {
    pub(crate) config: SimConfig,
}

impl Plan {
    /// Of ten runs about four have a fault that nobody can ride out.
    pub(crate) fn new(seed: u64) -> Self {
        let mut random = Random(seed);
        let links = [
            "1Gbit,20ms,0%",
            "100Mbit,80ms,1%",
            "1Gbit,80ms,5%,jitter=2ms",
            "10Mbit,30ms,0.1%,reorder=5%,duplicate=2%",
        ];
        let link = links[random.below(links.len() as u64) as usize].parse().unwrap();
        let faults = (0..random.below(4)).map(|_| {
            let at = Duration::from_millis(random.below(600));
            (at, fault(&mut random))
        });
        Self { config: SimConfig { link, silence: SILENCE, seed, faults: faults.collect() } }
    }

    /// The faults with their times.
    fn faults(&self) -> impl Iterator<Item = (Duration, &Fault)> {
        self.config.faults.iter().map(|(at, fault)| (*at, fault))
    }

    /// Whether something befell this rank, its own line or its way to some rank.
    pub(crate) fn befell(&self, rank: Rank) -> bool {
        self.faults().any(|(_, fault)| match fault {
            Fault::Partition { ranks, .. } => {
                // Of the two sides the smaller one is cut off.
                ranks.contains(&rank) || 2 * ranks.len() >= RANKS as usize
            }
            other => own(other) == Some(rank),
        })
    }

    pub(crate) fn is_killed(&self, rank: Rank) -> bool {
        self.faults().any(|(_, fault)| *fault == Fault::Crash(rank))
    }

    /// Whether this rank may find that it stood still for so long.
    pub(crate) fn paused(&self, rank: Rank) -> Option<Duration> {
        let stops = self.faults().filter_map(|(at, fault)| match fault {
            Fault::Stop { rank: stopped, length } if *stopped == rank => Some((at, Some(at + *length))),
            _ => None,
        });
        longest(stops.collect())
    }

    /// Whether nothing comes from `from` to `to` for the deadline.
    pub(crate) fn is_silent(&self, from: Rank, to: Rank) -> bool {
        let mute = self.faults().filter_map(|(at, fault)| match fault {
            Fault::Crash(rank) if *rank == from => Some((at, None)),
            Fault::Stop { rank, length } if *rank == from => Some((at, Some(at + *length))),
            Fault::Partition { ranks, length } if ranks.contains(&from) != ranks.contains(&to) => {
                Some((at, length.map(|length| at + length)))
            }
            _ => None,
        });
        longest(mute.collect()).is_some_and(|longest| longest >= SILENCE)
    }

    /// Whether a frame of this rank is bad, or one too many.
    pub(crate) fn sends_bad_frames(&self, rank: Rank) -> bool {
        self.faults().any(|(_, fault)| [Fault::Corrupt(rank), Fault::Repeat(rank)].contains(fault))
    }

    /// The ranks that may accuse `culprit` of what they see themselves.
    pub(crate) fn witnesses(&self, culprit: Rank) -> BTreeSet<Rank> {
        let bad = self.sends_bad_frames(culprit);
        let others = (0..RANKS).map(Rank).filter(|rank| *rank != culprit);
        others.filter(|rank| bad || self.is_silent(culprit, *rank)).collect()
    }

    /// Whether no rank has a reason to give up.
    pub(crate) fn is_harmless(&self) -> bool {
        let ranks = || (0..RANKS).map(Rank);
        ranks().all(|rank| {
            self.witnesses(rank).is_empty() && self.paused(rank).is_none_or(|paused| paused < SILENCE)
        })
    }
}

fn fault(random: &mut Random) -> Fault {
    let rank = Rank(random.below(RANKS.into()) as u32);
    let short = Duration::from_millis(random.below(9_000));
    let long = SILENCE + Duration::from_millis(1 + random.below(20_000));
    match random.below(13) {
        0 => Fault::Crash(rank),
        1 => Fault::Stop { rank, length: long },
        2 => Fault::Partition { ranks: vec![rank], length: None },
        3 => Fault::Corrupt(rank),
        4 => Fault::Repeat(rank),
        5..=7 => Fault::Stop { rank, length: short },
        8..=9 => Fault::Partition { ranks: vec![rank], length: Some(short) },
        // A site without its line to the others: on each side all see the other side silent.
        10 => {
            let count = 2 + random.below(u64::from(RANKS) / 2 - 2) as u32;
            let ranks = (0..count).map(|index| Rank((rank.0 + index) % RANKS)).collect();
            let length = [Some(short), Some(long), None][random.below(3) as usize];
            Fault::Partition { ranks, length }
        }
        _ => Fault::Slow { rank, rate: 200_000 + random.below(1_000_000) },
    }
}

/// The one rank that a fault befalls.
fn own(fault: &Fault) -> Option<Rank> {
    match fault {
        Fault::Crash(rank) | Fault::Corrupt(rank) | Fault::Repeat(rank) | Fault::Stop { rank, .. } => {
            Some(*rank)
        }
        _ => None,
    }
}

/// The longest time that spans from beginning to end (`None`: for ever) cover without a gap.
fn longest(mut spans: Vec<(Duration, Option<Duration>)>) -> Option<Duration> {
    spans.sort();
    let mut longest = None;
    let mut current: Option<(Duration, Duration)> = None;
    for (begin, end) in spans {
        let end = end.unwrap_or(Duration::MAX);
        current = Some(match current {
            Some((since, until)) if begin <= until => (since, until.max(end)),
            _ => (begin, end),
        });
        longest = longest.max(current.map(|(since, until)| until - since));
    }
    longest
}

#[test]
fn silences_that_meet_are_one_and_others_are_not() {
    let plan = |faults: &[(u64, Fault)]| {
        let faults = faults.iter().map(|(at, fault)| (Duration::from_secs(*at), fault.clone())).collect();
        let config = SimConfig { link: "1Gbit,0ms,0%".parse().unwrap(), silence: SILENCE, seed: 0, faults };
        Plan { config }
    };
    let (a, b, c) = (Rank(1), Rank(2), Rank(3));
    let stop = |rank, seconds| Fault::Stop { rank, length: Duration::from_secs(seconds) };
    let cut = |ranks: &[Rank], seconds: u64| Fault::Partition {
        ranks: ranks.to_vec(),
        length: Some(Duration::from_secs(seconds)),
    };
    let met = plan(&[(0, stop(a, 6)), (5, cut(&[a], 6))]);
    assert!(met.is_silent(a, b), "stopped and cut off for 11 s");
    assert!(!met.is_silent(b, a), "cut off for 6 s");
    assert_eq!(met.paused(a), Some(Duration::from_secs(6)));
    let apart = plan(&[(0, stop(a, 6)), (7, cut(&[a], 6))]);
    assert!(!apart.is_silent(a, b), "6 s and 6 s");
    assert!(apart.is_harmless() && !met.is_harmless(), "only one of them ends a run");
    let site = plan(&[(0, cut(&[a, b], 11))]);
    assert!(!site.is_silent(a, b) && site.is_silent(a, c) && site.is_silent(c, a), "across the cut only");
    assert!(site.befell(b) && !site.befell(c), "the smaller side is cut off");
    assert_eq!(plan(&[(3, Fault::Crash(a))]).witnesses(a).len(), RANKS as usize - 1);
}
