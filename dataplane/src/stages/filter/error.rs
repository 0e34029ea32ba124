//! Why rules are not compiled.

/// Why rules could not be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// More than [`MOST_RULES`](super::MOST_RULES).
    TooMany(usize),
    /// The last rule has conditions, or a rule leads to one that is not behind it.
    Astray(u32),
    /// A rule uses a live set that does not exist, or is not of the version of its packets.
    NoSet(u16),
    /// No memory is left for a table.
    Memory,
}
