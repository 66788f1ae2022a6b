//! What a connection measures: round trips, and what was delivered and lost in each.

use std::time::{Duration, Instant};

use super::{DROWNING, EXCESS, LEAST_SLACK, NEAR, NEAR_SLACK, SLACK, STRETCH};

/// How long the shortest round trip is believed.
const BELIEVED: Duration = Duration::from_secs(10);

/// A round trip this many times the shortest one is not this connection's doing, not even with another one like it the other
/// way, both probing: their queues add up to 1.4.
const FOREIGN: f64 = 1.5;

/// Bytes of a round at least, for its share of lost ones to say something: of the few packets that end a message, one that is
/// lost at random is a large share.
const TELLING: u64 = 32 << 10;

/// Rounds with half the window after which the shortest round trip is a new one: one to empty the queue, one to see it.
const RENEWAL: u32 = 2;

/// From the acknowledgement of one packet to that of the first one sent after it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Round {
    begin: Instant,
    end: Instant,
    delivered: u64,
    lost: u64,
    shortest: Duration,
    sum: Duration,
    batches: u32,
    /// Whether the sender had nothing to send for part of it: neither its rate nor its loss says anything about the path.
    pub(super) idle: bool,
}

impl Round {
    fn new(now: Instant) -> Self {
        Self {
            begin: now,
            end: now,
            delivered: 0,
            lost: 0,
            shortest: Duration::MAX,
            sum: Duration::ZERO,
            batches: 0,
            idle: false,
        }
    }

    /// Bytes per second that arrived.
    pub(super) fn rate(&self) -> f64 {
        let seconds = self.end.saturating_duration_since(self.begin).as_secs_f64();
        if seconds > 0.0 { self.delivered as f64 / seconds } else { 0.0 }
    }

    /// What a queue that overflowed in this round leaves of the rate `before`: what arrived, but a part of it at least, so that a
    /// round that was an accident costs little. Further rounds take further parts.
    pub(super) fn left_of(&self, before: f64) -> f64 {
        let part = if self.loss() > DROWNING { 0.25 } else { 0.7 };
        self.rate().max(part * before)
    }

    /// Share of the bytes that was lost.
    pub(super) fn loss(&self) -> f64 {
        let all = self.delivered + self.lost;
        if all == 0 { 0.0 } else { self.lost as f64 / all as f64 }
    }

    /// Whether its loss is that of the path under load, and no accident.
    fn tells(&self) -> bool {
        self.batches > 0 && !self.idle && self.delivered + self.lost >= TELLING
    }

    /// How much longer than the shortest the mean round trip was: what jitter and the own scheduler add.
    fn spread(&self) -> Duration {
        if self.batches == 0 {
            Duration::ZERO
        } else {
            (self.sum / self.batches).saturating_sub(self.shortest)
        }
    }
}

#[derive(Clone, Debug)]
pub(super) struct Rounds {
    current: Round,
    /// Nothing is under way.
    resting: bool,
    /// The shortest round trip of the acknowledgements that came together.
    batch: Option<Duration>,
    ended: bool,
    /// The shortest one believed, and when one like it was last seen.
    shortest: Option<(Duration, Instant)>,
    /// The shortest one since the belief is being renewed, and rounds since.
    renewal: Option<(Duration, u32)>,
    smoothed: Duration,
    spread: Duration,
    /// Random loss of the path: what is lost while no queue stands.
    floor: f64,
    /// Rounds in a row in which a queue stood that this connection does not allow itself.
    queued: u32,
    slack: Duration,
    /// The last round trips of the current round, shortest of each batch: whether a queue is building up.
    latest: [Duration; 8],
}

impl Rounds {
    pub(super) fn new(now: Instant) -> Self {
        Self {
            current: Round::new(now),
            resting: true,
            batch: None,
            ended: false,
            shortest: None,
            renewal: None,
            smoothed: Duration::ZERO,
            spread: Duration::ZERO,
            floor: 0.0,
            queued: 0,
            slack: SLACK,
            latest: [Duration::ZERO; 8],
        }
    }

    /// The pause before what is sent after a rest belongs to no round.
    pub(super) fn sent(&mut self, now: Instant) {
        if std::mem::take(&mut self.resting) {
            self.current = Round::new(now);
        }
    }

    pub(super) fn acknowledged(&mut self, now: Instant, sent: Instant, bytes: u64) {
        self.current.delivered += bytes;
        let sample = now.saturating_duration_since(sent);
        self.batch = Some(self.batch.map_or(sample, |batch| batch.min(sample)));
        self.ended |= sent >= self.current.begin;
    }

    pub(super) fn lost(&mut self, bytes: u64) {
        self.current.lost += bytes;
    }

