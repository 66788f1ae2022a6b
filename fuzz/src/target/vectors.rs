//! Vector files, as `gradwire verify` reads them.
//!
//! Holds: a file that is taken can be compared with the CPU's codecs, whatever its numbers.

use crate::memory;

#[path = "../../../src/bin/gradwire/vectors.rs"]
#[allow(dead_code, reason = "only reading and comparing with the CPU is used here")]
#[allow(clippy::missing_assert_message, clippy::module_inception, reason = "another crate's file")]
mod file;

pub fn run(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    // 40 bytes of a tree for two of text ("1,"), and as much again while its lists grow.
    let parsed = memory::within((64 << 10) + 100 * text.len(), || file::VectorFile::parse(&text));
    match parsed {
        Ok(vectors) => {
            let comparison = file::compare(&vectors, &mut file::Cpu::default());
            assert!(comparison.is_ok(), "a checked file can be compared: {comparison:?}");
        }
        Err(error) => assert!(error.to_string().lines().count() <= 1, "an error is one line: {error}"),
    }
}
