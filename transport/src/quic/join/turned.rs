//! Callers that were turned away while joining: each said once, all counted, in bounded memory.

use std::net::{IpAddr, SocketAddr};

use crate::error::clip;

/// Sources and reasons that are told apart. A stranger can vary both at will.
const MOST: usize = 64;

const REASON_BYTES: usize = 256;

#[derive(Default)]
pub(super) struct Turned {
    /// In order of first sight.
    entries: Vec<Entry>,
    /// The latest, as an index.
    latest: Option<usize>,
    /// Calls beyond what can be told apart.
    more: u64,
}

struct Entry {
    source: IpAddr,
    reason: String,
    calls: u64,
}

impl Turned {
    /// Counts a call; whether it is the first of its source and reason.
    pub(super) fn count(&mut self, address: SocketAddr, reason: &str) -> bool {
        // Not the port: it differs from process to process.
        let (source, reason) = (address.ip().to_canonical(), clip(reason, REASON_BYTES));
        let known = self.entries.iter().position(|entry| entry.source == source && entry.reason == reason);
        if let Some(index) = known {
            self.entries[index].calls += 1;
            self.latest = known;
        } else if self.entries.len() < MOST {
            self.latest = Some(self.entries.len());
            self.entries.push(Entry { source, reason: reason.to_owned(), calls: 1 });
        } else {
            self.more += 1;
        }
        known.is_none() && self.more == 0
    }

    /// The latest one, in words.
    pub(super) fn latest(&self) -> Option<String> {
        let entry = self.entries.get(self.latest?)?;
        Some(format!("a caller from {} was turned away: {}", entry.source, entry.reason))
    }

    /// Says how often, where it was more than the once that was said.
    pub(super) fn report(&self) {
        for Entry { source, reason, calls } in self.entries.iter().filter(|entry| entry.calls > 1) {
            tracing::warn!(%source, reason, calls, "turned away while joining");
        }
        if self.more > 0 {
            tracing::warn!(
                calls = self.more,
                "turned away while joining, from other sources or for other reasons"
            );
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(port: u16) -> SocketAddr {
        SocketAddr::from(([192, 0, 2, 1], port))
    }

    #[test]
    fn a_source_and_reason_is_said_once_and_the_latest_is_known() {
        let mut turned = Turned::default();
        assert_eq!(turned.latest(), None);
        assert!(turned.count(at(1), "foreign"));
        assert!(!turned.count(at(2), "foreign"), "said again for another port");
        assert!(turned.count(at(1), "late"));
        assert!(!turned.count("[::ffff:192.0.2.1]:9".parse().unwrap_or(at(0)), "foreign"));
        assert_eq!(turned.latest().as_deref(), Some("a caller from 192.0.2.1 was turned away: foreign"));
        assert_eq!(turned.entries.iter().map(|entry| entry.calls).collect::<Vec<_>>(), [3, 1]);
    }

    #[test]
    fn a_flood_of_reasons_is_bounded_in_what_is_said_and_stored() {
        let mut turned = Turned::default();
        let said = (0..10_000).filter(|i| turned.count(at(1), &format!("{i} {}", "x".repeat(1000)))).count();
        assert_eq!((said, turned.entries.len(), turned.more), (MOST, MOST, 10_000 - MOST as u64));
        assert!(turned.entries.iter().all(|entry| entry.reason.len() <= REASON_BYTES));
    }
}
