//! The RIB: all routes of all tables, and the kernel's choice for each destination.
//!
//! It keeps a million routes in little memory. The attributes of routes, apart from their destination, are
//! stored once for all routes that share them. A destination with one route takes 13 bytes
//! (`route_store.rs`). Several routes to one destination keep the kernel's order (`order.rs`), which
//! determines the route that applies (`choice.rs`).
//!
//! The kernel drops routes without notification when a device goes down or an address or a next-hop object
//! goes (`fib_sync_down_dev`, `fib_sync_down_addr`, `nexthop_flush_dev`). The RIB derives these drops at once
//! (`drops.rs`), and [`Rib::doubts`] then requests a new list.
//!
//! To program tables from it, use [`Rib::take_touched`], which reports the destinations whose choice may have
//! changed.

mod attrs_store;
mod choice;
mod drops;
mod kernel_path;
mod order;
mod read;
mod route_store;
mod state;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use tollway_dataplane::prefix::RoutePrefix;

use super::event::{Change, Event, Presence};
use super::kernel::{Family, Hops, Kernel, Route, RouteKey, RouteKind, TableId};
use attrs_store::RouteAttrsStore;
pub use attrs_store::{RouteAttrs, RouteAttrsId};
pub use choice::Choice;
use order::Edit;
use route_store::{Alias, Key4, Key6, RouteStore, Tag};
use state::State;
pub use state::{Ignoring, MAIN};

/// A destination in a table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Dest {
    /// The table.
    pub table: TableId,
    /// The prefix.
    pub prefix: RoutePrefix,
}

impl Dest {
    /// The prefix in its usual notation.
    #[must_use]
    pub fn net(&self) -> IpNet {
        let (address, len): (IpAddr, u8) = match self.prefix {
            RoutePrefix::V4(prefix) => (address(Family::V4, prefix.bits()), prefix.len()),
            RoutePrefix::V6(prefix) => (address(Family::V6, prefix.bits()), prefix.len()),
        };
        IpNet::new(address, len).unwrap_or_else(|_| IpNet::from(address))
    }
}

/// What may have changed since the last call of [`Rib::take_touched`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Touched {
    /// Anything: the tables have to be rebuilt.
    All,
    /// The routes of these destinations. With `hops`, also next hops that routes share: devices, next-hop
    /// objects.
    Some {
        /// In the order of their changes; a destination may occur more than once.
        dests: Vec<Dest>,
        /// Next hops may lead elsewhere.
        hops: bool,
    },
}

/// All routes of all tables.
#[derive(Debug)]
pub struct Rib {
    v4: RouteStore<Key4>,
    v6: RouteStore<Key6>,
    attrs_store: RouteAttrsStore,
    state: State,
    tables: Vec<TableInfo>,
    by_number: HashMap<TableId, u32>,
    generations: [u8; 2],
    audited: [bool; 2],
    drift: Vec<Dest>,
    /// Destinations that take the kernel path, whatever the routes say ([`Rib::set_kernel_path_dests`]).
    kernel_path_dests: BTreeSet<Ipv4Addr>,
    touched: Option<Vec<DestKey>>,
    hops_touched: bool,
    doubts: bool,
}

/// A table, and the number of its destinations.
#[derive(Debug, Default)]
struct TableInfo {
    id: TableId,
    /// The number of destinations by family and prefix length.
    lengths: [BTreeMap<u8, u32>; 2],
}

/// A destination in its stored form.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DestKey {
    V4(Key4),
    V6(Key6),
}

impl Default for Rib {
    fn default() -> Self {
        Self::new()
    }
}

impl Rib {
    /// A RIB without routes.
    #[must_use]
    pub fn new() -> Self {
        let (kind, hops) = (RouteKind::Other(0), Hops::None);
        let route = Route { kind, hops, protocol: 0, prefsrc: None, mtu: 0, unsupported: true };
        let full = RouteAttrs { family: Family::V4, tos: 0, priority: 0, route };
        Self {
            v4: RouteStore::default(),
            v6: RouteStore::default(),
            attrs_store: RouteAttrsStore::new(full),
            state: State::default(),
            tables: Vec::new(),
            by_number: HashMap::new(),
            generations: [0; 2],
            audited: [false; 2],
            drift: Vec::new(),
            kernel_path_dests: BTreeSet::new(),
            touched: None,
            hops_touched: false,
            doubts: false,
        }
    }

