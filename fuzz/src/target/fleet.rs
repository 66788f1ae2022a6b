//! Runs that the targets drive: configurations, and a peer that answers at once with what the input says.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use gradwire::codec::CodecId;
use gradwire::optim;
use gradwire::sync::powersgd::{self, Shape};
use gradwire::sync::{Config, NonFinite, Scale, Scheme};
use gradwire_transport::stats::PeerStats;
use gradwire_transport::{Abort, Event, Frame, Header, Loss, Mesh, Rank, Stats, Tag, World};

use super::packet;
use crate::Recipe;

/// Of each of two matrices, whose factors too are cut into two slices of one length.
const ROWS: usize = 8;
const COLUMNS: usize = 8;

/// Parameters of a run: two shards of one length, so that a peer's answer is as long as what it got.
pub(super) fn elements(config: &Config) -> usize {
    2 * (ROWS * COLUMNS).next_multiple_of(config.scheme.group())
}

/// One of all schemes with one of all optimizers.
pub(super) fn config(recipe: &mut Recipe<'_>) -> Config {
    let optimizer = match recipe.u8() % 5 {
        0 => optim::Config::Sgd(optim::Sgd::default()),
        1 => optim::Config::AdamW(optim::AdamW::default()),
        2 => optim::Config::OneBitAdam(optim::OneBitAdam::default()),
        3 => optim::Config::OneBitLamb(optim::OneBitLamb::default()),
        _ => optim::Config::ZeroOneAdam(optim::ZeroOneAdam::default()),
    };
    let scheme = if recipe.below(CodecId::ALL.len()) == 0 {
        Scheme::PowerSgd(powersgd::Config { low_rank: 1 + recipe.u8() % 3, min_compression: 1, seed: 7 })
    } else {
        packet::codec(recipe).into()
    };
    let flags = recipe.u8();
    let mut config = Config {
        shapes: (0..2).map(|i| Shape { offset: i * ROWS * COLUMNS, rows: ROWS, columns: COLUMNS }).collect(),
        scale: if flags & 1 == 0 { Scale::Auto } else { Scale::Fixed },
        nonfinite: if flags & 2 == 0 { NonFinite::Fail } else { NonFinite::Skip },
        ..Config::new(scheme, optimizer)
    };
    if flags & 8 != 0 {
        // A unit at a time.
        config.piece_bytes = 0;
    }
    if flags & 4 != 0 {
        // Two in each shard.
        let half = elements(&config) / 2;
        config.tensors = vec![half - 10, 20, half - 10];
    }
    config
}

/// Rank 0's end of a world of two. Rank 1 answers every message with the same bytes, as an honest rank of as long a shard
/// may, except where the input says otherwise; in the end it is lost.
pub(super) struct Hostile {
    world: World,
    script: Vec<u8>,
    at: usize,
    answers: VecDeque<Event>,
    /// Whether rank 1 has only ever answered with what it got.
    pub(super) honest: Arc<AtomicBool>,
}

impl Hostile {
    pub(super) fn new(world: World, script: &[u8]) -> Self {
        let (script, honest) = (script.to_vec(), Arc::new(true.into()));
        Self { world, script, at: 0, answers: VecDeque::new(), honest }
    }

    fn answer(&mut self, frame: Frame) {
        let mut recipe = Recipe::new(&self.script[self.at..]);
        let from = Rank(1);
        let mut payload = frame.payload.to_vec();
        let mut header = Header { from, ..frame.header };
        let kind = recipe.u8();
        match kind % 64 {
            1..16 => recipe.spoil(&mut payload),
            16 => header.operation.step = recipe.u64(),
            17 => header.operation.tag = Tag(recipe.u16()),
            18 => header.total = recipe.u64(),
            19 => {
                // One operation ahead, then the answer.
                let mut early = header;
                early.operation.tag = Tag(header.operation.tag.0 + 1 + u16::from(recipe.u8() % 4));
                self.answers
                    .push_back(Event::Frame(from, Frame { header: early, payload: frame.payload.clone() }));
            }
            20 => {
                let abort = Abort { culprit: Some(Rank(recipe.u32())), reason: "its reason".into() };
                self.answers.push_back(Event::Lost(from, Loss::Aborted(abort)));
            }
            // Another length with a header that fits it.
            21 => {
                payload.extend_from_slice(recipe.bytes(9));
                header.total = payload.len() as u64;
            }
            _ => {}
        }
        header.length = payload.len() as u32;
        if payload != frame.payload || (16..22).contains(&(kind % 64)) {
            self.honest.store(false, Ordering::Relaxed);
        }
        self.at = self.script.len() - recipe.rest().len();
        self.answers.push_back(Event::Frame(from, Frame { header, payload: payload.into() }));
    }
}

impl Mesh for Hostile {
    fn world(&self) -> World {
        self.world
    }

    fn send(&mut self, _: Rank, frame: Frame) {
        self.answer(frame);
    }

    fn receive(&mut self, _: Instant) -> Event {
        self.answers.pop_front().unwrap_or(Event::Lost(
            Rank(1),
            Loss::Silent { silent: Duration::ZERO, deadline: Duration::ZERO },
        ))
    }

    fn close(&mut self, _: Option<&Abort>) {}

    fn stats(&self) -> Stats {
        Stats { peers: vec![PeerStats::default(); 2] }
    }
}

/// A finite gradient, another one in each step.
pub(super) fn gradient(elements: usize, step: u32) -> Vec<f32> {
    let value = |i: u32| (i.wrapping_mul(97).wrapping_add(step * 31) % 251) as f32 / 4096.0 - 0.03;
    (0..).take(elements).map(value).collect()
}
