//! Chooses the sets that change while packets flow instead of being part of the program.
//!
//! Such a live set has a name, its elements are addresses, and rules look up whole addresses in it. It is
//! declared as changing ([`Set::dynamic`]) or large: more than [`MOST_WRITTEN_OUT`] elements. Small sets as
//! conditions cost the classifier nothing extra; a live set costs one lookup per packet.

use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::stages::filter::{Address, Filter, FilterError, LiveSet};

use crate::ir::{Elements, Field, Key, Match, Range, Ruleset, Set, SetId, Step, Test};

/// Up to this many elements, a set that is not declared as changing becomes conditions of rules.
const MOST_WRITTEN_OUT: usize = 64;

/// For each set of a ruleset its number among the live sets, if it is one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Live(Vec<Option<u16>>);

impl Live {
    /// Chooses the live sets and adds them to the filter.
    pub(super) fn choose(
        rules: &Ruleset,
        filter: &mut Filter,
        epochs: &Arc<Epochs>,
    ) -> Result<Self, FilterError> {
        let mut live = Self::default();
        for (set, version) in rules.sets.iter().zip(live_versions(rules)) {
            let number = match (&set.elements, version) {
                (Elements::Ranges(ranges), Some(version)) => {
                    let elements: Vec<_> =
                        ranges.iter().map(|range| (range.first, range.last)).collect();
                    Some(filter.add_live_set(&set.name, version, &elements, epochs)?)
                }
                _ => None,
            };
            live.0.push(number);
        }
        Ok(live)
    }

    /// The field that says whether a set contains a packet's address, if the set is live.
    pub(super) fn field(&self, set: SetId, keys: &[Key]) -> Option<Field> {
        let number = self.0.get(set.0).copied().flatten()?;
        let [key] = keys else { return None };
        let of = address(*key, 4).or_else(|| address(*key, 6))?;
        Some(Field::InSet { set: number, of })
    }
}

/// For each set of a ruleset, the version of IP of its addresses if it becomes a live set.
pub fn live_versions(rules: &Ruleset) -> Vec<Option<u8>> {
    let mut versions: Vec<_> = rules.sets.iter().map(version).collect();
    for one in matches(rules) {
        if let Test::Set(set) = one.test
            && let Some(version) = &mut versions[set.0]
            && !matches!(&one.keys[..], [key] if address(*key, *version).is_some())
        {
            versions[set.0] = None;
        }
    }
    versions
}

/// The version of IP of a set's addresses, if the set may be live.
fn version(set: &Set) -> Option<u8> {
    let Elements::Ranges(ranges) = &set.elements else { return None };
    let is_wanted = set.dynamic || ranges.len() > MOST_WRITTEN_OUT;
    let [key] = &set.key[..] else { return None };
    let version = match key.field {
        Field::Source4 | Field::Destination4 => 4,
        Field::Source6 | Field::Destination6 => 6,
        _ => return None,
    };
    (is_wanted && !set.name.is_empty()).then_some(version)
}

/// The address field, if a key is a whole address.
fn address(key: Key, version: u8) -> Option<Address> {
    let of = match (key.field, version) {
        (Field::Source4, 4) | (Field::Source6, 6) => Address::Source,
        (Field::Destination4, 4) | (Field::Destination6, 6) => Address::Destination,
        _ => return None,
    };
    (key.mask == key.field.max()).then_some(of)
}

/// Every match of a ruleset.
fn matches(rules: &Ruleset) -> impl Iterator<Item = &Match> {
    let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    steps.flat_map(|step| match step {
        Step::Match(one) => vec![one],
        Step::Any(any) => any.iter().flatten().collect(),
        _ => Vec::new(),
    })
}

impl Ruleset {
    /// Updates the sets to the current elements of the live sets of a filter, which was compiled from this
    /// ruleset.
    pub fn take_live_sets(&mut self, filter: &Filter) {
        for set in &mut self.sets {
            let Elements::Ranges(ranges) = &mut set.elements else { continue };
            let is_own = |live: &&Arc<LiveSet>| live.is_changed() && live.name() == set.name;
            if let Some(live) = filter.live_sets().iter().find(is_own) {
                let elements = live.elements().into_iter();
                *ranges = elements.map(|(first, last)| Range::new(first, last)).collect();
            }
        }
    }
}
