//! Files of a run: where they go, and how they get there whole.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
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
    /// Makes `folder` and an empty steps.jsonl in it.
    pub(crate) fn create(folder: &Path) -> Result<Self, Failure> {
        let folder = folder.to_owned();
        fs::create_dir_all(&folder).map_err(|error| Failure::file(&folder, error))?;
        let path = folder.join("steps.jsonl");
        let steps = File::create(&path).map_err(|error| Failure::file(&path, error))?;
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
