//! Reading small files that somebody else chose.

use std::fs::{File, OpenOptions};
use std::io::{self, Read as _};
use std::path::Path;

/// The whole of a regular file of at most `limit` bytes. What is longer, or no file with an end (a folder, a device, a
/// pipe that nobody may ever write to), is refused without waiting and without reading more than `limit` + 1 bytes.
///
/// # Errors
///
/// If it cannot be opened or read; [`io::ErrorKind::InvalidInput`] if it is no regular file,
/// [`io::ErrorKind::FileTooLarge`] if it is too long.
pub fn read_bounded(path: &Path, limit: u64) -> io::Result<Vec<u8>> {
    read(&open(path)?, limit)
}

/// A file that can be read without waiting for anyone.
pub(crate) fn open(path: &Path) -> io::Result<File> {
    let regular = |metadata: &std::fs::Metadata| {
        if metadata.is_file() {
            return Ok(());
        }
        let what = if metadata.is_dir() { "a folder, not a file" } else { "not a regular file" };
        Err(io::Error::new(io::ErrorKind::InvalidInput, what))
    };
    // Before it is opened, because opening a pipe waits for its writer; and afterwards, because it may be another
    // file by then.
    regular(&std::fs::metadata(path)?)?;
    let file = OpenOptions::new().read(true).open(path)?;
    regular(&file.metadata()?)?;
    Ok(file)
}

/// The rest of `file`. Its length is not asked for: it may grow, and some file systems say 0.
pub(crate) fn read(file: &File, limit: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(limit.saturating_add(1)).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > limit {
        let said = format!("longer than {limit} bytes");
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, said));
    }
    Ok(bytes)
}

/// [`read`], as text.
#[cfg(feature = "quic")]
pub(crate) fn read_text(file: &File, limit: u64) -> io::Result<String> {
    let invalid = |_| io::Error::new(io::ErrorKind::InvalidData, "not a text file (no UTF-8)");
    String::from_utf8(read(file, limit)?).map_err(invalid)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

    use super::*;

    #[test]
    fn a_file_is_read_up_to_its_limit_and_not_a_byte_beyond() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, b"12345").unwrap();
        assert_eq!(read_bounded(&path, 5).unwrap(), b"12345");
        let error = read_bounded(&path, 4).unwrap_err();
        assert_eq!(
            (error.kind(), error.to_string()),
            (io::ErrorKind::FileTooLarge, "longer than 4 bytes".into())
        );
        assert_eq!(read_bounded(&dir.path().join("none"), 4).unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn what_is_no_regular_file_is_refused_without_waiting() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |path: &Path| read_bounded(path, 1 << 40).unwrap_err();
        assert_eq!(refused(dir.path()).to_string(), "a folder, not a file");
        #[cfg(unix)]
        {
            let pipe = dir.path().join("pipe");
            assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
            for path in [&pipe, Path::new("/dev/zero")] {
                assert_eq!(refused(path).to_string(), "not a regular file", "{}", path.display());
            }
        }
    }
}
