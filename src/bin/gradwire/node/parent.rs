//! What a child of `train` or `bench` has to do with its parent: it gets its identity from it, shows that it lives, and ends
//! with it.

use std::io::{BufRead, Read, Write};
use std::thread;
use std::time::Duration;

use gradwire::transport::quic::Identity;
use gradwire::transport::quic::identity::MAX_IDENTITY_BYTES;

use crate::failure::Failure;
use crate::life;

/// Reads an identity from stdin, to its end or to the line [`life::END_OF_IDENTITY`]: no key touches a disk.
pub(crate) fn identity() -> Result<Identity, Failure> {
    let mut pem = String::new();
    // Stdin is buffered for the whole process: what comes after that line is still there for `end_with_it`.
    let mut from = std::io::stdin().lock().take(MAX_IDENTITY_BYTES);
    loop {
        let start = pem.len();
        let read = from.read_line(&mut pem).map_err(|error| Failure::Work(format!("stdin: {error}")))?;
        if read == 0 || pem[start..].trim_end() == life::END_OF_IDENTITY {
            pem.truncate(start);
            return Identity::from_pem(&pem).map_err(|error| Failure::Work(format!("stdin: {error}")));
        }
    }
}

/// From now on the parent hears from this process, whatever the rank is doing: an empty line now and then.
pub(super) fn show_life(deadline: f64) -> Result<(), Failure> {
    let every = life::period(Duration::try_from_secs_f64(deadline).unwrap_or(Duration::MAX));
    spawn("life", move || {
        // A parent that is gone shows on stdin too, which ends this process.
        while std::io::stdout().write_all(b"\n").is_ok() {
            thread::sleep(every);
        }
    })
}

/// Ends this process when its parent does, however that ends: the pipe then closes.
pub(super) fn end_with_it() -> Result<(), Failure> {
    spawn("parent", || {
        let mut ignored = [0; 64];
        while std::io::stdin().read(&mut ignored).is_ok_and(|count| count > 0) {}
        std::process::exit(1);
    })
}

fn spawn(name: &str, body: impl FnOnce() + Send + 'static) -> Result<(), Failure> {
    thread::Builder::new().name(name.into()).spawn(body).map(drop).map_err(Failure::work)
}
