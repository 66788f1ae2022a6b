//! How a verb ends when it does not end well.

use std::fmt;

/// Why a verb stopped; the text is one line, lower case, and says who is at fault.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The command line asks for something that cannot be: exit status 2.
    Usage(String),
    /// The work itself failed: exit status 1.
    Work(String),
}

impl Failure {
    /// A failure of the work, from anything that can say what went wrong.
    pub(crate) fn work(cause: impl fmt::Display) -> Self {
        Self::Work(cause.to_string())
    }

    /// A failure of the work that names the file or directory concerned.
    pub(crate) fn file(path: &std::path::Path, cause: impl fmt::Display) -> Self {
        Self::Work(format!("{}: {cause}", path.display()))
    }

    /// The exit status of the process: 2 for wrong usage, 1 for failed work.
    pub(crate) fn status(&self) -> u8 {
        match self {
            Self::Usage(_) => 2,
            Self::Work(_) => 1,
        }
    }
}

impl fmt::Display for Failure {
    /// One line: line breaks inside a cause (a path, a driver's message) become spaces.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Usage(text) | Self::Work(text)) = self;
        for (index, line) in text.lines().map(str::trim).filter(|line| !line.is_empty()).enumerate() {
            if index > 0 {
                f.write_str(" ")?;
            }
            f.write_str(line)?;
        }
        Ok(())
    }
}

impl From<candle_core::Error> for Failure {
    fn from(error: candle_core::Error) -> Self {
        Self::Work(format!("model: {error}"))
    }
}
