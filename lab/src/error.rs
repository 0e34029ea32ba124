//! Why something was refused, or has failed.

use std::fmt;

/// What is wrong, and what to do about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Error {
    /// What is wrong.
    pub what: String,
    /// What to do about it.
    pub remedy: String,
    /// Whether it was asked for wrongly.
    pub usage: bool,
}

impl Error {
    /// It was asked for wrongly.
    pub fn usage(what: impl ToString, remedy: impl ToString) -> Self {
        Self { what: what.to_string(), remedy: remedy.to_string(), usage: true }
    }

    /// It failed.
    pub fn failed(what: impl ToString, remedy: impl ToString) -> Self {
        Self { usage: false, ..Self::usage(what, remedy) }
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. {}.", self.what, self.remedy)
    }
}
