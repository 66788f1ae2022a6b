//! Out of what every rank says, and how its process ended: the one line that tells what went wrong.

use crate::event::Fault;

/// What became of a rank's process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum End {
    /// It ended by itself with this status.
    Status(i32),
    /// A signal ended it that did not come from here.
    Signal(i32),
    /// It was there, but stopped (SIGSTOP).
    Stopped,
    /// It was still there when the others had given up.
    Running,
}

/// The line for `faults`, with what is known of the processes; `None` if nothing is wrong.
pub(super) fn of(faults: &[Fault], ends: &[(u32, End)]) -> Option<String> {
    // Best is who says it of itself, then who saw it, then who was told.
    let distance = |fault: &&Fault| match fault.culprit {
        Some(culprit) if culprit == fault.rank => 0,
        Some(_) if !fault.message.contains("says so") => 1,
        Some(_) => 2,
        None => 3,
    };
    if let Some(fault) = faults.iter().min_by_key(distance) {
        let end = fault.culprit.and_then(|culprit| ends.iter().find(|(rank, _)| *rank == culprit));
        let known = end.and_then(|(_, end)| end.describe());
        let mut message = fault.message.clone();
        if let Some(culprit) = fault.culprit
            && !message.contains(&format!("rank {culprit}"))
        {
            message = format!("rank {culprit}: {message}");
        }
        if let Some(known) = known {
            message = format!("{message}; its process {known}");
        }
        return Some(message);
    }
    let bad = |(_, end): &&(u32, End)| *end != End::Status(0);
    // A signal or a stop explains more than a status that followed from it.
    let worst = ends.iter().filter(bad).min_by_key(|(_, end)| matches!(end, End::Status(_) | End::Running));
    worst.map(|(rank, end)| {
        let end = end.describe().unwrap_or_else(|| "did not end".into());
        format!("rank {rank}'s process {end}, without a message")
    })
}

impl End {
    /// Says what is out of the ordinary: `None` for a process that had nothing wrong with it.
    fn describe(self) -> Option<String> {
        match self {
            Self::Signal(number) => Some(format!("was ended by signal {number}{}", name(number))),
            Self::Stopped => Some("is stopped".into()),
            // 0 and 1 are how a rank ends that could say everything itself.
            Self::Status(0 | 1) | Self::Running => None,
            Self::Status(status) => Some(format!("ended with status {status}")),
        }
    }
}

/// Names that have the same number on Linux and macOS.
fn name(signal: i32) -> &'static str {
    match signal {
        1 => " (SIGHUP)",
        2 => " (SIGINT)",
        3 => " (SIGQUIT)",
        4 => " (SIGILL)",
        6 => " (SIGABRT)",
        8 => " (SIGFPE)",
        9 => " (SIGKILL)",
        11 => " (SIGSEGV)",
        13 => " (SIGPIPE)",
        15 => " (SIGTERM)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fault(rank: u32, culprit: Option<u32>, message: &str) -> Fault {
        Fault { rank, culprit, message: message.into() }
    }

    #[test]
    fn a_killed_rank_is_named_once_with_its_signal() {
        let faults = [
            fault(1, Some(2), "rank 2 silent for 1.0s (rank 0 says so, step 5)"),
            fault(0, Some(2), "rank 2 silent for 1.0s, deadline 1.0s"),
        ];
        let ends = [(0, End::Status(1)), (1, End::Status(1)), (2, End::Signal(9))];
        assert_eq!(
            of(&faults, &ends).as_deref(),
            Some("rank 2 silent for 1.0s, deadline 1.0s; its process was ended by signal 9 (SIGKILL)")
        );
    }

    #[test]
    fn what_a_rank_says_of_itself_comes_first() {
        let faults = [fault(0, Some(1), "rank 1 gave up: no device"), fault(1, Some(1), "no device")];
        assert_eq!(of(&faults, &[]).as_deref(), Some("rank 1: no device"));
    }

    #[test]
    fn a_process_that_says_nothing_is_still_named() {
        let ends = [(0, End::Status(1)), (1, End::Signal(11))];
        assert_eq!(
            of(&[], &ends).as_deref(),
            Some("rank 1's process was ended by signal 11 (SIGSEGV), without a message")
        );
        assert_eq!(of(&[], &[(0, End::Status(0))]), None);
    }
}
