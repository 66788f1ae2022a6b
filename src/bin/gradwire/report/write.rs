//! Files of a run: where they go, and how they get there whole.

use std::fs::{self, File};
use std::io::{BufWriter, ErrorKind, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::event::Step;
use crate::failure::Failure;

/// The folder that a run writes into.
pub(crate) struct Output {
    folder: PathBuf,
    steps: BufWriter<File>,
    /// Whether there was a step.
    begun: bool,
}

impl Output {
    /// Refuses a folder with files of a run in it, finished or not: nothing is written over, not even what a failure left.
    pub(crate) fn check(folder: &Path) -> Result<(), Failure> {
        let there = FILES.iter().any(|name| folder.join(name).symlink_metadata().is_ok());
        if there { Err(holds_a_run(folder)) } else { Ok(()) }
    }

    /// Makes `folder` and an empty steps.jsonl in it. Of two runs that try this at once, one succeeds.
    pub(crate) fn create(folder: &Path) -> Result<Self, Failure> {
        Self::check(folder)?;
        let folder = folder.to_owned();
        fs::create_dir_all(&folder).map_err(|error| Failure::file(&folder, error))?;
        let path = folder.join("steps.jsonl");
        let steps = File::create_new(&path).map_err(|error| match error.kind() {
            ErrorKind::AlreadyExists => holds_a_run(&folder),
            _ => Failure::file(&path, error),
        })?;
        Ok(Self { folder, steps: BufWriter::new(steps), begun: false })
    }

    /// Finds out whether [`create`](Self::create) would do, and leaves nothing but the folder.
    pub(crate) fn try_out(folder: &Path) -> Result<(), Failure> {
        Self::create(folder).map(drop)
    }

    /// Appends one line: the step, with the codec of its run.
    pub(crate) fn step(&mut self, codec: &str, step: &Step) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            codec: &'a str,
            #[serde(flatten)]
            step: &'a Step,
        }
        self.begun = true;
        serde_json::to_writer(&mut self.steps, &Line { codec, step })
            .map_err(std::io::Error::from)
            .and_then(|()| self.steps.write_all(b"\n"))
            .map_err(|error| Failure::file(&self.path("steps.jsonl"), error))
    }

    /// Ends steps.jsonl.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.steps.flush().map_err(|error| Failure::file(&self.path("steps.jsonl"), error))
    }

    /// Writes one file of the run.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        write_whole(&self.path(name), content)
    }

    /// Where a file of this run is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
}

impl Drop for Output {
    /// A run without a step leaves nothing, so that the same command can be given again.
    fn drop(&mut self) {
        if !self.begun {
            // It was made here, and is empty; there is nobody to tell.
            let _ = fs::remove_file(self.folder.join("steps.jsonl"));
        }
    }
}

/// What a run leaves.
const FILES: [&str; 4] = ["report.json", "steps.jsonl", "report.html", "model.safetensors"];

/// Writes a file that is there as a whole or not at all: a full disk leaves no half of one under its name.
pub(crate) fn write_whole(path: &Path, content: &[u8]) -> Result<(), Failure> {
    let mut part = path.as_os_str().to_owned();
    part.push(".part");
    let part = PathBuf::from(part);
    fs::write(&part, content).and_then(|()| fs::rename(&part, path)).map_err(|error| {
        // Of what could not be written nothing is of use; there is no more to say if it stays.
        let _ = fs::remove_file(&part);
        Failure::file(path, error)
    })
}

fn holds_a_run(folder: &Path) -> Failure {
    Failure::Work(format!("{} already holds a run; choose another --out", folder.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::thread;

    use super::*;

    #[test]
    fn of_many_runs_that_want_one_folder_at_once_one_gets_it() {
        let folder = tempfile::tempdir().unwrap();
        let run = folder.path().join("run");
        let made = thread::scope(|scope| {
            let tries: Vec<_> = (0..8).map(|_| scope.spawn(|| Output::create(&run).ok())).collect();
            tries.into_iter().filter_map(|each| each.join().unwrap()).collect::<Vec<_>>()
        });
        assert_eq!(made.len(), 1);
        assert!(Output::check(&run).is_err() && Output::check(folder.path()).is_ok());
        drop(made);
        assert!(Output::check(&run).is_ok(), "there was no step");
    }
}
