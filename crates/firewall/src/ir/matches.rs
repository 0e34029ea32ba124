//! Keys and matches: the bits of fields that rules test, and the tests.

use super::{Field, SetId};

/// A field and the bits of it that matter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Key {
    /// The field of the packet.
    pub field: Field,
    /// Bits that matter; the others count as 0.
    pub mask: u128,
}

impl Key {
    /// Some bits of a field.
    #[must_use]
    pub const fn masked(field: Field, mask: u128) -> Self {
        Self { field, mask }
    }
}

impl From<Field> for Key {
    fn from(field: Field) -> Self {
        Self { field, mask: field.max() }
    }
}

/// The numbers from `first` to `last`, both included.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Range {
    /// The least.
    pub first: u128,
    /// The greatest.
    pub last: u128,
}

impl Range {
    /// From one to another.
    #[must_use]
    pub const fn new(first: u128, last: u128) -> Self {
        Self { first, last }
    }

    /// A single number.
    #[must_use]
    pub const fn one(number: u128) -> Self {
        Self { first: number, last: number }
    }

    /// The numbers of `bits` bits that begin as `number` does for `len` bits.
    #[must_use]
    pub const fn prefix(number: u128, len: u32, bits: u32) -> Self {
        let open = bits.saturating_sub(len);
        let below = if open >= 128 { u128::MAX } else { (1 << open) - 1 };
        Self { first: number & !below, last: number | below }
    }

    /// Says whether the range contains a number.
    #[must_use]
    pub const fn has(self, number: u128) -> bool {
        self.first <= number && number <= self.last
    }
}

/// Links by name, prefix or VRF.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum LinkPattern {
    /// The link of this name.
    Name(String),
    /// Links whose names begin with this (`eth*`).
    Prefix(String),
    /// Links of this VRF.
    Vrf(String),
}

/// A condition on one field of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Match {
    /// The fields; several for a concatenation, which only [`Test::Set`] takes.
    pub keys: Vec<Key>,
    /// The test.
    pub test: Test,
    /// Whether the test must fail instead. A packet that lacks a key does not match either way.
    pub negate: bool,
}

/// A test of a key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Test {
    /// The key is in one of these.
    Ranges(Vec<Range>),
    /// The link is one of these.
    Link(Vec<LinkPattern>),
    /// The set contains the key.
    Set(SetId),
}

impl Match {
    /// The key is this number.
    #[must_use]
    pub fn is(key: impl Into<Key>, number: u128) -> Self {
        Self::in_ranges(key, [Range::one(number)])
    }

    /// The key is in one of these.
    #[must_use]
    pub fn in_ranges(key: impl Into<Key>, ranges: impl Into<Vec<Range>>) -> Self {
        Self { keys: vec![key.into()], test: Test::Ranges(ranges.into()), negate: false }
    }

    /// The set contains the key.
    #[must_use]
    pub fn in_set(key: impl Into<Key>, set: SetId) -> Self {
        Self { keys: vec![key.into()], test: Test::Set(set), negate: false }
    }

    /// The link is this one.
    #[must_use]
    pub fn link(field: Field, pattern: LinkPattern) -> Self {
        Self { keys: vec![field.into()], test: Test::Link(vec![pattern]), negate: false }
    }

    /// The same match, negated.
    #[must_use]
    pub fn negated(mut self) -> Self {
        self.negate = !self.negate;
        self
    }
}
