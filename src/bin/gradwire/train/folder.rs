//! Where a run is written: never over another one.

use std::fs;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use crate::failure::Failure;

/// The folder `asked` for, if no run is in it; else a new one, `runs/<UTC time>`.
pub(super) fn choose(asked: Option<&Path>) -> Result<PathBuf, Failure> {
    let Some(folder) = asked else { return fresh(Path::new("runs"), &utc_name(SystemTime::now())) };
    check(folder)?;
    Ok(folder.to_owned())
}

/// Refuses a folder with a finished run in it. One that failed has no report and may be replaced.
pub(super) fn check(folder: &Path) -> Result<(), Failure> {
    if folder.join("report.json").exists() {
        return Err(Failure::Work(format!("{} already holds a run; choose another --out", folder.display())));
    }
    Ok(())
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
    #![allow(clippy::unwrap_used, reason = "a failed unwrap is a failed test")]

    use std::time::Duration;

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
