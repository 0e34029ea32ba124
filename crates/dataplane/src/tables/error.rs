//! Why changes of the tables fail.

use crate::fib::FibError;

/// Why a change of the tables failed; the tables are then unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TablesError {
    /// No port, link, VRF or next hop has this number.
    Unknown,
    /// All numbers for ports, links, VRFs, next hops or groups are used.
    Full,
    /// More tags than [`super::MAX_STACKED_TAGS`].
    TooManyTags,
    /// A group has no member or too many.
    GroupSize,
    /// A VRF would fall back to itself.
    Loop,
    /// The FIB could not take a route.
    Fib(FibError),
}

impl TablesError {
    /// Whether the tables have no room: with more memory, or when readers have passed, they may take the change.
    #[must_use]
    pub const fn is_for_room(self) -> bool {
        matches!(self, Self::Full | Self::Fib(FibError::Full))
    }
}

impl From<FibError> for TablesError {
    fn from(error: FibError) -> Self {
        Self::Fib(error)
    }
}
