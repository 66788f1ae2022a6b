//! The processes of one run: started together, and none of them left behind, whatever happens.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;
use std::time::{Duration, Instant};

use super::verdict::End;
use crate::event::Event;
use crate::failure::Failure;
use crate::life;

/// Under this name Linux keeps the file of the running program, whatever became of the one it was started from.
const RUNNING: &str = "/proc/self/exe";

/// What comes from a process.
pub(super) enum Message {
    Event(Event),
    /// A line of its stderr: logs, or a panic.
    Line(String),
    /// It is not stopped.
    Alive,
}

/// A message, and the rank it comes from.
pub(super) type From = (u32, Message);

/// Processes by rank; dropping it kills what is still there and waits for it.
#[derive(Default)]
pub(super) struct Fleet {
    members: Vec<Member>,
}

struct Member {
    rank: u32,
    process: Child,
    end: Option<End>,
    /// Last sign of life.
    heard: Instant,
    /// Whether there was one.
    spoke: bool,
}

/// Starts a process that talks to this one.
fn spawn(mut command: Command) -> io::Result<Child> {
    let spawn = |command: &mut Command| {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C on a terminal goes to this process alone, which then ends the others in order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(command, 0);
        command.spawn()
    };
    match spawn(&mut command) {
        // This program's file was removed or replaced since it was started, as a build does.
        Err(error) if error.kind() == ErrorKind::NotFound && Path::new(RUNNING).exists() => {
            let mut again = Command::new(RUNNING);
            again.args(command.get_args());
            again.envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))));
            spawn(&mut again)
        }
        result => result,
    }
}

impl Fleet {
    /// Starts `rank` and hands it `identity`, as PEM. Its stdin stays open as long as this process lives: a node ends
    /// when it closes.
    pub(super) fn start(
        &mut self,
        rank: u32,
        command: Command,
        identity: &str,
        to: &Sender<From>,
    ) -> Result<(), Failure> {
        let mut process =
            spawn(command).map_err(|error| Failure::Work(format!("cannot start rank {rank}: {error}")))?;
        if let Some(stdin) = &mut process.stdin {
            let end = life::END_OF_IDENTITY;
            // Fits a pipe's buffer, so this does not wait. Of a process that is gone already, its end tells more.
            let _ = stdin.write_all(format!("{identity}\n{end}\n").as_bytes());
        }
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        self.members.push(Member { rank, process, end: None, heard: Instant::now(), spoke: false });
        if let Some(stdout) = stdout {
            listen(stdout, to.clone(), move |line| (rank, message(line)))?;
        }
        if let Some(stderr) = stderr {
            listen(stderr, to.clone(), move |line| (rank, Message::Line(shortened(line, MAX_LINE))))?;
        }
        Ok(())
    }

    /// Whether every process has ended; to be asked now and then.
    pub(super) fn all_ended(&mut self) -> bool {
        self.members.iter_mut().all(|member| member.poll().is_some())
    }

    /// Whether a process ended in another way than with status 0.
    pub(super) fn any_failed(&mut self) -> bool {
        self.members.iter_mut().any(|member| member.poll().is_some_and(|end| end != End::Status(0)))
    }

    /// Whether a signal ended a process.
    pub(super) fn any_killed(&mut self) -> bool {
        self.members.iter_mut().any(|member| matches!(member.poll(), Some(End::Signal(_))))
    }

    /// Ranks whose process is still there.
    pub(super) fn alive(&mut self) -> Vec<u32> {
        self.members.iter_mut().filter_map(|member| member.poll().is_none().then_some(member.rank)).collect()
    }

    /// Something came from `rank`.
    pub(super) fn heard(&mut self, rank: u32) {
        if let Some(member) = self.members.iter_mut().find(|member| member.rank == rank) {
            member.heard = Instant::now();
            member.spoke = true;
        }
    }

    /// Nobody listened for `gap`: what was not heard in it does not count as silence.
    pub(super) fn excuse(&mut self, gap: Duration) {
        for member in &mut self.members {
            member.heard += gap;
        }
    }

