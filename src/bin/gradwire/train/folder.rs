//! Where a run is written: never over another one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use time::OffsetDateTime;

use crate::failure::Failure;

/// The folder `asked` for; else a new one, `runs/<UTC time>`.
pub(super) fn choose(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    match asked {
        Some(folder) => Ok(folder.to_owned()),
        None => fresh(Path::new("runs"), &utc_name(OffsetDateTime::now_utc())),
    }
}

/// Makes `name` in `runs`, or `name-2` and so on if it is there: runs may start in the same second.
fn fresh(runs: &Path, name: &str) -> Result<PathBuf, Failure> {
    fs::create_dir_all(runs).map_err(|error| Failure::file(runs, error))?;
    for number in 1_u32.. {
        let folder = match number {
            1 => runs.join(name),
            _ => runs.join(format!("{name}-{number}")),
        };
        // Of two processes that try this at once, the system lets one succeed.
        match fs::create_dir(&folder) {
            Ok(()) => return Ok(folder),
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {}
            Err(error) => return Err(Failure::file(&folder, error)),
        }
    }
    Err(Failure::file(runs, "no name is free"))
}

/// `2026-11-29T21-40-07Z`: sorts by time, and no file system minds it.
fn utc_name(now: OffsetDateTime) -> String {
    let (year, month, day) = now.to_calendar_date();
    let (hour, minute, second) = now.to_hms();
    format!("{year:04}-{:02}-{day:02}T{hour:02}-{minute:02}-{second:02}Z", u8::from(month))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use super::*;

    #[test]
    fn runs_of_the_same_second_get_folders_of_their_own() {
        let folder = tempfile::tempdir().unwrap();
        let runs = folder.path().join("runs");
        let made: Vec<PathBuf> = (0..3).map(|_| fresh(&runs, "now").unwrap()).collect();
        assert_eq!(made, ["now", "now-2", "now-3"].map(|name| runs.join(name)));
        assert!(made.iter().all(|folder| folder.is_dir()));
    }

    #[test]
    fn a_folder_is_named_by_its_moment() {
        let moment = OffsetDateTime::from_unix_timestamp(951_782_400).unwrap();
        assert_eq!(utc_name(moment), "2000-02-29T00-00-00Z");
    }
}
