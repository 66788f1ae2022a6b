//! Whether what the ranks say of a run is what its faults explain.

use gradwire::sync::SyncError;
use gradwire::transport::{ExchangeError, FrameError, Loss, Rank};

use crate::SILENCE;
use crate::plan::Plan;

/// What became of one rank.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// All steps, and the end of the run together with all others.
    Parameters(Vec<u32>),
    /// All steps; at the end of the run others were missing.
    Unfinished(Vec<u32>, SyncError),
    Error(SyncError),
    Killed,
}

impl Outcome {
    fn error(&self) -> Option<&SyncError> {
        match self {
            Self::Unfinished(_, error) | Self::Error(error) => Some(error),
            Self::Parameters(_) | Self::Killed => None,
        }
    }

    pub(crate) fn parameters(&self) -> Option<&[u32]> {
        match self {
            Self::Parameters(parameters) | Self::Unfinished(parameters, _) => Some(parameters),
            Self::Error(_) | Self::Killed => None,
        }
    }
}

/// What is wrong with the outcomes of a run, if anything. Each rank has the right bits or an error that the plan explains:
///
/// - who says what it saw itself names a rank whose frames could not come for the deadline, or one that sent a bad one;
/// - who was told names a rank which something befell, or which it can't hear itself, and the teller says the same;
/// - who names nobody stood still itself, for as long as it says.
pub(crate) fn verdict(plan: &Plan, outcomes: &[Outcome], expected: &[u32]) -> Result<(), String> {
    for (rank, outcome) in (0..).map(Rank).zip(outcomes) {
        if outcome.parameters().is_some_and(|parameters| parameters != expected) {
            return Err(format!("rank {rank} has wrong bits"));
        }
        if matches!(outcome, Outcome::Killed) && !plan.is_killed(rank) {
            return Err(format!("rank {rank} was killed without a fault"));
        }
        let Some(error) = outcome.error() else { continue };
        if plan.is_harmless() {
            return Err(format!("rank {rank}: {error}; all that happened can be ridden out"));
        }
        judge(plan, outcomes, rank, error).map_err(|why| format!("rank {rank}: {error}; {why}"))?;
    }
    Ok(())
}

fn judge(plan: &Plan, outcomes: &[Outcome], rank: Rank, error: &SyncError) -> Result<(), String> {
    let SyncError::Exchange(error) = error else { return Err("no error of the exchange".into()) };
    let held = |holds: bool, why: &str| if holds { Ok(()) } else { Err(why.to_owned()) };
    match error {
        ExchangeError::Silent { rank: culprit, silent, deadline, .. } => {
            held((*deadline, *silent >= SILENCE) == (SILENCE, true), "silent for less than the deadline")?;
            held(plan.is_silent(*culprit, rank), "no fault kept its frames away for so long")
        }
        ExchangeError::Frame { rank: culprit, source, .. } => {
            let expected = matches!(
                source,
                FrameError::Checksum { .. } | FrameError::Repeated { .. } | FrameError::OutOfOrder { .. }
            );
            held(expected, "no fault makes such a frame")?;
            held(plan.sends_bad_frames(*culprit), "no fault made its frames bad")
        }
        ExchangeError::Lost { loss: Loss::Paused { paused }, .. } => held(
            *paused >= SILENCE && plan.paused(rank) == Some(*paused),
            "it did not stand still for so long",
        ),
        ExchangeError::Aborted { by, abort, .. } => {
            let culprit = abort.culprit.ok_or("nobody is named")?;
            let cut_off = plan.is_silent(culprit, rank);
            held(plan.befell(culprit) || cut_off, "nothing befell that rank, nor the way from it")?;
            let stood_still = plan.paused(culprit).is_some_and(|paused| paused >= SILENCE);
            let seen = stood_still || !plan.witnesses(culprit).is_empty();
            held(seen, "nobody can have seen that rank at fault")?;
            let theirs = outcomes[by.index()].error().map(|error| named(error, *by));
            held(theirs == Some(Some(culprit)), &format!("rank {by} itself names {theirs:?}"))
        }
        _ => Err("no fault explains it".into()),
    }
}

/// Who is at fault by an error of `rank`; that rank itself where it stood still.
fn named(error: &SyncError, rank: Rank) -> Option<Rank> {
    match error {
        SyncError::Exchange(ExchangeError::Lost { loss: Loss::Paused { .. }, .. }) => Some(rank),
        SyncError::Exchange(error) => error.culprit(),
        _ => None,
    }
}

/// Outcomes of many runs.
#[derive(Default)]
pub(crate) struct Tally {
    /// Runs in which every rank had the right bits and saw the end.
    pub(crate) right: u64,
    /// Runs in which some rank had an error, each one explained.
    pub(crate) failed: u64,
    /// What was wrong, by seed.
    pub(crate) wrong: Vec<(u64, String)>,
}

impl Tally {
    pub(crate) fn count(
        &mut self,
        seed: u64,
        plan: &Plan,
        run: Result<Vec<Outcome>, String>,
        expected: &[u32],
    ) {
        let judged = run.and_then(|outcomes| verdict(plan, &outcomes, expected).map(|()| outcomes));
        match judged {
            Err(wrong) => {
                println!("seed {seed} is wrong: {wrong}");
                self.wrong.push((seed, wrong));
            }
            Ok(outcomes) if outcomes.iter().all(|outcome| matches!(outcome, Outcome::Parameters(_))) => {
                self.right += 1
            }
            Ok(_) => self.failed += 1,
        }
    }
}