    /// Ranks whose process is still there, but has shown no life for `limit`, with the time it was silent. Until its
    /// first sign of life a process that is not known to be stopped may take as long as it needs to be loaded.
    pub(super) fn silent(&mut self, limit: Duration) -> Vec<(u32, Duration)> {
        self.members
            .iter_mut()
            .filter(|member| member.heard.elapsed() > limit)
            .filter(|member| member.spoke || is_stopped(member.process.id()))
            .filter_map(|member| member.poll().is_none().then(|| (member.rank, member.heard.elapsed())))
            .collect()
    }

    /// How each process ended or, if it has not, what it is doing; silent is who showed no life for `limit`.
    pub(super) fn ends(&mut self, limit: Duration) -> Vec<(u32, End)> {
        let silent = self.silent(limit);
        let of = |member: &mut Member| {
            let rank = member.rank;
            member.poll().unwrap_or_else(|| match is_stopped(member.process.id()) {
                true => End::Stopped,
                false if silent.iter().any(|(silent, _)| *silent == rank) => End::Silent,
                false => End::Running,
            })
        };
        self.members.iter_mut().map(|member| (member.rank, of(member))).collect()
    }
}

impl Member {
    fn poll(&mut self) -> Option<End> {
        if self.end.is_none()
            && let Ok(Some(status)) = self.process.try_wait()
        {
            #[cfg(unix)]
            let signal = std::os::unix::process::ExitStatusExt::signal(&status);
            #[cfg(not(unix))]
            let signal = None;
            self.end = Some(signal.map_or(End::Status(status.code().unwrap_or(-1)), End::Signal));
        }
        self.end
    }
}

impl Drop for Fleet {
    fn drop(&mut self) {
        for member in &mut self.members {
            if member.poll().is_none() {
                // SIGKILL, which ends a stopped process as well; fails only if it has just ended.
                let _ = member.process.kill();
            }
        }
        for member in &mut self.members {
            let _ = member.process.wait();
        }
    }
}

/// The longest line of a process that is shown, in bytes.
const MAX_LINE: usize = 1000;

/// The longest line of a process that is taken in, in bytes: an event has less than 1000.
const MAX_TAKEN: u64 = 1 << 20;

/// What a line of stdout means.
fn message(line: String) -> Message {
    if line.is_empty() {
        return Message::Alive;
    }
    match serde_json::from_str(&line) {
        Ok(event) => Message::Event(event),
        // Nobody can do anything with the whole of it.
        Err(error) => Message::Line(format!("what it says is no event ({error}): {}", shortened(line, 80))),
    }
}

/// At most `most` bytes of `line`.
fn shortened(mut line: String, most: usize) -> String {
    if line.len() > most {
        let end = (0..=most).rev().find(|end| line.is_char_boundary(*end)).unwrap_or(0);
        line.truncate(end);
        line.push_str("...");
    }
    line
}

/// A thread that passes lines on until the other end closes.
fn listen(
    from: impl Read + Send + 'static,
    to: Sender<From>,
    message: impl Fn(String) -> From + Send + 'static,
) -> Result<(), Failure> {
    let body = move || {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        // Bytes, because drivers and paths need not speak UTF-8, and a pipe that nobody reads stops its process.
        while from.by_ref().take(MAX_TAKEN).read_until(b'\n', &mut line).is_ok_and(|count| count > 0) {
            let text = String::from_utf8_lossy(&line);
            if to.send(message(text.trim_end_matches(['\r', '\n']).to_owned())).is_err() {
                break;
            }
            line.clear();
        }
    };
    thread::Builder::new().name("node output".into()).spawn(body).map(drop).map_err(Failure::work)
}

/// Whether a process that has not ended is stopped, where the system tells.
fn is_stopped(id: u32) -> bool {
    // The state is the letter behind the name in brackets, which may itself contain brackets.
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| rest.starts_with(['T', 't']))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_is_no_event_is_told_as_one_and_not_shown_whole() {
        for line in ["{\"event\":\"step\",\"step\":{}}".to_owned(), "x".repeat(5000), "é".repeat(5000)] {
            let Message::Line(said) = message(line) else { panic!("it is no event") };
            assert!(said.starts_with("what it says is no event (") && said.len() < 250, "{said}");
        }
        assert!(matches!(message(String::new()), Message::Alive));
        let listening = "{\"event\":\"listening\",\"address\":\"127.0.0.1:1\"}";
        assert!(matches!(message(listening.into()), Message::Event(Event::Listening { .. })));
    }
}