    /// After acknowledgements that came together; the round, if it has ended with them.
    pub(super) fn end_batch(&mut self, now: Instant, in_flight: u64, idle: bool) -> Option<Round> {
        self.resting = in_flight == 0;
        let sample = self.batch.take()?;
        self.smoothed = if self.smoothed.is_zero() { sample } else { (self.smoothed * 7 + sample) / 8 };
        match &mut self.shortest {
            // Jitter of a thirty-second is no reason to doubt it.
            Some((shortest, seen)) if sample <= *shortest + *shortest / 32 => {
                (*shortest, *seen) = (sample.min(*shortest), now);
                self.renewal = None;
            }
            Some((_, seen)) => {
                if now.saturating_duration_since(*seen) > BELIEVED && self.renewal.is_none() {
                    self.renewal = Some((sample, 0));
                }
            }
            none => {
                *none = Some((sample, now));
                self.slack = if sample < NEAR { NEAR_SLACK } else { SLACK };
            }
        }
        if let Some((renewed, _)) = &mut self.renewal {
            *renewed = sample.min(*renewed);
        }
        self.latest.rotate_left(1);
        self.latest[7] = sample;
        let current = &mut self.current;
        current.shortest = current.shortest.min(sample);
        current.sum += sample;
        current.batches += 1;
        current.idle |= idle;
        if !std::mem::take(&mut self.ended) {
            return None;
        }
        current.end = now;
        let round = std::mem::replace(current, Round::new(now));
        if let Some((renewed, rounds)) = &mut self.renewal {
            *rounds += 1;
            if *rounds > RENEWAL {
                self.shortest = Some((*renewed, now));
                self.renewal = None;
            }
        }
        self.spread = (self.spread * 3 + round.spread()) / 4;
        if !self.queue_stands(&round) {
            self.queued = 0;
        } else if self.queued > 0 || round.shortest > self.shortest().mul_f64(FOREIGN) + 2 * self.slack {
            self.queued += 1;
        }
        if !self.waits(round.shortest) {
            self.floor += (round.loss() - self.floor) / 8.0;
        }
        let most = if self.shortest() < NEAR { NEAR_SLACK } else { SLACK };
        self.slack = if self.overflows(&round) {
            (self.slack / 2).max(LEAST_SLACK)
        } else {
            self.slack.mul_f64(1.01).max(LEAST_SLACK).min(most)
        };
        Some(round)
    }

    pub(super) fn smoothed(&self) -> Duration {
        self.smoothed
    }

    pub(super) fn shortest(&self) -> Duration {
        self.shortest.map_or(Duration::ZERO, |(shortest, _)| shortest)
    }

    /// The round trip to fill: the smoothed one, as far as it is not a queue. `None` before the first.
    pub(super) fn stretched(&self) -> Option<Duration> {
        let (shortest, _) = self.shortest?;
        // In a queue of others there is no own queue to be allowed.
        let most = if self.crowded() { shortest } else { shortest.mul_f64(STRETCH) + self.spread };
        Some(self.smoothed.min(most) + self.slack)
    }

    /// Whether even the shortest round trip of `round` waited in a queue longer than this connection alone would make it.
    pub(super) fn queue_stands(&self, round: &Round) -> bool {
        round.batches > 0 && round.shortest > self.shortest().mul_f64(2.0 * STRETCH - 1.0) + 2 * self.slack
    }

    /// Whether `round` lost more than the path loses at random, and waited in some queue.
    pub(super) fn overflows(&self, round: &Round) -> bool {
        round.tells() && round.loss() > self.floor + EXCESS && self.waits(round.shortest)
    }

    /// Whether a round trip is longer than the shortest one by more than chance.
    fn waits(&self, round_trip: Duration) -> bool {
        round_trip > self.shortest().mul_f64(1.05) + LEAST_SLACK
    }

    /// Whether a queue is building up: the last eight round trips were all longer by an eighth, 4 ms at least and 16 ms at
    /// most (HyStart++, RFC 9406).
    pub(super) fn builds_up(&self) -> bool {
        let shortest = self.shortest();
        let more = (shortest / 8).clamp(Duration::from_millis(4), Duration::from_millis(16));
        self.latest.iter().all(|sample| *sample > shortest + more)
    }

    /// Whether the own queue must go, because the shortest round trip has not been seen for long: the path may have become
    /// longer, or everything that was measured since waited in a queue.
    pub(super) fn renews(&self) -> bool {
        self.renewal.is_some()
    }

    /// Whether others fill the queue: it stood for several rounds in a row.
    pub(super) fn crowded(&self) -> bool {
        self.queued >= 5
    }
}
