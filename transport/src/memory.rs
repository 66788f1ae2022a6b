//! A mesh inside one process.
