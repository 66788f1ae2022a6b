//! A bar on a terminal, a line now and then elsewhere.

use std::fmt::Write;

use indicatif::{HumanDuration, ProgressBar, ProgressDrawTarget, ProgressState, ProgressStyle};

use crate::event::Step;
use crate::milestone;
use crate::report::summary;
use crate::say::note;

/// How far one run is.
pub(super) struct Progress {
    bar: ProgressBar,
    codec: String,
    steps: u64,
}

impl Progress {
    pub(super) fn new(codec: &str, steps: u64) -> Self {
        // Draws on stderr, and nothing at all if that is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        let template = "{prefix:5} {wide_bar} {pos}/{len} steps  {msg}{left}";
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.with_key("left", left));
        }
        bar.set_prefix(codec.to_owned());
        Self { bar, codec: codec.to_owned(), steps }
    }

    /// A line that stays, above the bar.
    pub(super) fn say(&self, line: &str) {
        self.bar.suspend(|| note!("{line}"));
    }

    /// Counts the steps of rank 0.
    pub(super) fn step(&self, step: &Step) {
        if step.rank != 0 {
            return;
        }
        if self.bar.is_hidden() {
            if let Some(line) = milestone::line(step.step, self.steps, step.loss) {
                note!("{}: {line} on rank 0", self.codec);
            }
            return;
        }
        self.bar.set_message(format!("loss {} on rank 0", summary::loss(step.loss.into())));
        self.bar.set_position(step.step);
    }

    pub(super) fn finish(&self) {
        self.bar.finish_and_clear();
    }
}

impl Drop for Progress {
    /// A failed run leaves no half bar behind.
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// The time to go, once there is a step to estimate it by.
fn left(state: &ProgressState, out: &mut dyn Write) {
    let eta = state.eta();
    if state.pos() > 0 && !eta.is_zero() {
        // A line that cannot be written is drawn again with the next step.
        let _ = write!(out, "  {:#} left", HumanDuration(eta));
    }
}
