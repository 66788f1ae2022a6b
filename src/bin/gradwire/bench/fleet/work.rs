//! What ranks are measured at.

use std::sync::mpsc::Receiver;
use std::time::Instant;

use bytes::Bytes;
use gradwire::optim;
use gradwire::sync::{Config, Scheme, StepReport, Synchronizer};
use gradwire::transport::{Communicator, Operation, PeerStats, Stats, Tag};

use super::arrivals::{Arrivals, Pace};
use super::order::{Order, Said, Turn};
use super::rank::{cpu_seconds, tell};
use crate::event;
use crate::failure::Failure;
use crate::rank::hash;
use crate::task::random::Random;

/// What a turn took, from here on.
struct Meter {
    before: PeerStats,
    cpu: Option<f64>,
    started: Instant,
}

impl Meter {
    fn start(stats: Stats) -> Self {
        Self { before: stats.total(), cpu: cpu_seconds(), started: Instant::now() }
    }

    fn seconds(&self) -> f64 {
        self.started.elapsed().as_secs_f64()
    }

    /// With these `seconds`, and what the processor and the socket have done until now.
    fn turn(&self, seconds: f64, stats: Stats) -> Turn {
        let after = stats.total();
        Turn {
            seconds,
            cpu_seconds: self.cpu.zip(cpu_seconds()).map(|(before, after)| after - before),
            udp_bytes_sent: after.udp_bytes_sent - self.before.udp_bytes_sent,
            udp_bytes_lost: after.udp_bytes_lost - self.before.udp_bytes_lost,
            received: Pace::default(),
            stages: event::Seconds::default(),
            bytes: event::Bytes::default(),
        }
    }
}

/// All-to-alls, each between two barriers.
pub(super) fn exchange(
    mut communicator: Communicator,
    arrivals: &Arrivals,
    bytes: usize,
    order: &Order,
    turns: &Receiver<()>,
) -> Result<String, Failure> {
    let Order { rank, nodes, .. } = *order;
    // Shared by all peers: what is measured is the exchange, not the making of messages.
    let message: Bytes = pattern(rank).take(bytes).collect();
    let expected = vec![bytes as u64; nodes as usize];
    for turn in 0..order.turns {
        let operation = |part| Operation { step: u64::from(turn) + 1, tag: Tag(part) };
        let outgoing = vec![message.clone(); nodes as usize];
        turns.recv().map_err(Failure::work)?;
        communicator.barrier(operation(0)).map_err(Failure::work)?;
        arrivals.begin();
        let meter = Meter::start(communicator.stats());
        let received = communicator.all_to_all(operation(1), outgoing, &expected).map_err(Failure::work)?;
        let (seconds, pace) = (meter.seconds(), arrivals.pace());
        // What is counted from here on was sent by everybody.
        communicator.barrier(operation(2)).map_err(Failure::work)?;
        let turn = meter.turn(seconds, communicator.stats());
        check(rank, bytes, &received)?;
        tell(&Said::Turn(Turn { received: pace, ..turn }))?;
    }
    communicator.close();
    Ok(String::new())
}

/// Synchronised steps, which wait for each other by themselves; gives a hash of the parameters.
pub(super) fn step(
    communicator: Communicator,
    params: usize,
    codec: &str,
    order: &Order,
    turns: &Receiver<()>,
) -> Result<String, Failure> {
    let scheme: Scheme = codec.parse().map_err(Failure::work)?;
    let mut parameters: Vec<f32> = uniform(0).take(params).collect();
    let gradient: Vec<f32> = uniform(order.rank + 1).take(params).collect();
    let config = Config::new(scheme, optim::Config::AdamW(optim::AdamW::default()));
    let mut synchronizer = Synchronizer::new(communicator, config, &parameters).map_err(Failure::work)?;
    for _ in 0..order.turns {
        turns.recv().map_err(Failure::work)?;
        let meter = Meter::start(synchronizer.stats());
        let report = synchronizer.step(&gradient, 1, 1e-3, &mut parameters).map_err(Failure::work)?;
        let turn = meter.turn(meter.seconds(), synchronizer.stats());
        let StepReport { seconds: stages, .. } = report;
        tell(&Said::Turn(Turn {
            stages: event::Seconds {
                compute: 0.0,
                encode: stages.encode,
                exchange: stages.exchange,
                average: stages.average,
                optimizer: stages.optimizer,
                gather: stages.gather,
            },
            bytes: event::Bytes {
                gradient_packets: report.gradient_packet_bytes,
                parameter_packets: report.parameter_packet_bytes,
                wan_packets: report.wan_packet_bytes,
                frames: report.frame_bytes,
                udp: report.udp_bytes,
            },
            ..turn
        }))?;
    }
    synchronizer.finish().map_err(Failure::work)?;
    Ok(hash(&parameters))
}

/// Numbers in -0.01..0.01, others for each seed.
fn uniform(seed: u32) -> impl Iterator<Item = f32> {
    let mut random = Random::new(seed.into(), 0);
    std::iter::repeat_with(move || 0.01 * random.symmetric())
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
    fn gradients_are_small_and_others_for_each_rank_and_one_changed_bit_shows() {
        let numbers = |seed| uniform(seed).take(1000).collect::<Vec<f32>>();
        assert!(numbers(1).iter().all(|number| number.abs() < 0.0101), "{:?}", numbers(1));
        assert_ne!(numbers(1), numbers(2), "two ranks");
        let mut changed = numbers(1);
        changed[500] = f32::from_bits(changed[500].to_bits() ^ 1);
        assert_ne!(hash(&changed), hash(&numbers(1)), "one bit");
    }
}
