//! The processes of one fleet, heard together; none is left behind.

use std::collections::VecDeque;
use std::io::{BufRead, BufReader, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Instant;

use super::order::{Order, Said};
use crate::failure::Failure;
use crate::life::END_OF_IDENTITY;

/// Dropping it ends the processes.
pub(super) struct Ranks {
    processes: Vec<Child>,
    /// What each rank said and nobody asked for yet: one may be ahead of another.
    said: Vec<VecDeque<Said>>,
    /// Kept so that the inbox never closes.
    sender: Sender<Heard>,
    inbox: Receiver<Heard>,
}

/// What a rank said, or why it will say no more.
type Heard = (u32, Result<Said, String>);

impl Ranks {
    pub(super) fn new() -> Self {
        let (sender, inbox) = channel();
        Self { processes: Vec::new(), said: Vec::new(), sender, inbox }
    }

    /// Starts a process with this identity, as PEM, and this order. Ranks are started in order.
    pub(super) fn start(&mut self, identity: &str, order: &Order) -> Result<(), Failure> {
        let rank = order.rank;
        let failed = |error| Failure::Work(format!("cannot start rank {rank}: {error}"));
        let program = std::env::current_exe().map_err(failed)?;
        let mut command = Command::new(program);
        command.args(["bench", "rank"]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().map_err(failed)?;
        let order = serde_json::to_string(order).map_err(Failure::work)?;
        let stdout = process.stdout.take();
        self.processes.push(process);
        self.said.push(VecDeque::new());
        self.write(rank, &format!("{identity}\n{END_OF_IDENTITY}\n{order}\n"));
        let to = self.sender.clone();
        let listen = move || {
            for line in BufReader::new(stdout.into_iter().next()?).lines().map_while(Result::ok) {
                let said = match serde_json::from_str(&line) {
                    Ok(Said::Failed { message }) => Err(message),
                    Ok(said) => Ok(said),
                    Err(error) => Err(format!("said what nobody understands: {error}")),
                };
                // Its end is no news then, and may be heard before the others' last words.
                let last = matches!(said, Ok(Said::Left { .. }) | Err(_));
                to.send((rank, said)).ok()?;
                if last {
                    return Some(());
                }
            }
            to.send((rank, Err("ended before its turns were done".into()))).ok()
        };
        let thread = std::thread::Builder::new().name("rank output".into());
        thread.spawn(listen).map(drop).map_err(Failure::work)
    }

    /// Begins the next turn.
    pub(super) fn turn(&mut self) {
        for rank in (0..).take(self.processes.len()) {
            self.write(rank, "turn\n");
        }
    }

    /// Of a process that is gone, its end tells more than that this failed.
    fn write(&mut self, rank: u32, text: &str) {
        if let Some(stdin) = self.processes.get_mut(rank as usize).and_then(|process| process.stdin.as_mut())
        {
            let _ = stdin.write_all(text.as_bytes());
        }
    }

    /// The next that `rank` says, `None` if it says nothing until then.
    ///
    /// # Errors
    ///
    /// If any rank gave up or ended.
    pub(super) fn next(&mut self, rank: u32, until: Instant) -> Result<Option<Said>, Failure> {
        loop {
            if let Some(said) = self.said.get_mut(rank as usize).and_then(VecDeque::pop_front) {
                return Ok(Some(said));
            }
            match self.inbox.recv_timeout(until.saturating_duration_since(Instant::now())) {
                Ok((from, Ok(said))) => self.said[from as usize].push_back(said),
                Ok((from, Err(why))) => return Err(Failure::Work(format!("rank {from}: {why}"))),
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => return Ok(None),
            }
        }
    }

    /// What `wanted` finds in the next that each rank says, by rank; `None` if one says nothing until then.
    ///
    /// # Errors
    ///
    /// As [`next`](Self::next), and if a rank says something else.
    pub(super) fn each<T>(
        &mut self,
        until: Instant,
        mut wanted: impl FnMut(&Said) -> Option<T>,
    ) -> Result<Option<Vec<T>>, Failure> {
        let mut found = Vec::new();
        for rank in (0..).take(self.said.len()) {
            let Some(said) = self.next(rank, until)? else { return Ok(None) };
            let unexpected = || Failure::Work(format!("rank {rank} said out of turn: {said:?}"));
            found.push(wanted(&said).ok_or_else(unexpected)?);
        }
        Ok(Some(found))
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        for process in &mut self.processes {
            // Fails only if it has just ended.
            let _ = process.kill();
        }
        for process in &mut self.processes {
            let _ = process.wait();
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::time::Duration;

    use super::*;

    fn joined(said: &Said) -> Option<()> {
        matches!(said, Said::Joined).then_some(())
    }

    fn left(said: &Said) -> Option<Option<u64>> {
        if let Said::Left { peak_rss_bytes, .. } = said { Some(*peak_rss_bytes) } else { None }
    }

    #[test]
    fn what_a_rank_says_before_another_has_come_so_far_is_kept() {
        let mut ranks = Ranks::new();
        ranks.said.resize_with(2, VecDeque::new);
        let soon = || Instant::now() + Duration::from_millis(10);
        let last = |peak| Ok(Said::Left { peak_rss_bytes: Some(peak), result: String::new() });
        for heard in [(1, Ok(Said::Joined)), (1, last(11)), (0, Ok(Said::Joined))] {
            ranks.sender.send(heard).unwrap();
        }
        assert_eq!(ranks.each(soon(), joined).unwrap(), Some(vec![(), ()]));
        assert_eq!(ranks.each(soon(), left).unwrap(), None, "rank 0 has not left");
        ranks.sender.send((0, last(10))).unwrap();
        ranks.sender.send((1, last(11))).unwrap();
        assert_eq!(ranks.each(soon(), left).unwrap(), Some(vec![Some(10), Some(11)]));
        ranks.sender.send((0, Ok(Said::Joined))).unwrap();
        assert!(ranks.each(soon(), left).is_err(), "that is not what was asked for");
        ranks.sender.send((1, Err("gave up".into()))).unwrap();
        assert_eq!(ranks.each(soon(), joined).unwrap_err().to_string(), "rank 1: gave up");
    }
}