    /// Applies an event.
    pub fn apply(&mut self, event: &Event) {
        match event {
            Event::Whole(kernel) => self.apply_whole(kernel),
            Event::Link(index, netdev) => self.apply_device(*index, netdev.as_deref()),
            Event::Address(address, Presence::Here) => self.address_here(address),
            Event::Address(address, Presence::Gone) => self.address_gone(address),
            Event::Nexthop(id, nexthop) => self.apply_nexthop(*id, nexthop.as_ref()),
            Event::Route(key, route, change) => self.apply_route(key, route, *change),
            Event::Listing { family, audit } => {
                let generation = &mut self.generations[place(*family)];
                *generation = generation.wrapping_add(1);
                self.audited[place(*family)] = *audit;
            }
            Event::Listed { family, lists } => self.sweep(*family, *lists),
            Event::BridgePort(..)
            | Event::Rule(..)
            | Event::Complete
            | Event::Lost
            | Event::Sysctl(..)
            | Event::Tc(_) => {}
        }
    }

    fn apply_route(&mut self, key: &RouteKey, route: &Route, change: Change) {
        let mut route = route.clone();
        if let (Hops::Object(id), RouteKind::Blackhole) = (&route.hops, route.kind)
            && self.state.drops(*id)
        {
            // The object determines the kind now (`fib_dump_info`).
            route.kind = RouteKind::Unicast;
        }
        self.state.clear_explained_flags(&mut route, key.family());
        let Some(at) = self.enter_place(key.table, key.dst) else {
            self.doubts = true;
            return;
        };
        let attrs = RouteAttrs::new(key, route);
        let family = place(attrs.family);
        let generation = self.generations[family];
        if change == Change::Listed && self.confirm(at, &attrs, generation) {
            return;
        }
        let attrs_store = &mut self.attrs_store;
        let (mut before, mut after, mut gone) = (Vec::new(), Vec::new(), Vec::new());
        let mut ambiguous = false;
        let make = |aliases: &mut Vec<Alias>| {
            before.extend(aliases.iter().map(|alias| alias.attrs));
            let mut edit =
                Edit { attrs_store, aliases, generation, gone: Vec::new(), ambiguous: false };
            edit.make(attrs, change);
            (gone, ambiguous) = (edit.gone, edit.ambiguous);
            after.extend(aliases.iter().map(|alias| alias.attrs));
        };
        match at {
            DestKey::V4(key) => self.v4.edit(key, make),
            DestKey::V6(key) => self.v6.edit(key, make),
        }
        gone.into_iter().for_each(|attrs| self.attrs_store.release(attrs));
        self.doubts |= ambiguous;
        self.count(at, before.is_empty(), after.is_empty());
        if before != after {
            self.touch(at);
            if change == Change::Listed && self.audited[family] {
                self.drift.push(self.dest(at));
            }
        }
    }

    /// Stamps the only route to a destination if the list shows it as known; false if it does not, or if
    /// there are several. In an audit this handles most of a million routes.
    fn confirm(&mut self, at: DestKey, attrs: &RouteAttrs, generation: u8) -> bool {
        let is_known = |known: RouteAttrsId| self.attrs_store.get(known) == attrs;
        match at {
            DestKey::V4(key) => self.v4.stamp(key, generation, is_known),
            DestKey::V6(key) => self.v6.stamp(key, generation, is_known),
        }
    }

    /// Removes the routes of a family that are missing in the last lists.
    fn sweep(&mut self, family: Family, lists: u8) {
        let generation = self.generations[place(family)];
        let fresh = |alias: Alias| generation.wrapping_sub(alias.stamp) < lists;
        let lost = self.remove_where(family, None, |alias| !fresh(alias));
        if std::mem::take(&mut self.audited[place(family)]) {
            let lost = lost.iter().map(|at| self.dest(*at)).collect::<Vec<_>>();
            self.drift.extend(lost);
        }
    }

