//! Sets and maps.

use super::{Key, LinkPattern, Range, Verdict};

/// A set, or a map if its elements have data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name after its table's; empty for an anonymous one.
    pub name: String,
    /// The types of its elements: one for a plain set, several for a concatenation. Only the kinds of the
    /// fields matter; the rule names the field to look up.
    pub key: Vec<Key>,
    /// Whether elements come and go while the ruleset stays.
    pub dynamic: bool,
    /// Its elements.
    pub elements: Elements,
}

/// The elements of a set. They do not overlap; if they do, the first counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Elements of a plain set of numbers, in the most compact form, since there may be millions.
    Ranges(Vec<Range>),
    /// Elements of any other set, and of maps.
    Tuples(Vec<Element>),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// One for each key.
    pub key: Vec<Item>,
    /// The map's datum for it.
    pub datum: Option<Datum>,
}

/// An element's value for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Numbers.
    Range(Range),
    /// Links.
    Link(LinkPattern),
}

/// A map's datum for an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// A number.
    Number(u128),
    /// A verdict.
    Verdict(Verdict),
}
