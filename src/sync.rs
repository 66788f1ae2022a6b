//! One synchronised optimizer step: where gradients meet ranks.
//!
//! **What.** [`Synchronizer::step`] takes this rank's gradient and gives back the parameters that every rank
//! gives back:
//!
//! 1. *encode*: compensate and quantize the own gradient, one packet per owner ([`crate::codec`]);
//! 2. *exchange*: all-to-all, each packet to the owner of its shard, in pieces: one is encoded when there is room for it on
//!    the way, and one of the own shard is averaged when it has come from every rank;
//! 3. *average*: the weighted mean of the own shard, weights being the ranks' sample counts
//!    ([`powersgd`] goes from the gradient to here in rounds of its own);
//! 4. *optimizer*: one step on the f32 master parameters of the own shard ([`crate::optim`]);
//! 5. *gather*: all-gather of the parameters as f32.
//!
//! Some optimizers ask for momenta instead of gradients, or for gradients as f32 in some steps ([`optim::Exchanged`](crate::optim::Exchanged)): then
//! that is what step 1 encodes.
//!
//! **Wire layout.** Step 2 sends packets ([`packet`]), step 5 bare little-endian f32. Before the first
//! step the ranks compare their settings ([`settings`]) and, where asked, agree on the codec's scale ([`scale`]).
//!
//! **Exactness.** The parameters are the same bits on every rank after every step, whatever computes the
//! codec there: packets are exact ([`crate::codec`]), and each shard's float arithmetic happens once, on its owner. They
//! are also those of a fleet of CPUs, unless a rank has its optimizer on a device ([`OptimizerOn`]).
//!
//! **Memory.** Besides state, master parameters and mean, a rank keeps a few pieces per peer ([`Config::piece_bytes`]), what
//! its mesh stores, and its own packet where it is faster than its peers. Means of whole packets keep those of all ranks,
//! (N-1)/N * n / 2 bytes of 4-bit codes: on a device, of `topk` that clips, with sites, and of [`powersgd`]. All parameters are
//! one flat vector, so that small tensors travel together and none has a price of its own.
//!
//! **Price** per step and rank, n parameters, N ranks: (N-1)/N * n / 2 bytes of 4-bit codes and
//! (N-1)/N * 4n bytes of parameters each way, in two rounds. Other codecs differ in the first number, [`powersgd`] takes
//! four rounds to the mean, and with named sites there is a [`hierarchy`] of two networks, with prices of its own.

mod checkpoint;
mod config;
mod engine;
mod error;
mod exchange;
mod gather;
mod headers;
pub mod hierarchy;
mod momentum;
mod norms;
mod optimizer;
pub mod packet;
mod packets;
pub mod powersgd;
mod report;
mod reshape;
mod restore;
pub mod scale;
mod scaling;
pub mod scheme;
mod segments;
pub mod settings;
pub mod shares;
mod stream;

use bytes::Bytes;
use gradwire_transport::{Abort, Communicator, Cut, Operation, Rank, Stats, Tag, World};

pub use checkpoint::Checkpoint;
pub use config::{Config, NonFinite, OptimizerOn, Scale};
pub use engine::Backend;
pub use error::SyncError;
pub use report::{Seconds, StepReport};
pub use restore::RestoreError;
pub use scheme::Scheme;
pub use shares::Shares;

use crate::codec::{AverageError, Gradient, Step};
use crate::optim::{Exchanged, Tensors};
use exchange::Turn;
use hierarchy::Sites;
use momentum::route;
use report::Stopwatch;
use reshape::Parts;
use shares::{Arrivals, OwnerTime};