    /// Removes routes of a family, from all tables or from one; returns their destinations.
    fn remove_where(
        &mut self,
        family: Family,
        table: Option<u32>,
        unwanted: impl Fn(Alias) -> bool,
    ) -> Vec<DestKey> {
        let (mut lost, mut gone) = (Vec::new(), Vec::new());
        let stays = |tag: Tag, alias: Alias| {
            table.is_some_and(|table| table != tag.table()) || !unwanted(alias)
        };
        let mut lose = |at, alias: Alias| {
            lost.push(at);
            gone.push(alias.attrs);
        };
        match family {
            Family::V4 => self.v4.sweep(
                |key, alias| stays(key.0, alias),
                |key, alias| lose(DestKey::V4(key), alias),
            ),
            Family::V6 => self.v6.sweep(
                |key, alias| stays(key.0, alias),
                |key, alias| lose(DestKey::V6(key), alias),
            ),
        }
        gone.into_iter().for_each(|attrs| self.attrs_store.release(attrs));
        // A destination that lost several routes occurs once for each of them, one after the other.
        lost.dedup();
        for at in &lost {
            self.touch(*at);
            let empty = self.look(*at, <[Alias]>::is_empty);
            self.count(*at, false, empty);
        }
        lost
    }

    fn touch(&mut self, at: DestKey) {
        if let Some(touched) = &mut self.touched {
            touched.push(at);
        }
    }

    fn count(&mut self, at: DestKey, was_empty: bool, is_empty: bool) {
        let (tag, family) = at.tag();
        let Some(table) = self.tables.get_mut(tag.table() as usize) else { return };
        let lengths = &mut table.lengths[place(family)];
        let had_any = !lengths.is_empty();
        match (was_empty, is_empty) {
            (true, false) => *lengths.entry(tag.len()).or_default() += 1,
            (false, true) => {
                let left = lengths.get_mut(&tag.len()).map_or(0, |count| {
                    *count -= 1;
                    *count
                });
                if left == 0 {
                    lengths.remove(&tag.len());
                }
            }
            _ => {}
        }
        if family == Family::V4 && had_any == lengths.is_empty() {
            self.touch_kernel_path_dests(tag);
        }
    }

    fn enter_place(&mut self, table: TableId, dst: IpNet) -> Option<DestKey> {
        let number = match self.by_number.get(&table) {
            Some(number) => *number,
            None => {
                let number = u32::try_from(self.tables.len()).ok();
                let number = number.filter(|number| *number < Tag::MOST_TABLES)?;
                self.tables.push(TableInfo { id: table, ..TableInfo::default() });
                self.by_number.insert(table, number);
                number
            }
        };
        Some(DestKey::new(number, RoutePrefix::new(dst.addr(), dst.prefix_len())))
    }

    fn find(&self, table: TableId, prefix: RoutePrefix) -> Option<DestKey> {
        self.by_number.get(&table).map(|number| DestKey::new(*number, prefix))
    }

    fn dest(&self, at: DestKey) -> Dest {
        let (tag, _) = at.tag();
        let table = self.tables.get(tag.table() as usize).map_or(0, |table| table.id);
        Dest { table, prefix: at.prefix() }
    }

    fn look<T>(&self, at: DestKey, look: impl FnOnce(&[Alias]) -> T) -> T {
        match at {
            DestKey::V4(key) => self.v4.look(key, look),
            DestKey::V6(key) => self.v6.look(key, look),
        }
    }

    fn choose(&self, at: DestKey, aliases: &[Alias]) -> Choice {
        if self.is_bypassed(at) {
            return Choice::Kernel;
        }
        choice::choose(&self.attrs_store, &self.state, at.tag().0.len(), aliases)
    }

