//! The processes of one run: started together, and none of them left behind, whatever happens.

use std::io::{BufRead, BufReader, Read};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::Sender;
use std::thread;

use super::verdict::End;
use crate::event::Event;
use crate::failure::Failure;

/// What comes from a process.
pub(super) enum Message {
    Event(Event),
    /// A line of its stderr: logs, or a panic.
    Line(u32, String),
}

/// Processes by rank; dropping it kills what is still there and waits for it.
#[derive(Default)]
pub(super) struct Fleet {
    members: Vec<Member>,
}

struct Member {
    rank: u32,
    process: Child,
    end: Option<End>,
}

impl Fleet {
    /// Starts `rank`. Its stdin stays open as long as this process lives: a node ends when it closes.
    pub(super) fn start(
        &mut self,
        rank: u32,
        mut command: Command,
        to: &Sender<Message>,
    ) -> Result<(), Failure> {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Ctrl-C on a terminal goes to this process alone, which then ends the others in order.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut command, 0);
        let mut process =
            command.spawn().map_err(|error| Failure::Work(format!("cannot start rank {rank}: {error}")))?;
        let (stdout, stderr) = (process.stdout.take(), process.stderr.take());
        self.members.push(Member { rank, process, end: None });
        if let Some(stdout) = stdout {
            listen(stdout, to.clone(), move |line| match serde_json::from_str(&line) {
                Ok(event) => Message::Event(event),
                Err(_) => Message::Line(rank, line),
            })?;
        }
        if let Some(stderr) = stderr {
            listen(stderr, to.clone(), move |line| Message::Line(rank, line))?;
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

    /// Ranks whose process is still there.
    pub(super) fn alive(&mut self) -> Vec<u32> {
        self.members.iter_mut().filter_map(|member| member.poll().is_none().then_some(member.rank)).collect()
    }

    /// How each process ended or, if it has not, what it is doing.
    pub(super) fn ends(&mut self) -> Vec<(u32, End)> {
        self.members
            .iter_mut()
            .map(|member| (member.rank, member.poll().unwrap_or_else(|| state(member.process.id()))))
            .collect()
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

/// A thread that passes lines on until the other end closes.
fn listen(
    from: impl Read + Send + 'static,
    to: Sender<Message>,
    message: impl Fn(String) -> Message + Send + 'static,
) -> Result<(), Failure> {
    let body = move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            if to.send(message(line)).is_err() {
                break;
            }
        }
    };
    thread::Builder::new().name("node output".into()).spawn(body).map(drop).map_err(Failure::work)
}

/// Whether a process that has not ended is stopped, where the system tells.
fn state(id: u32) -> End {
    // The state is the letter behind the name in brackets, which may itself contain brackets.
    let stat = std::fs::read_to_string(format!("/proc/{id}/stat")).unwrap_or_default();
    match stat.rsplit_once(") ").map(|(_, rest)| rest.starts_with(['T', 't'])) {
        Some(true) => End::Stopped,
        _ => End::Running,
    }
}
