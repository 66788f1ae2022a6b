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
    /// It was there, but had shown no sign of life for too long.
    Silent,
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
        let mut message = fault.message.clone();
        if let Some(culprit) = fault.culprit
            && !names(&message, culprit)
        {
            message = format!("rank {culprit}: {message}");
        }
        for (end, ranks) in by_end(ends) {
            let known = match ranks[..] {
                [one] if fault.culprit == Some(one) => format!("its process {}", end.describe(false)),
                _ => processes(end, &ranks),
            };
            message = format!("{message}; {known}");
        }
        return Some(message);
    }
    let strange: Vec<String> = by_end(ends).iter().map(|(end, ranks)| processes(*end, ranks)).collect();
    if !strange.is_empty() {
        return Some(format!("{}, without a message", strange.join("; ")));
    }
    let bad = ends.iter().find(|(_, end)| *end != End::Status(0));
    bad.map(|(rank, end)| format!("rank {rank}'s process {}, without a message", end.describe(false)))
}

/// "rank 3", "ranks 1 and 2", "ranks 0, 1 and 2".
pub(super) fn ranks(all: &[u32]) -> String {
    match all {
        [] => "no rank".into(),
        [one] => format!("rank {one}"),
        [most @ .., last] => {
            let most: Vec<String> = most.iter().map(u32::to_string).collect();
            format!("ranks {} and {last}", most.join(", "))
        }
    }
}

/// Whether `message` is about `rank`, and not about one whose number only begins like it.
fn names(message: &str, rank: u32) -> bool {
    let name = format!("rank {rank}");
    message
        .match_indices(&name)
        .any(|(at, _)| !message[at + name.len()..].starts_with(|next: char| next.is_ascii_digit()))
}

/// Ranks by how their process ended, without those that had nothing wrong with it.
fn by_end(ends: &[(u32, End)]) -> Vec<(End, Vec<u32>)> {
    let mut groups: Vec<(End, Vec<u32>)> = Vec::new();
    for (rank, end) in ends.iter().filter(|(_, end)| end.is_strange()) {
        match groups.iter_mut().find(|(of, _)| of == end) {
            Some((_, ranks)) => ranks.push(*rank),
            None => groups.push((*end, vec![*rank])),
        }
    }
    groups
}

fn processes(end: End, of: &[u32]) -> String {
    match of {
        [one] => format!("rank {one}'s process {}", end.describe(false)),
        _ => format!("the processes of {} {}", ranks(of), end.describe(true)),
    }
}

impl End {
    /// Whether it says more than the rank's own words: 0 and 1 are how a rank ends that could say everything itself.
    fn is_strange(self) -> bool {
        !matches!(self, Self::Status(0 | 1) | Self::Running)
    }

    /// What follows "its process", or "their processes".
    fn describe(self, many: bool) -> String {
        match (self, many) {
            (Self::Signal(number), false) => format!("was ended by signal {number}{}", name(number)),
            (Self::Signal(number), true) => format!("were ended by signal {number}{}", name(number)),
            (Self::Stopped, false) => "is stopped".into(),
            (Self::Stopped, true) => "are stopped".into(),
            (Self::Silent, false) => "does not answer".into(),
            (Self::Silent, true) => "do not answer".into(),
            (Self::Status(status), _) => format!("ended with status {status}"),
            (Self::Running, _) => "did not end".into(),
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
    fn every_stopped_rank_is_named_even_if_the_others_saw_only_one() {
        let faults = [fault(0, Some(2), "rank 2 silent for 1.0s, deadline 1.0s")];
        let ends = [(0, End::Status(1)), (1, End::Stopped), (2, End::Stopped), (3, End::Silent)];
        assert_eq!(
            of(&faults, &ends).as_deref(),
            Some(
                "rank 2 silent for 1.0s, deadline 1.0s; the processes of ranks 1 and 2 are stopped; rank 3's process \
                 does not answer"
            )
        );
        let ends = [0, 1, 2].map(|rank| (rank, End::Stopped));
        assert_eq!(
            of(&[], &ends).as_deref(),
            Some("the processes of ranks 0, 1 and 2 are stopped, without a message")
        );
    }

    #[test]
    fn what_a_rank_says_of_itself_comes_first() {
        let faults = [fault(0, Some(1), "rank 1 gave up: no device"), fault(1, Some(1), "no device")];
        assert_eq!(of(&faults, &[]).as_deref(), Some("rank 1: no device"));
        let other = [fault(1, Some(1), "no device next to rank 12")];
        assert_eq!(of(&other, &[]).as_deref(), Some("rank 1: no device next to rank 12"));
    }

    #[test]
    fn a_process_that_says_nothing_is_still_named() {
        let ends = [(0, End::Status(1)), (1, End::Signal(11))];
        assert_eq!(
            of(&[], &ends).as_deref(),
            Some("rank 1's process was ended by signal 11 (SIGSEGV), without a message")
        );
        assert_eq!(
            of(&[], &[(0, End::Status(0)), (1, End::Status(1))]).as_deref(),
            Some("rank 1's process ended with status 1, without a message")
        );
        assert_eq!(of(&[], &[(0, End::Status(0))]), None);
    }
}
