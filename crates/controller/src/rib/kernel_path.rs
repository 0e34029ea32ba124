//! Destinations that take the kernel path, regardless of their routes.

use std::collections::BTreeSet;
use std::net::Ipv4Addr;

use super::route_store::{Key4, Tag};
use super::{Dest, DestKey, Rib, TableInfo, place};
use crate::kernel::Family;

/// The length of a host's prefix.
const HOST: u8 = 32;

impl Rib {
    /// Sets the IPv4 destinations that take the kernel path from now on, in all tables.
    pub fn set_kernel_path_dests(&mut self, dests: BTreeSet<Ipv4Addr>) {
        let before = std::mem::replace(&mut self.kernel_path_dests, dests);
        let changed: Vec<_> =
            before.symmetric_difference(&self.kernel_path_dests).copied().collect();
        for at in self.in_all_tables(&changed).collect::<Vec<_>>() {
            self.touch(at);
        }
    }

    pub(super) fn is_bypassed(&self, at: DestKey) -> bool {
        let DestKey::V4(Key4(tag, address)) = at else { return false };
        tag.len() == HOST
            && self.kernel_path_dests.contains(&Ipv4Addr::from_bits(address))
            && self.tables.get(tag.table() as usize).is_some_and(TableInfo::has_v4)
    }

    /// Touches these destinations in a table that got its first IPv4 route, or lost its last.
    pub(super) fn touch_kernel_path_dests(&mut self, of: Tag) {
        let tag = Tag::new(of.table(), HOST);
        let key = |dest: &Ipv4Addr| Key4(tag, dest.to_bits());
        let keys: Vec<_> = self.kernel_path_dests.iter().map(key).collect();
        keys.into_iter().for_each(|key| self.touch(DestKey::V4(key)));
    }

    /// Those of these destinations that have no route of their own.
    pub(super) fn kernel_path_dests_without_route(&self) -> impl Iterator<Item = Dest> {
        let all = self.in_all_tables(&self.kernel_path_dests);
        all.filter(|at| self.look(*at, <[_]>::is_empty)).map(|at| self.dest(at))
    }

    /// Addresses, in all tables that have IPv4 routes.
    fn in_all_tables<'a>(
        &'a self,
        addresses: impl IntoIterator<Item = &'a Ipv4Addr>,
    ) -> impl Iterator<Item = DestKey> {
        let tables = || self.tables.iter().enumerate().filter(|(_, table)| table.has_v4());
        addresses.into_iter().flat_map(move |address| {
            let at = |table| DestKey::V4(Key4(Tag::new(table, HOST), address.to_bits()));
            tables().map(move |(number, _)| at(number as u32))
        })
    }
}

impl TableInfo {
    fn has_v4(&self) -> bool {
        !self.lengths[place(Family::V4)].is_empty()
    }
}
