//! Writing identities: never over anything, with their modes from the start, and all of them or none.

use std::fs::{DirBuilder, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::IdentityError;

/// Name, text and mode of a file.
type Entry = (String, String, u32);

/// Whether `dir` has none of these files.
pub(super) fn check_new(dir: &Path, names: impl Iterator<Item = String>) -> Result<(), IdentityError> {
    for name in names {
        // A link that leads nowhere would not be overwritten either.
        match dir.join(&name).symlink_metadata() {
            Ok(_) => return Err(IdentityError::Existing { dir: dir.to_owned(), name }),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(source) => return Err(IdentityError::File { path: dir.join(name), source }),
        }
    }
    Ok(())
}

/// Writes `files` into `dir`, and removes them, and `dir` if it was made here, if one of them fails.
pub(super) fn all_or_nothing(
    dir: &Path,
    files: impl Iterator<Item = Result<Entry, IdentityError>>,
) -> Result<(), IdentityError> {
    let made = !dir.exists();
    create_dir(dir).map_err(|source| IdentityError::File { path: dir.to_owned(), source })?;
    let mut written: Vec<PathBuf> = Vec::new();
    let result = files.into_iter().try_for_each(|file| {
        let (name, text, mode) = file?;
        let path = dir.join(name);
        new_file(&path, &text, mode)?;
        written.push(path);
        Ok(())
    });
    if result.is_err() {
        let mut removed: Vec<_> = written.iter().map(std::fs::remove_file).collect();
        if made {
            removed.push(std::fs::remove_dir(dir));
        }
        if let Some(error) = removed.into_iter().find_map(Result::err) {
            tracing::warn!(dir = %dir.display(), %error, "not everything could be removed again");
        }
    }
    result
}

/// Created with its mode, so that there is no moment in which others could open it.
pub(super) fn new_file(path: &Path, text: &str, mode: u32) -> Result<(), IdentityError> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt as _;
        options.mode(mode);
    }
    #[cfg(not(unix))]
    let _ = mode;
    let at = |source| IdentityError::File { path: path.to_owned(), source };
    let mut file = options.open(path).map_err(at)?;
    file.write_all(text.as_bytes()).map_err(|source| {
        // Half a key is of no use; the error that is told is the first one.
        let _ = std::fs::remove_file(path);
        at(source)
    })
}

fn create_dir(dir: &Path) -> io::Result<()> {
    let mut builder = DirBuilder::new();
    builder.recursive(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::DirBuilderExt as _;
        builder.mode(0o700);
    }
    builder.create(dir)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn what_was_written_before_a_failure_is_removed_and_nothing_else() {
        let failing = || {
            let file = |name: &str| Ok((name.to_owned(), "text".to_owned(), 0o600));
            let broken = IdentityError::Unusable { reason: "broken".into() };
            [file("a"), file("b"), Err(broken), file("c")].into_iter()
        };
        let dir = tempfile::tempdir().unwrap();
        let new = dir.path().join("new");
        assert_eq!(all_or_nothing(&new, failing()).unwrap_err().to_string(), "identity is unusable: broken");
        assert!(!new.exists());
        let old = dir.path().join("old");
        std::fs::create_dir(&old).unwrap();
        std::fs::write(old.join("mine"), "").unwrap();
        all_or_nothing(&old, failing()).unwrap_err();
        let names: Vec<_> =
            std::fs::read_dir(&old).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["mine"]);
    }
}
