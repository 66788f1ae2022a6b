//! Lines for humans on stderr, results on stdout: neither panics when its reader has gone away or its disk is full,
//! as `println!` and `eprintln!` do (which clippy therefore refuses in this program).

use std::fmt::{Arguments, Display};
use std::io::{self, Write};

use crate::failure::Failure;

/// A line on stderr. That nobody reads it is no reason to end a training run.
macro_rules! note {
    ($($word:tt)*) => {
        $crate::say::to_stderr(format_args!($($word)*))
    };
}
pub(crate) use note;

/// See [`note`].
pub(crate) fn to_stderr(line: Arguments<'_>) {
    let _ = writeln!(io::stderr(), "{line}");
}

/// Prints a result on stdout; a reader that has gone away is a failure of the work.
pub(crate) fn print(result: impl Display) -> Result<(), Failure> {
    let mut stdout = io::stdout().lock();
    writeln!(stdout, "{result}")
        .and_then(|()| stdout.flush())
        .map_err(|error| Failure::Work(format!("stdout: {error}")))
}
