//! A bar on a terminal, nothing elsewhere.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::event::Step;

/// The bar of one run.
pub(super) struct Progress(ProgressBar);

impl Progress {
    pub(super) fn new(codec: &str, steps: u64) -> Self {
        // Draws on stderr, and nothing at all if that is not a terminal.
        let bar = ProgressBar::with_draw_target(Some(steps), ProgressDrawTarget::stderr());
        if let Ok(style) =
            ProgressStyle::with_template("{prefix:5} {wide_bar} {pos}/{len} steps  {msg}  {eta} left")
        {
            bar.set_style(style);
        }
        bar.set_prefix(codec.to_owned());
        Self(bar)
    }

    /// A line that stays, above the bar.
    pub(super) fn say(&self, line: &str) {
        self.0.suspend(|| eprintln!("{line}"));
    }

    /// Counts the steps of rank 0.
    pub(super) fn step(&self, step: &Step) {
        if step.rank == 0 {
            self.0.set_position(step.step);
            self.0.set_message(format!("loss {:.3}", step.loss));
        }
    }

    pub(super) fn finish(&self) {
        self.0.finish_and_clear();
    }
}

impl Drop for Progress {
    /// A failed run leaves no half bar behind.
    fn drop(&mut self) {
        self.0.finish_and_clear();
    }
}
