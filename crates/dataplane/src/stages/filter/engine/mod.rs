//! The rules of a point for the BPF programs: the classifier of user space in words that a program can read
//! (`bpf/rules.h` of the crate tollway-xdp).
//!
//! A program looks up each field once, as [`Classifier`](super::Classifier) does, and intersects the sets of rules. A
//! set of more than 64 rules has a bit for each of its words that is not 0, and these words. The program then executes
//! the rules that match, one after the other.
//!
//! What a program cannot evaluate (other fields, limits, logs, rejects, changed packets) is no obstacle to the other
//! rules: when a packet comes to such a rule, user space decides about the packet.
//!
//! A program looks up live sets where it finds their current elements (`live/members.rs`), so a change of elements
//! changes no word here.
//!
//! Limits: [`MOST_RULES`] rules and [`MOST_FIELDS`] fields at a point. Conditions on further fields are such that a
//! program cannot evaluate.

mod field;
mod lookup;
mod program;

use std::borrow::Cow;
use std::sync::Arc;

use super::dim::Dim;
use super::{EngineSets, Field, Filter, Point, Rules, VERSIONS};
use crate::fib::Root;

/// The maximum number of rules: a bit of a word for each of 64 words.
pub(crate) const MOST_RULES: usize = 64 * 64;
/// The maximum number of fields that a program looks up.
pub(crate) const MOST_FIELDS: usize = 12;
/// Words of a line, the unit in which parts are placed.
pub(crate) const LINE: usize = 16;

/// The rules of one point and version in words. All places in them are lines, counted from the first one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Section(Words);

/// Where programs find the elements of each live set, by its number.
type SetRoots<'a> = &'a [Option<Root>];

/// The rules of one point and version for programs.
#[derive(Clone, Debug)]
pub(super) enum Compiled {
    /// In words; none if there are too many rules.
    Ready(Option<Section>),
    /// They look into live sets, whose places are not known yet.
    WithSets(Box<Rules>),
}

/// The rules of all points in words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct EngineImage {
    /// The words; a place in them counts from the first one.
    pub(crate) words: Vec<u32>,
    /// The number of counters that the rules have.
    pub(crate) counters: usize,
    /// How many live sets were lost when it was made.
    pub(crate) losses: u64,
}

/// In an image's first line, after the lines of the points' rules: the number of the first counter, which depends on where
/// counters are.
pub(crate) const FIRST_COUNTER: usize = 6;

/// Words to which parts are added, each from the beginning of a line.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Words(Vec<u32>);

impl Words {
    /// Adds a part; returns its first line.
    fn add(&mut self, part: &[u32]) -> u32 {
        let line = self.0.len().div_ceil(LINE);
        self.0.resize(line * LINE, 0);
        self.0.extend_from_slice(part);
        line as u32
    }
}

impl Section {
    /// Compiles the rules for a version of IP; none if there are too many.
    fn of(version: u8, rules: &Rules, roots: SetRoots<'_>) -> Option<Self> {
        let count = rules.rules.len();
        if count > MOST_RULES || version != 4 && version != 6 {
            return None;
        }
        let (fields, programs) = program::split(version, rules, roots);
        let all = lookup::all(count);
        let dims = fields
            .iter()
            .map(|(field, ranges)| Dim::for_engine(*field, ranges, &all).ok())
            .collect::<Option<Vec<_>>>()?;
        let mut words = Words::default();
        words.add(&[0; LINE]);
        let descriptors: Vec<u32> = dims
            .iter()
            .flat_map(|dim| lookup::add(&mut words, version, (dim, count), roots))
            .collect();
        let lookups = words.add(&descriptors);
        let (starts, ops) = program::words(&programs);
        let (starts, ops) = (words.add(&starts), words.add(&ops));
        let is_narrow = u32::from(count <= 64);
        let header = [dims.len() as u32, lookups, is_narrow, ops, starts, rules.end];
        words.0[..header.len()].copy_from_slice(&header);
        Some(Self(words))
    }
}

impl Compiled {
    /// Compiles the rules for a version of IP, as far as the places of live sets do not matter.
    pub(super) fn of(version: u8, rules: &Rules) -> Self {
        let mut conditions = rules.rules.iter().flat_map(|rule| &rule.conditions);
        match conditions.any(|condition| matches!(condition.field, Field::InSet { .. })) {
            true => Self::WithSets(Box::new(rules.clone())),
            false => Self::Ready(Section::of(version, rules, &[])),
        }
    }

    fn section(&self, version: u8, roots: SetRoots<'_>) -> Option<Cow<'_, Section>> {
        match self {
            Self::Ready(section) => section.as_ref().map(Cow::Borrowed),
            Self::WithSets(rules) => Section::of(version, rules, roots).map(Cow::Owned),
        }
    }
}

impl EngineImage {
    /// The rules of a filter, whose live sets programs find among these sets; none if the programs cannot evaluate the
    /// rules of some point at all.
    pub(crate) fn of(filter: &Filter, sets: &Arc<EngineSets>) -> Option<Self> {
        // Only the user path tracks connections.
        if filter.tracker.is_some() {
            return None;
        }
        // First, so that a set that is lost from now on is missed.
        let losses = sets.losses();
        let roots: Vec<_> = filter.live.iter().map(|set| set.root_in(sets)).collect();
        let mut words = Words::default();
        words.add(&[0; LINE]);
        for point in [Point::Ingress, Point::Prerouting, Point::Forward] {
            let point = point as usize;
            // ARP is the kernel's.
            for version in 0..VERSIONS - 1 {
                if filter.points[point][version].is_none() {
                    continue;
                }
                let compiled = filter.compiled[point][version].as_ref()?;
                let section = compiled.section([4, 6][version], &roots)?;
                let line = words.add(&section.0.0);
                words.0[point * (VERSIONS - 1) + version] = line;
            }
        }
        Some(Self { words: words.0, counters: filter.counters.len(), losses })
    }
}