    /// Sets the devices whose routes the kernel ignores while they have no carrier.
    pub fn set_ignoring(&mut self, ignoring: Ignoring) {
        if self.state.ignoring != ignoring {
            let before = std::mem::replace(&mut self.state.ignoring, ignoring);
            let now = self.state.ignoring.clone();
            let v4 = before.v4.symmetric_difference(&now.v4).copied();
            let v6 = before.v6.symmetric_difference(&now.v6).copied();
            let devices: Vec<_> = v4.chain(v6).collect();
            // The kernel has not notified whether an ignored next hop was dead as well.
            self.doubts |= !self.is_empty();
            devices.into_iter().for_each(|device| self.device_changed(device));
        }
    }

    /// Returns what may have changed since the last call; at first, anything.
    pub fn take_touched(&mut self) -> Touched {
        let hops = std::mem::take(&mut self.hops_touched);
        match self.touched.replace(Vec::new()) {
            None => Touched::All,
            Some(touched) => {
                let dests = touched.into_iter().map(|at| self.dest(at)).collect();
                Touched::Some { dests, hops }
            }
        }
    }

    /// The destinations that [`Rib::take_touched`] would return, without taking them.
    pub(super) fn touched(&self) -> impl Iterator<Item = Dest> {
        self.touched.iter().flatten().map(|at| self.dest(*at))
    }

    /// Returns, once, whether something was derived that only a new list of all routes can confirm.
    pub fn doubts(&mut self) -> bool {
        std::mem::take(&mut self.doubts)
    }

    /// Returns, once, the destinations that an audit found to differ from what was known.
    pub fn take_drift(&mut self) -> Vec<Dest> {
        std::mem::take(&mut self.drift)
    }

    fn apply_whole(&mut self, kernel: &Kernel) {
        let gone: Vec<_> = self.state.devices.keys().copied().collect();
        for index in gone.into_iter().filter(|index| !kernel.netdevs.contains_key(index)) {
            self.apply_device(index, None);
        }
        for (index, netdev) in &kernel.netdevs {
            self.apply_device(*index, Some(netdev));
        }
        self.state.addresses.clear();
        for address in &kernel.addresses {
            self.state.add_address(address);
        }
        if self.is_empty() {
            self.state.nexthops.clone_from(&kernel.nexthops);
            return;
        }
        let gone: Vec<_> = self.state.nexthops.keys().copied().collect();
        for id in gone.into_iter().filter(|id| !kernel.nexthops.contains_key(id)) {
            self.apply_nexthop(id, None);
        }
        for (id, nexthop) in &kernel.nexthops {
            self.apply_nexthop(*id, Some(nexthop));
        }
    }
}

impl DestKey {
    fn new(table: u32, prefix: RoutePrefix) -> Self {
        match prefix {
            RoutePrefix::V4(prefix) => {
                Self::V4(Key4(Tag::new(table, prefix.len()), (prefix.bits() >> 96) as u32))
            }
            RoutePrefix::V6(prefix) => {
                let bits = prefix.bits();
                let words = [96, 64, 32, 0].map(|shift| (bits >> shift) as u32);
                Self::V6(Key6(Tag::new(table, prefix.len()), words))
            }
        }
    }

    const fn tag(self) -> (Tag, Family) {
        match self {
            Self::V4(Key4(tag, _)) => (tag, Family::V4),
            Self::V6(Key6(tag, _)) => (tag, Family::V6),
        }
    }

    fn prefix(self) -> RoutePrefix {
        let len = self.tag().0.len();
        match self {
            Self::V4(Key4(_, address)) => {
                RoutePrefix::new(Ipv4Addr::from_bits(address).into(), len)
            }
            Self::V6(Key6(_, words)) => {
                let bits = words.into_iter().fold(0, |bits, word| bits << 32 | u128::from(word));
                RoutePrefix::new(Ipv6Addr::from_bits(bits).into(), len)
            }
        }
    }
}

/// The address with these bits, which are left-aligned.
fn address(family: Family, bits: u128) -> IpAddr {
    match family {
        Family::V4 => Ipv4Addr::from_bits((bits >> 96) as u32).into(),
        Family::V6 => Ipv6Addr::from_bits(bits).into(),
    }
}

const fn place(family: Family) -> usize {
    match family {
        Family::V4 => 0,
        Family::V6 => 1,
    }
}