/// Collectives of one step, in their order.
const SETTINGS: Tag = Tag(0);
/// Not in step 0, as [`SETTINGS`] are in no other: of [`hierarchy`].
const SITE: Tag = Tag(0);
const SCALE: Tag = Tag(1);
const GRADIENT: Tag = Tag(2);
const REFUSED: Tag = Tag(3);
/// Behind [`GRADIENT`], which carries the shares of the first factor, the rest of [`powersgd`]'s rounds.
const FIRST_FACTOR: Tag = Tag(4);
const SECOND_SHARES: Tag = Tag(5);
const SECOND_FACTOR: Tag = Tag(6);
const NORMS: Tag = Tag(7);
const PARAMETERS: Tag = Tag(8);
const FINISH: Tag = Tag(9);
/// After [`PARAMETERS`], of [`hierarchy`].
const RELAYED: Tag = Tag(11);
/// Behind all those, in the step in which [`shares`] are learned; [`SPEEDS`] also in step 0, where they are declared.
const RATES: Tag = Tag(12);
const SPEEDS: Tag = Tag(13);
const MOVED: Tag = Tag(14);
/// In step 0, after all that a start asks for.
const RESTORED: Tag = Tag(15);
/// Behind all others of a step: two for each call of [`Synchronizer::reshape`] after it.
const FIRST_RESHAPE: Tag = Tag(16);

/// One rank's side of the synchronised training of one flat parameter vector.
pub struct Synchronizer {
    communicator: Communicator,
    config: Config,
    /// `None` where all ranks exchange alike.
    sites: Option<Sites>,
    tensors: Tensors,
    parts: Parts,
    /// How parameters are cut.
    cut: Cut,
    /// The parameters that were sent last: their buffer is used again.
    sent: Bytes,
    /// The step that comes next.
    next: Step,
    /// By rank, in whose proportion shards are; empty for equal ones.
    weights: Vec<u32>,
    /// Whether shares that are learned have been.
    learned: bool,
    /// Calls of [`Self::reshape`] since the last step.
    reshapes: u16,
    arrivals: Arrivals,
    owner_time: OwnerTime,
}

impl Synchronizer {
    /// Compares the settings of all ranks (one all-gather of 140 bytes) and allocates the state of one rank:
    /// the codec's (1 byte per parameter for LoCo) and, for the own shard, master parameters and optimizer.
    ///
    /// `parameters`: n >= 1 f32 with the same values on every rank.
    ///
    /// # Errors
    ///
    /// No parameters, codec or optimizer parameters out of range, a rank whose settings differ (naming it
    /// and both values), a device that can't be used, or a failed exchange.
    pub fn new(
        mut communicator: Communicator,
        mut config: Config,
        parameters: &[f32],
    ) -> Result<Self, SyncError> {
        if config.scale == Scale::Auto
            && let Scheme::Codec(codec) = &mut config.scheme
        {
            // Not compared between ranks, but in every packet for as long as all gradients are zero.
            codec.set_scale_log2(0);
        }
        let world = communicator.world();
        let made = Self::check(&mut communicator, &config, parameters).and_then(|()| {
            let weights = shares::begin(&mut communicator, &config)?;
            let layout = shares::layout(parameters.len(), world, &weights, config.scheme.group());
            let tensors = config.tensors(parameters.len());
            let own = world.rank().index();
            let master = parameters[layout.range(own)].to_vec();
            Ok((weights, Parts::new(&config, &tensors, layout, own, master)?, tensors))
        });
        match made {
            Ok((weights, parts, tensors)) => Ok(Self {
                sites: Sites::new(&config.sites),
                tensors,
                parts,
                cut: gather::cut(config.piece_bytes),
                sent: Bytes::new(),
                next: Step::FIRST,
                weights,
                learned: false,
                reshapes: 0,
                arrivals: Arrivals::new(world.size() as usize),
                owner_time: OwnerTime::default(),
                config,
                communicator,
            }),
            Err(error) => {
                give_up(&mut communicator, &error);
                Err(error)
            }
        }
    }

    fn check(communicator: &mut Communicator, config: &Config, parameters: &[f32]) -> Result<(), SyncError> {
        if parameters.is_empty() {
            return Err(SyncError::Empty);
        }
        let tensors = config.tensors(parameters.len()).elements();
        if tensors != parameters.len() {
            return Err(SyncError::Tensors { given: tensors, expected: parameters.len() });
        }
        config.optimizer.validate()?;
        config.scheme.validate()?;
        let world = communicator.world();
        hierarchy::check(config, world.size())?;
        let sites = Sites::new(&config.sites).map_or(0, |sites| sites.count());
        config.shares.check(world.size() as usize, sites)?;
        let ours = settings::Settings::new(config, parameters.len());
        let expected = vec![settings::BYTES as u64; world.size() as usize];
        let operation = Operation { step: 0, tag: SETTINGS };
        let all = communicator.all_gather(operation, Bytes::copy_from_slice(&ours.encode()), &expected)?;
        world.peers().try_for_each(|rank| ours.compare(rank, &all[rank.index()]))
    }

