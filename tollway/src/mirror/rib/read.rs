//! What can be asked of all routes.

use tollway_dataplane::tables::RoutePrefix;

use super::shelf::Alias;
use super::{Body, BodyId, Choice, Dest, Rib, Where, address, place};
use crate::mirror::kernel::{Family, Hop, Nexthop, NexthopId, TableId};

impl Rib {
    /// The kernel's choice for a destination, for packets without a type of service.
    #[must_use]
    pub fn choice(&self, dest: Dest) -> Choice {
        let Some(at) = self.find(dest.table, dest.prefix) else { return Choice::Nothing };
        self.look(at, |aliases| self.choose(at, aliases))
    }

    /// The longest prefix of a table that covers `prefix` and leads somewhere, itself included.
    #[must_use]
    pub fn longest(&self, table: TableId, prefix: RoutePrefix) -> Option<(RoutePrefix, Choice)> {
        let (bits, len, family) = match prefix {
            RoutePrefix::V4(prefix) => (prefix, prefix.len(), Family::V4),
            RoutePrefix::V6(prefix) => (prefix, prefix.len(), Family::V6),
        };
        let table_at = *self.by_number.get(&table)?;
        let lengths = &self.tables.get(table_at as usize)?.lengths[place(family)];
        if self.is_held(Where::new(table_at, prefix)) {
            return Some((prefix, Choice::Kernel));
        }
        lengths.range(..=len).rev().find_map(|(len, _)| {
            let address = address(family, bits.bits());
            let prefix = RoutePrefix::new(address, *len);
            let choice = self.choice(Dest { table, prefix });
            (choice != Choice::Nothing).then_some((prefix, choice))
        })
    }

    /// Every destination that leads somewhere, in no order.
    pub fn each(&self, mut each: impl FnMut(Dest, Choice)) {
        let mut visit = |at: Where, aliases: &[Alias]| {
            let choice = self.choose(at, aliases);
            if choice != Choice::Nothing {
                each(self.dest(at), choice);
            }
        };
        self.v4.each(|key, aliases| visit(Where::V4(key), aliases));
        self.v6.each(|key, aliases| visit(Where::V6(key), aliases));
        self.held_alone().for_each(|dest| each(dest, Choice::Kernel));
    }

    /// Every destination that has routes, whether they lead anywhere or not, or is [held](Rib::hold); in no
    /// order.
    pub fn each_dest(&self, mut each: impl FnMut(Dest)) {
        self.held_alone().for_each(&mut each);
        self.v4.each(|key, _| each(self.dest(Where::V4(key))));
        self.v6.each(|key, _| each(self.dest(Where::V6(key))));
    }

    /// Every route, in no order but that of those to one destination.
    pub fn each_route(&self, mut each: impl FnMut(Dest, &Body)) {
        let mut visit = |at: Where, aliases: &[Alias]| {
            for alias in aliases {
                each(self.dest(at), self.bodies.get(alias.body));
            }
        };
        self.v4.each(|key, aliases| visit(Where::V4(key), aliases));
        self.v6.each(|key, aliases| visit(Where::V6(key), aliases));
    }

    /// Destinations in all tables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Says if there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says if a table has a route of a family.
    #[must_use]
    pub fn has(&self, table: TableId, family: Family) -> bool {
        let table = self.by_number.get(&table).and_then(|at| self.tables.get(*at as usize));
        table.is_some_and(|table| !table.lengths[place(family)].is_empty())
    }

    /// Says if a table has ever had a route.
    #[must_use]
    pub fn has_had(&self, table: TableId) -> bool {
        self.by_number.contains_key(&table)
    }

    /// What a route is, by the number that a [`Choice`] has; good until the next event.
    #[must_use]
    pub fn body(&self, id: BodyId) -> &Body {
        self.bodies.get(id)
    }

    /// Every body that a route has.
    pub(in crate::mirror) fn each_body(&self, mut each: impl FnMut(&Body)) {
        self.bodies.iter().for_each(|(_, body)| each(body));
    }

    /// The destinations of all routes whose bodies are meant, in no order.
    pub(in crate::mirror) fn dests_where(&self, is_meant: impl Fn(&Body) -> bool) -> Vec<Dest> {
        let ids = self.bodies.find(is_meant);
        let found = self.where_bodies(&ids);
        found.into_iter().map(|at| self.dest(at)).collect()
    }

    /// Anything may have changed: tables are to be filled anew.
    pub fn touch_all(&mut self) {
        self.touched = None;
    }

    /// A next-hop object.
    #[must_use]
    pub fn nexthop(&self, id: NexthopId) -> Option<&Nexthop> {
        self.state.nexthops.get(&id)
    }

    /// Says if packets can go by one of a route's own next hops now.
    #[must_use]
    pub fn is_usable(&self, hop: &Hop, family: Family) -> bool {
        self.state.is_usable(hop, family)
    }

    /// Says if packets can go by a member of a group now.
    #[must_use]
    pub fn is_member_usable(&self, id: NexthopId, family: Family) -> bool {
        self.state.is_member(id, family)
    }
}
