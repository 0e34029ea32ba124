//! Errors of the benchmarks and commands.

use std::fmt;

/// An error: what failed, and the remedy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What failed.
    pub what: String,
    /// How to mend it.
    pub remedy: String,
    /// Whether the request itself was wrong.
    pub usage: bool,
}

impl Error {
    /// An error in the request.
    pub fn usage(what: impl ToString, remedy: impl ToString) -> Self {
        Self { what: what.to_string(), remedy: remedy.to_string(), usage: true }
    }

    /// A failure of a valid request.
    pub fn failed(what: impl ToString, remedy: impl ToString) -> Self {
        Self { usage: false, ..Self::usage(what, remedy) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}.", self.what, self.remedy)
    }
}
