//! Ctrl-C and its relatives (SIGTERM, SIGHUP): asked once, the process ends in order; twice, at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;
use crate::say::note;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on an interruption shows in [`asked`], and calls `tell` once, on a thread of its own, instead of ending the process.
pub(crate) fn watch(mut tell: impl FnMut() + Send + 'static) -> Result<(), Failure> {
    ctrlc::set_handler(move || {
        if ASKED.swap(true, Ordering::SeqCst) {
            note!("interrupted twice: ends at once");
            std::process::exit(1);
        }
        tell();
    })
    .map_err(|error| Failure::Work(format!("cannot watch for Ctrl-C: {error}")))
}

/// Whether the user wants this process to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
