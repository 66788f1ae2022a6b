//! Files of a run: where they go, and how they get there whole.

use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde::Serialize;

use crate::event::Step;
use crate::failure::Failure;

/// The folder that a run writes into.
pub(crate) struct Output {
    folder: PathBuf,
    steps: BufWriter<File>,
}

impl Output {
    /// Makes `folder`, by default `runs/<UTC time>`, and an empty steps.jsonl in it.
    pub(crate) fn create(folder: Option<&Path>) -> Result<Self, Failure> {
        let folder =
            folder.map_or_else(|| Path::new("runs").join(utc_name(SystemTime::now())), Path::to_path_buf);
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

/// `2026-11-29T21-40-07Z`: sorts by time, and no file system minds it.
fn utc_name(now: SystemTime) -> String {
    let seconds = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    // Gregorian date from a day count (Hinnant, "chrono-compatible low-level date algorithms").
    let z = days + 719_468;
    let (era, day_of_era) = (z / 146_097, z % 146_097);
    let year_of_era = (day_of_era - day_of_era / 1460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}-{minute:02}-{second:02}Z")
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn known_moments_have_their_known_names() {
        for (seconds, name) in [
            (0, "1970-01-01T00-00-00Z"),
            (951_782_399, "2000-02-28T23-59-59Z"),
            (951_782_400, "2000-02-29T00-00-00Z"),
            (1_735_689_599, "2024-12-31T23-59-59Z"),
            (4_107_542_400, "2100-03-01T00-00-00Z"),
        ] {
            assert_eq!(utc_name(UNIX_EPOCH + Duration::from_secs(seconds)), name);
        }
    }
}
