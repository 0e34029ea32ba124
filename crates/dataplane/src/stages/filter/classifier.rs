//! A compiled list of rules: finds the first rule from an index on that a packet matches.

mod by_rule;
mod find;
mod first;
mod member;
mod window;

use std::sync::Arc;

use super::bits::{self, BLOCK};
use super::dim::Dim;
use super::partition::Partition;
use super::scratch::Packing;
use super::summary::{RuleSummary, VerdictSets};
use super::tracking::Connections;
use super::{Field, LiveSet, Op, Parsed, Point, VERSIONS, place};
use crate::burst::{BURST, Burst, Lanes};
use crate::frame::Umem;
use crate::stages::rule::RouteTables;
pub(super) use by_rule::ByRule;
pub(super) use first::Classify;

/// The input of the loops.
pub(super) struct Work<'a> {
    pub(super) burst: &'a Burst,
    pub(super) umem: &'a Umem,
    pub(super) routes: &'a RouteTables,
    pub(super) mark: &'a [u32; BURST],
    pub(super) connections: &'a Connections,
    /// The packets to look up.
    pub(super) lanes: Lanes,
}

/// The rules of one point for one version of IP, or (0) for ARP.
pub struct Classifier {
    pub(super) classify: Classify,
    pub(super) point: Point,
    pub(super) version: u8,
    /// Whether lookups skip IPv6 authentication headers, see [`super::Filter::look_past_auth`].
    pub(super) past_auth: bool,
    /// The number of words of a set of rules.
    pub(super) width: usize,
    /// How classes are packed for the cache, if there is one.
    pub(super) packing: Option<Packing>,
    /// The number of bytes of the transport header that rules match on, and whether the lookup needs
    /// its position.
    pub(super) wants: (u16, bool),
    /// The set of all rules.
    pub(super) all: Vec<u64>,
    /// Live sets by the numbers in [`super::Field::InSet`].
    pub(super) live: Vec<Arc<LiveSet>>,
    /// Fields that are looked up.
    pub(super) dims: Vec<Dim>,
    /// Many rules in parts; the fields then have no sets, and their classes are their values.
    pub(super) partition: Option<Partition>,
    /// A summary of each rule.
    pub(super) summaries: Vec<RuleSummary>,
    /// The rules of the first word that accept a packet, and those that drop it.
    pub(super) verdict_sets: VerdictSets,
    /// The rules that can be executed for a burst at once.
    pub(super) by_rule: Option<ByRule>,
    /// The ops of each rule, and the next rule.
    pub(super) programs: Vec<(Box<[Op]>, u32)>,
    /// The target of returns without a call.
    pub(super) end: u32,
    /// Whether each rule's conditions depend on more than a flow's key, see [`super::varies`].
    pub(super) varies: Vec<u8>,
    /// Whether some rule matches on IPv4's DF.
    pub(super) sees_df: bool,
}

impl Classifier {
    /// The first rule from `from` on that a packet of these classes matches; beyond the last if none
    /// does.
    pub(super) fn next(&self, classes: &[u32], from: u32) -> u32 {
        if let Some(partition) = &self.partition {
            return partition.next(|dim| classes.get(dim).copied(), from);
        }
        let candidates = self.candidates(classes);
        let mut word = from as usize / 64;
        let mut mask = u64::MAX << (from % 64);
        while word < self.width {
            if self.width > bits::MOST_DENSE && candidates >> (word / BLOCK) & 1 == 0 {
                word = (word / BLOCK + 1) * BLOCK;
                mask = u64::MAX;
                continue;
            }
            let mut set = self.all[word] & mask;
            for (dim, class) in self.dims.iter().zip(classes) {
                set &= dim.sets.word(*class, word);
            }
            if set != 0 {
                return word as u32 * 64 + set.trailing_zeros();
            }
            word += 1;
            mask = u64::MAX;
        }
        u32::MAX
    }

    /// The index of [`super::State`]'s scratch memory for these rules.
    pub(super) const fn index(&self) -> usize {
        self.point as usize * VERSIONS + place(self.version)
    }

    /// Says whether lookups gather words of the header in the scratch memory.
    pub(super) fn gathers(&self) -> bool {
        self.version == 4 && self.dims.len() > 1
    }

    /// Says whether to cache results by flow: IPv4 rules match on nothing but the flow, and there are
    /// so many rules that the cache pays off.
    pub(super) fn decides_by_flow(&self) -> bool {
        let is_key = |field| {
            matches!(
                field,
                Field::Source4
                    | Field::Destination4
                    | Field::Protocol
                    | Field::SourcePort
                    | Field::DestinationPort
            )
        };
        self.version == 4
            && self.width > 1
            && self.dims.len() > 1
            && self.dims.iter().all(|dim| is_key(dim.field))
    }

    /// Blocks in which a packet of these classes may match a rule.
    fn candidates(&self, classes: &[u32]) -> u64 {
        let summaries = self.dims.iter().zip(classes);
        summaries.fold(u64::MAX, |all, (dim, class)| all & dim.sets.summary(*class).blocks)
    }

    /// Bytes of memory that lookups read.
    pub(super) fn memory_bytes(&self) -> usize {
        let programs: usize = self.programs.iter().map(|(ops, _)| size_of_val(&**ops) + 24).sum();
        let dims: usize = self.dims.iter().map(Dim::memory_bytes).sum();
        let parts = self.partition.as_ref().map_or(0, Partition::memory_bytes);
        dims + parts + programs + self.summaries.len() + self.all.len() * size_of::<u64>()
    }
}

impl std::fmt::Debug for Classifier {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let fields: Vec<_> = self.dims.iter().map(|dim| dim.field).collect();
        formatter
            .debug_struct("Classifier")
            .field("point", &self.point)
            .field("version", &self.version)
            .field("rules", &self.summaries.len())
            .field("fields", &fields)
            .finish_non_exhaustive()
    }
}

impl<'a> Work<'a> {
    /// The parsed packet of a lane.
    pub(super) fn parsed(&self, classifier: &'a Classifier, lane: usize) -> Parsed<'a> {
        let output = classifier
            .point
            .is_behind_route()
            .then(|| self.routes.next_hops.view().record(self.burst.next[lane]))
            .flatten()
            .map(|record| record.link().0);
        let rules = (classifier.version, classifier.point, classifier.past_auth);
        Parsed::new(self.burst, self.umem, lane, rules, &classifier.live, output)
    }

    /// The class of a packet for one field.
    pub(super) fn class_of(&self, dim: &Dim, parsed: &Parsed<'_>, lane: usize) -> u32 {
        dim.class(match dim.field {
            Field::Connection(field) => self.connections.number(lane, field),
            field => parsed.number(field, self.mark[lane]),
        })
    }
}
