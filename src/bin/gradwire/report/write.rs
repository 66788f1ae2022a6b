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
}

impl Output {
    /// Refuses a folder with a run in it, finished or not: nothing is written over, not even what a failure left.
    pub(crate) fn check(folder: &Path) -> Result<(), Failure> {
        if ["report.json", "steps.jsonl"].iter().any(|name| folder.join(name).exists()) {
            return Err(holds_a_run(folder));
        }
        Ok(())
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
        Ok(Self { folder, steps: BufWriter::new(steps) })
    }

    /// Appends one line: the step, with the codec of its run.
    pub(crate) fn step(&mut self, codec: &str, step: &Step) -> Result<(), Failure> {
        #[derive(Serialize)]
        struct Line<'a> {
            codec: &'a str,
            #[serde(flatten)]
            step: &'a Step,
        }
        serde_json::to_writer(&mut self.steps, &Line { codec, step })
            .map_err(std::io::Error::from)
            .and_then(|()| self.steps.write_all(b"\n"))
            .map_err(|error| Failure::file(&self.path("steps.jsonl"), error))
    }

    /// Ends steps.jsonl.
    pub(crate) fn flush(&mut self) -> Result<(), Failure> {
        self.steps.flush().map_err(|error| Failure::file(&self.path("steps.jsonl"), error))
    }

    /// Writes one file of the run, replacing an older one.
    pub(crate) fn file(&self, name: &str, content: &[u8]) -> Result<(), Failure> {
        let path = self.path(name);
        fs::write(&path, content).map_err(|error| Failure::file(&path, error))
    }

    /// Where a file of this run is.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }
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
            let tries: Vec<_> = (0..8).map(|_| scope.spawn(|| Output::create(&run).is_ok())).collect();
            tries.into_iter().map(|each| each.join().unwrap()).filter(|made| *made).count()
        });
        assert_eq!(made, 1);
        assert!(Output::check(&run).is_err() && Output::check(folder.path()).is_ok());
    }
}
