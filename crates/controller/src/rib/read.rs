//! Read access to the RIB.

use tollway_dataplane::prefix::RoutePrefix;

use super::route_store::Alias;
use super::{Choice, Dest, DestKey, Rib, RouteAttrs, RouteAttrsId, address, place};
use crate::kernel::{Family, Hop, Nexthop, NexthopId, TableId};

impl Rib {
    /// The kernel's choice for a destination, for packets without a type of service.
    #[must_use]
    pub fn choice(&self, dest: Dest) -> Choice {
        let Some(at) = self.find(dest.table, dest.prefix) else { return Choice::Nothing };
        self.look(at, |aliases| self.choose(at, aliases))
    }

    /// The longest prefix of a table that covers `prefix`, itself included, and has a choice.
    #[must_use]
    pub fn longest(&self, table: TableId, prefix: RoutePrefix) -> Option<(RoutePrefix, Choice)> {
        let (bits, len, family) = match prefix {
            RoutePrefix::V4(prefix) => (prefix, prefix.len(), Family::V4),
            RoutePrefix::V6(prefix) => (prefix, prefix.len(), Family::V6),
        };
        let table_at = *self.by_number.get(&table)?;
        let lengths = &self.tables.get(table_at as usize)?.lengths[place(family)];
        if self.is_bypassed(DestKey::new(table_at, prefix)) {
            return Some((prefix, Choice::Kernel));
        }
        lengths.range(..=len).rev().find_map(|(len, _)| {
            let address = address(family, bits.bits());
            let prefix = RoutePrefix::new(address, *len);
            let choice = self.choice(Dest { table, prefix });
            (choice != Choice::Nothing).then_some((prefix, choice))
        })
    }

    /// Calls a function with every destination that has a choice, in no particular order.
    pub fn each(&self, mut each: impl FnMut(Dest, Choice)) {
        let mut visit = |at: DestKey, aliases: &[Alias]| {
            let choice = self.choose(at, aliases);
            if choice != Choice::Nothing {
                each(self.dest(at), choice);
            }
        };
        self.v4.each(|key, aliases| visit(DestKey::V4(key), aliases));
        self.v6.each(|key, aliases| visit(DestKey::V6(key), aliases));
        self.kernel_path_dests_without_route().for_each(|dest| each(dest, Choice::Kernel));
    }

    /// Calls a function with every destination that has routes, usable or not, in no particular order. Includes
    /// destinations that take the kernel path in any case ([`Rib::set_kernel_path_dests`]).
    pub fn each_dest(&self, mut each: impl FnMut(Dest)) {
        self.kernel_path_dests_without_route().for_each(&mut each);
        self.v4.each(|key, _| each(self.dest(DestKey::V4(key))));
        self.v6.each(|key, _| each(self.dest(DestKey::V6(key))));
    }

    /// Calls a function with every route; only routes to one destination come in order.
    pub fn each_route(&self, mut each: impl FnMut(Dest, &RouteAttrs)) {
        let mut visit = |at: DestKey, aliases: &[Alias]| {
            for alias in aliases {
                each(self.dest(at), self.attrs_store.get(alias.attrs));
            }
        };
        self.v4.each(|key, aliases| visit(DestKey::V4(key), aliases));
        self.v6.each(|key, aliases| visit(DestKey::V6(key), aliases));
    }

    /// The number of destinations in all tables.
    #[must_use]
    pub fn len(&self) -> usize {
        self.v4.len() + self.v6.len()
    }

    /// Says whether there is no route.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Says whether a table has a route of a family.
    #[must_use]
    pub fn has(&self, table: TableId, family: Family) -> bool {
        let table = self.by_number.get(&table).and_then(|at| self.tables.get(*at as usize));
        table.is_some_and(|table| !table.lengths[place(family)].is_empty())
    }

    /// Says whether a table has ever had a route.
    #[must_use]
    pub fn has_had(&self, table: TableId) -> bool {
        self.by_number.contains_key(&table)
    }

    /// The attributes of a route, by the number in a [`Choice`]; the number is valid until the next event.
    #[must_use]
    pub fn attrs(&self, id: RouteAttrsId) -> &RouteAttrs {
        self.attrs_store.get(id)
    }

    /// Calls a function with the attributes of every route, each once.
    pub(crate) fn each_attrs(&self, mut each: impl FnMut(&RouteAttrs)) {
        self.attrs_store.iter().for_each(|(_, attrs)| each(attrs));
    }

    /// The destinations of all routes whose attributes match, in no particular order.
    pub(crate) fn dests_where(&self, is_meant: impl Fn(&RouteAttrs) -> bool) -> Vec<Dest> {
        let ids = self.attrs_store.find(is_meant);
        let found = self.destinations_of(&ids);
        found.into_iter().map(|at| self.dest(at)).collect()
    }

    /// Records that anything may have changed: the tables have to be rebuilt.
    pub fn touch_all(&mut self) {
        self.touched = None;
    }

    /// A next-hop object.
    #[must_use]
    pub fn nexthop(&self, id: NexthopId) -> Option<&Nexthop> {
        self.state.nexthops.get(&id)
    }

    /// Says whether one of a route's own next hops is usable now.
    #[must_use]
    pub fn is_usable(&self, hop: &Hop, family: Family) -> bool {
        self.state.is_usable(hop, family)
    }

    /// Says whether a member of a group is usable now.
    #[must_use]
    pub fn is_member_usable(&self, id: NexthopId, family: Family) -> bool {
        self.state.is_member(id, family)
    }
}