    /// The world in which this rank takes part.
    #[must_use]
    pub fn world(&self) -> World {
        self.communicator.world()
    }

    /// What was carried so far, by peer.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.communicator.stats()
    }

    /// Codec scale in use, as the power of two of codes per gradient unit; `None` for a codec without one, and as long as
    /// no rank has had a gradient other than zero.
    #[must_use]
    pub fn scale_log2(&self) -> Option<i8> {
        self.parts.exchange.scale_log2()
    }

    /// One step: exchanges `gradient`, applies the optimizer, and writes the new parameters of all shards,
    /// the same bits on every rank, into `parameters`.
    ///
    /// `gradient` (f32, f16 or bf16) and `parameters` have the length n that the synchronizer was made with; `samples` is the
    /// weight of this rank's gradient (its batch size, 0 allowed on some ranks; at least 1 and below 2^21
    /// over all ranks); `learning_rate` is finite, not negative, and the same on every rank.
    ///
    /// # Errors
    ///
    /// [`SyncError::NonFinite`] (unless [`NonFinite::Skip`]) is the same on every rank and leaves the
    /// parameters as they were: the next step may follow. Every other error ends the exchange on all
    /// ranks, which are told who is at fault.
    pub fn step<'a>(
        &mut self,
        gradient: impl Into<Gradient<'a>>,
        samples: u32,
        learning_rate: f32,
        parameters: &mut [f32],
    ) -> Result<StepReport, SyncError> {
        let span = tracing::debug_span!("step", rank = self.world().rank().0, step = self.next.get());
        let result = span.in_scope(|| self.step_inner(gradient.into(), samples, learning_rate, parameters));
        if let Err(error) = &result
            && !matches!(error, SyncError::NonFinite { .. })
        {
            give_up(&mut self.communicator, error);
        }
        result
    }

    fn step_inner(
        &mut self,
        gradient: Gradient<'_>,
        samples: u32,
        learning_rate: f32,
        parameters: &mut [f32],
    ) -> Result<StepReport, SyncError> {
        let n = self.parts.layout.elements();
        for (what, given) in [("gradient", gradient.len()), ("parameters", parameters.len())] {
            if given != n {
                return Err(SyncError::Length { what, given, expected: n });
            }
        }
        if !(learning_rate >= 0.0 && learning_rate.is_finite()) {
            return Err(SyncError::LearningRate { value: learning_rate });
        }
        let step = self.next;
        self.next = step.next();
        self.reshapes = 0;
        let mut report = StepReport::new(step.get(), self.world().size());
        let before = self.communicator.stats().total();
        let mut watch = Stopwatch::start();
        let exchanged = self.parts.optimizer.exchanged();
        report.exchanged = exchanged;
        report.owned = self.parts.master.len();
        if let Some(momentum) = &mut self.parts.momentum {
            momentum.prepare(gradient);
            watch.lap(&mut report.seconds.encode);
        }
        let (exchange, payload) =
            route(&mut self.parts.momentum, &mut self.parts.exchange, exchanged, gradient);
        let mut turn =
            Turn { communicator: &mut self.communicator, step, report: &mut report, watch: &mut watch };
        let headers = exchange.offer(&mut turn, payload, samples, &mut self.parts.mean)?;
        for (rank, header) in headers.iter().enumerate() {
            report.nonfinite[rank] = header.nonfinite;
            report.saturated[rank] = header.saturated;
        }
        report.scale_log2 = exchange.scale_log2();
        report.reset = exchanged != Exchanged::ExactGradient && self.config.scheme.is_reset(step);
        report.skipped = report.nonfinite.iter().any(|&count| count > 0);
        let weights: Vec<u32> = headers.iter().map(|header| header.samples).collect();
        if report.skipped {
            exchange.follow(&weights, &mut self.parts.mean)?;
        }
        if let Err(error) = self.judge(&report, &weights) {
            self.wait_for_all_to_see(step);
            return Err(error);
        }

        if !report.skipped {
            let (exchange, _) =
                route(&mut self.parts.momentum, &mut self.parts.exchange, exchanged, gradient);
            if !self.parts.optimizer.average_step(
                exchange,
                &weights,
                learning_rate,
                &mut self.parts.master,
            )? {
                let mut turn = Turn {
                    communicator: &mut self.communicator,
                    step,
                    report: &mut report,
                    watch: &mut watch,
                };
                exchange.mean(&mut turn, &weights, &mut self.parts.mean)?;
                if let Some(momentum) = &mut self.parts.momentum {
                    momentum.commit();
                }
                if !self.step_by_tensors(step, learning_rate)? {
                    self.parts.optimizer.step(learning_rate, &self.parts.mean, &mut self.parts.master)?;
                }
            }
            watch.lap(&mut report.seconds.optimizer);
            let Seconds { average, optimizer, .. } = report.seconds;
            self.owner_time.note(average + optimizer, self.parts.master.len());
            self.gather(step, parameters, &mut report)?;
            watch.lap(&mut report.seconds.gather);
            self.learn_shares(step, parameters)?;
        }
        let after = self.communicator.stats().total();
        report.frame_bytes = after.frame_bytes_sent - before.frame_bytes_sent;
        report.udp_bytes = after.udp_bytes_sent - before.udp_bytes_sent;
        if hierarchy::all_apart(&self.config.sites) {
            // Without a hierarchy, which has counted what it sent to other sites.
            report.wan_packet_bytes = report.gradient_packet_bytes + report.parameter_packet_bytes;
        }
        Ok(report)
    }

    /// Ends the run: waits until every rank is here, then closes without losing a byte. Returns what was carried.
    ///
    /// # Errors
    ///
    /// If a rank does not come here.
    pub fn finish(mut self) -> Result<Stats, SyncError> {
        let operation = Operation { step: self.next.get(), tag: FINISH };
        self.communicator.barrier(operation)?;
        self.communicator.close();
        Ok(self.communicator.stats())
    }

    /// Gives up this rank's part of the run for a reason of its own: every other rank's step fails at once with
    /// "rank R `reason`", this rank being the one at fault. `reason` goes on from there ("was interrupted") and is cut
    /// to 256 bytes. Nothing happens after a failed step, which has told the others already.
    ///
    /// Dropping a synchronizer without [`finish`](Self::finish) ends the others too, but can't tell them why.
    pub fn abort(mut self, reason: &str) {
        let culprit = Some(self.world().rank());
        self.communicator.abort(&Abort { culprit, reason: reason.to_owned() });
    }

    /// What every rank finds in the same headers, and so must report alike.
    fn judge(&self, report: &StepReport, weights: &[u32]) -> Result<(), SyncError> {
        if report.skipped && self.config.nonfinite == NonFinite::Fail {
            return Err(SyncError::non_finite(report.step, self.parts.layout.elements(), &report.nonfinite));
        }
        if !report.skipped {
            AverageError::check_weights(weights)?;
        }
        Ok(())
    }

    /// Returns when every rank has the packets that this one has, or left because it had them: a caller that drops
    /// everything at the error must not take its packets from a slower rank, which would then report another one.
    fn wait_for_all_to_see(&mut self, step: Step) {
        let operation = Operation { step: step.get(), tag: REFUSED };
        if let Err(error) = self.communicator.barrier(operation) {
            tracing::debug!(%error, "a rank left after what all ranks refuse");
        }
    }
}

/// Bytes that leave this rank.
fn bytes_to_peers(outgoing: &[Bytes], own: usize) -> u64 {
    let all: usize = outgoing.iter().map(Bytes::len).sum();
    (all - outgoing[own].len()) as u64
}

/// Tells the other ranks what happened here; an [`SyncError::Exchange`] they have been told by the communicator.
fn give_up(communicator: &mut Communicator, error: &SyncError) {
    if !matches!(error, SyncError::Exchange(_)) {
        let culprit: Option<Rank> = error.culprit(communicator.world().rank());
        communicator.abort(&Abort { culprit, reason: error.reason() });
    }
}
