//! The attributes of routes, each stored once: most of a million routes share them.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use crate::kernel::{Family, Ifindex, Route, RouteKey};

/// The number of a [`RouteAttrs`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RouteAttrsId(pub(super) u32);

impl RouteAttrsId {
    /// The number used when no number is free: such routes take the kernel path.
    pub(super) const FULL: Self = Self(0);
    /// The most numbers.
    pub(super) const MOST: u32 = 1 << 23;
}

/// The attributes of a route: all but its destination and table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RouteAttrs {
    /// The family of the destination.
    pub family: Family,
    /// Type of service, 0 for any.
    pub tos: u8,
    /// Metric: lower wins.
    pub priority: u32,
    /// Kind, next hops and the rest.
    pub route: Route,
}

impl RouteAttrs {
    /// The attributes of a route from an event.
    #[must_use]
    pub fn new(key: &RouteKey, route: Route) -> Self {
        let family = if key.dst.addr().is_ipv4() { Family::V4 } else { Family::V6 };
        Self { family, tos: key.tos, priority: key.priority, route }
    }

    /// Says whether one of the route's own next hops is by a device.
    #[must_use]
    pub fn is_by(&self, device: Ifindex) -> bool {
        self.route.hops.list().iter().any(|hop| hop.ifindex == device)
    }

    /// Says whether both are of one key: the kernel determines the order among such routes.
    pub(super) fn has_same_key(&self, other: &Self) -> bool {
        (self.tos, self.priority) == (other.tos, other.priority)
    }
}

#[derive(Debug)]
struct Entry {
    attrs: RouteAttrs,
    users: u32,
    /// Other attributes with the same hash.
    next: Option<RouteAttrsId>,
}

/// All attributes, by number; unused ones are removed.
#[derive(Debug)]
pub(super) struct RouteAttrsStore {
    full: RouteAttrs,
    entries: Vec<Option<Entry>>,
    spare: Vec<RouteAttrsId>,
    by_hash: HashMap<u64, RouteAttrsId>,
    hasher: RandomState,
}

impl RouteAttrsStore {
    /// A store with only the attributes for routes that get no number.
    pub(super) fn new(full: RouteAttrs) -> Self {
        let (spare, by_hash, hasher) = Default::default();
        Self { full, entries: vec![None], spare, by_hash, hasher }
    }

    pub(super) fn get(&self, id: RouteAttrsId) -> &RouteAttrs {
        // All numbers come from here.
        let entry = self.entries.get(id.0 as usize).and_then(Option::as_ref);
        entry.map_or(&self.full, |entry| &entry.attrs)
    }

    /// The number of attributes, which get one more user.
    pub(super) fn acquire(&mut self, attrs: RouteAttrs) -> RouteAttrsId {
        let hash = self.hasher.hash_one(&attrs);
        let mut at = self.by_hash.get(&hash).copied();
        while let Some(id) = at {
            let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { break };
            if entry.attrs == attrs {
                entry.users += 1;
                return id;
            }
            at = entry.next;
        }
        let Some(id) = self.number() else { return RouteAttrsId::FULL };
        let next = self.by_hash.insert(hash, id);
        self.entries[id.0 as usize] = Some(Entry { attrs, users: 1, next });
        id
    }

    fn number(&mut self) -> Option<RouteAttrsId> {
        if let Some(id) = self.spare.pop() {
            return Some(id);
        }
        let id = u32::try_from(self.entries.len()).ok().filter(|id| *id < RouteAttrsId::MOST)?;
        self.entries.push(None);
        Some(RouteAttrsId(id))
    }

    /// Removes one user of a number.
    pub(super) fn release(&mut self, id: RouteAttrsId) {
        if id == RouteAttrsId::FULL {
            return;
        }
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        entry.users -= 1;
        if entry.users == 0 {
            self.unlink(id);
            self.entries[id.0 as usize] = None;
            self.spare.push(id);
        }
    }

    fn unlink(&mut self, id: RouteAttrsId) {
        let Some(Some(entry)) = self.entries.get(id.0 as usize) else { return };
        let (hash, next) = (self.hasher.hash_one(&entry.attrs), entry.next);
        let mut at = self.by_hash.get(&hash).copied();
        if at == Some(id) {
            match next {
                Some(next) => self.by_hash.insert(hash, next),
                None => self.by_hash.remove(&hash),
            };
            return;
        }
        while let Some(before) = at {
            let Some(Some(entry)) = self.entries.get_mut(before.0 as usize) else { return };
            if entry.next == Some(id) {
                entry.next = next;
                return;
            }
            at = entry.next;
        }
    }

    /// Changes attributes for all their users.
    pub(super) fn change(&mut self, id: RouteAttrsId, change: impl FnOnce(&mut RouteAttrs)) {
        self.unlink(id);
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        change(&mut entry.attrs);
        let hash = self.hasher.hash_one(&entry.attrs);
        entry.next = self.by_hash.insert(hash, id);
    }

    /// All attributes in use, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (RouteAttrsId, &RouteAttrs)> {
        let used = self.entries.iter().enumerate().skip(1);
        used.filter_map(|(id, entry)| Some((RouteAttrsId(id as u32), &entry.as_ref()?.attrs)))
    }

    /// The numbers of the attributes that match.
    pub(super) fn find(&self, is_meant: impl Fn(&RouteAttrs) -> bool) -> HashSet<RouteAttrsId> {
        self.iter().filter(|(_, attrs)| is_meant(attrs)).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::{Hops, RouteKind};

    fn attrs(priority: u32) -> RouteAttrs {
        let route = Route {
            kind: RouteKind::Blackhole,
            hops: Hops::None,
            protocol: 4,
            prefsrc: None,
            mtu: 0,
            unsupported: false,
        };
        RouteAttrs { family: Family::V4, tos: 0, priority, route }
    }

    #[test]
    fn equal_ones_are_kept_once_until_nobody_uses_them() {
        let mut attrs_store = RouteAttrsStore::new(attrs(0));
        let ids: Vec<_> = (1..=3).map(|priority| attrs_store.acquire(attrs(priority))).collect();
        assert_eq!(attrs_store.acquire(attrs(2)), ids[1]);
        attrs_store.release(ids[1]);
        assert_eq!(attrs_store.get(ids[1]), &attrs(2));
        attrs_store.release(ids[1]);
        assert_eq!(attrs_store.iter().map(|(id, _)| id).collect::<Vec<_>>(), [ids[0], ids[2]]);
        assert_eq!(attrs_store.acquire(attrs(9)), ids[1], "the number is used again");
    }

    #[test]
    fn a_changed_one_is_found_as_it_is_now() {
        let mut attrs_store = RouteAttrsStore::new(attrs(0));
        let id = attrs_store.acquire(attrs(1));
        attrs_store.change(id, |attrs| attrs.priority = 5);
        assert_eq!(attrs_store.acquire(attrs(5)), id);
        assert_ne!(attrs_store.acquire(attrs(1)), id);
    }
}
