//! Sets and maps.

use super::{Key, LinkPattern, Range, Verdict};

/// A set, or (where its elements have data) a map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Set {
    /// Its name with its table's; empty for one without.
    pub name: String,
    /// What its elements are made of: one for a plain set, several for a concatenation. Only the
    /// selectors' kinds matter; which field is looked up is the rule's to say.
    pub key: Vec<Key>,
    /// Whether elements come and go while the ruleset stays.
    pub dynamic: bool,
    /// What it has.
    pub elements: Elements,
}

/// What a set has. Elements do not overlap; where they do, the first counts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Elements {
    /// Of a plain set of numbers, in the shortest form, for there may be millions.
    Ranges(Vec<Range>),
    /// Of any other set, and of maps.
    Tuples(Vec<Element>),
}

/// An element of a set or map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// One for each key.
    pub key: Vec<Item>,
    /// What a map has for it.
    pub datum: Option<Datum>,
}

/// What an element has for one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Item {
    /// Numbers.
    Range(Range),
    /// Links.
    Link(LinkPattern),
}

/// What a map has for an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Datum {
    /// A number.
    Number(u128),
    /// A verdict.
    Verdict(Verdict),
}
