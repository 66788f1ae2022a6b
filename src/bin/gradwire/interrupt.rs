//! Ctrl-C and its relatives (SIGTERM, SIGHUP): asked once, the process ends in order; twice, at once.

use std::sync::atomic::{AtomicBool, Ordering};

use crate::failure::Failure;

static ASKED: AtomicBool = AtomicBool::new(false);

/// From now on an interruption shows in [`asked`] instead of ending the process.
pub(crate) fn watch() -> Result<(), Failure> {
    ctrlc::set_handler(|| {
        if ASKED.swap(true, Ordering::SeqCst) {
            std::process::exit(1);
        }
    })
    .map_err(|error| Failure::Work(format!("cannot watch for Ctrl-C: {error}")))
}

/// Whether the user wants this process to end.
pub(crate) fn asked() -> bool {
    ASKED.load(Ordering::SeqCst)
}
