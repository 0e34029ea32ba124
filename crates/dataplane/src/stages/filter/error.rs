//! Why rules are not compiled.

/// Why rules could not be compiled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FilterError {
    /// More than [`MOST_RULES`](super::MOST_RULES).
    TooMany(usize),
    /// The last rule has conditions or no verdict at its end, or there is no rule.
    ConditionalLast(u32),
    /// This rule leads to one that does not follow it, or to none.
    BackwardJump(u32),
    /// Returns lead to this rule, but it has conditions or returns itself, or does not exist.
    ConditionalReturn(u32),
    /// A rule uses a live set that does not exist, or is not of the version of its packets.
    NoSet(u16),
    /// A rule looks at the connection of packets on the user path, where they have none.
    Connection,
    /// No memory is left for a table.
    Memory,
}
