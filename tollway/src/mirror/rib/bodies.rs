//! What routes say beside their destination, each kept once: of a million routes most say the same.

use std::collections::{HashMap, HashSet};
use std::hash::{BuildHasher, RandomState};

use crate::mirror::kernel::{Family, Ifindex, Route, RouteKey};

/// The number of a [`Body`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BodyId(pub(super) u32);

impl BodyId {
    /// What stands for bodies that there is no number left for: such routes are the kernel's.
    pub(super) const FULL: Self = Self(0);
    /// Numbers that there are.
    pub(super) const MOST: u32 = 1 << 23;
}

/// A route without its destination and table.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Body {
    /// The family, which the destination had told.
    pub family: Family,
    /// Type of service, 0 for any.
    pub tos: u8,
    /// Metric: lower wins.
    pub priority: u32,
    /// What it does and where it leads.
    pub route: Route,
}

impl Body {
    /// The body of a route as told.
    #[must_use]
    pub fn new(key: &RouteKey, route: Route) -> Self {
        let family = if key.dst.addr().is_ipv4() { Family::V4 } else { Family::V6 };
        Self { family, tos: key.tos, priority: key.priority, route }
    }

    /// Says if one of its own next hops is by a device.
    #[must_use]
    pub fn is_by(&self, device: Ifindex) -> bool {
        self.route.hops.list().iter().any(|hop| hop.ifindex == device)
    }

    /// Says if the two are of one key: the order among such ones is the kernel's to tell.
    pub(super) fn is_rival(&self, other: &Self) -> bool {
        (self.tos, self.priority) == (other.tos, other.priority)
    }
}

#[derive(Debug)]
struct Entry {
    body: Body,
    users: u32,
    /// Another one with the same hash.
    next: Option<BodyId>,
}

/// All bodies, by number; one that nobody uses goes.
#[derive(Debug)]
pub(super) struct Bodies {
    full: Body,
    entries: Vec<Option<Entry>>,
    spare: Vec<BodyId>,
    by_hash: HashMap<u64, BodyId>,
    hasher: RandomState,
}

impl Bodies {
    /// None but the one that stands for too many.
    pub(super) fn new(full: Body) -> Self {
        let (spare, by_hash, hasher) = Default::default();
        Self { full, entries: vec![None], spare, by_hash, hasher }
    }

    pub(super) fn get(&self, id: BodyId) -> &Body {
        // Numbers come from here.
        let entry = self.entries.get(id.0 as usize).and_then(Option::as_ref);
        entry.map_or(&self.full, |entry| &entry.body)
    }

    /// The number of a body, which has one user more.
    pub(super) fn enter(&mut self, body: Body) -> BodyId {
        let hash = self.hasher.hash_one(&body);
        let mut at = self.by_hash.get(&hash).copied();
        while let Some(id) = at {
            let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { break };
            if entry.body == body {
                entry.users += 1;
                return id;
            }
            at = entry.next;
        }
        let Some(id) = self.number() else { return BodyId::FULL };
        let next = self.by_hash.insert(hash, id);
        self.entries[id.0 as usize] = Some(Entry { body, users: 1, next });
        id
    }

    fn number(&mut self) -> Option<BodyId> {
        if let Some(id) = self.spare.pop() {
            return Some(id);
        }
        let id = u32::try_from(self.entries.len()).ok().filter(|id| *id < BodyId::MOST)?;
        self.entries.push(None);
        Some(BodyId(id))
    }

    /// A number has one user less.
    pub(super) fn leave(&mut self, id: BodyId) {
        if id == BodyId::FULL {
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

    fn unlink(&mut self, id: BodyId) {
        let Some(Some(entry)) = self.entries.get(id.0 as usize) else { return };
        let (hash, next) = (self.hasher.hash_one(&entry.body), entry.next);
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

    /// Changes one for all its users.
    pub(super) fn change(&mut self, id: BodyId, change: impl FnOnce(&mut Body)) {
        self.unlink(id);
        let Some(Some(entry)) = self.entries.get_mut(id.0 as usize) else { return };
        change(&mut entry.body);
        let hash = self.hasher.hash_one(&entry.body);
        entry.next = self.by_hash.insert(hash, id);
    }

    /// All that are in use, with their numbers.
    pub(super) fn iter(&self) -> impl Iterator<Item = (BodyId, &Body)> {
        let used = self.entries.iter().enumerate().skip(1);
        used.filter_map(|(id, entry)| Some((BodyId(id as u32), &entry.as_ref()?.body)))
    }

    /// The numbers of those that are meant.
    pub(super) fn find(&self, is_meant: impl Fn(&Body) -> bool) -> HashSet<BodyId> {
        self.iter().filter(|(_, body)| is_meant(body)).map(|(id, _)| id).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mirror::kernel::{Hops, RouteKind};

    fn body(priority: u32) -> Body {
        let route = Route {
            kind: RouteKind::Blackhole,
            hops: Hops::None,
            protocol: 4,
            prefsrc: None,
            mtu: 0,
            odd: false,
        };
        Body { family: Family::V4, tos: 0, priority, route }
    }

    #[test]
    fn equal_ones_are_kept_once_until_nobody_uses_them() {
        let mut bodies = Bodies::new(body(0));
        let ids: Vec<_> = (1..=3).map(|priority| bodies.enter(body(priority))).collect();
        assert_eq!(bodies.enter(body(2)), ids[1]);
        bodies.leave(ids[1]);
        assert_eq!(bodies.get(ids[1]), &body(2));
        bodies.leave(ids[1]);
        assert_eq!(bodies.iter().map(|(id, _)| id).collect::<Vec<_>>(), [ids[0], ids[2]]);
        assert_eq!(bodies.enter(body(9)), ids[1], "the number is used again");
    }

    #[test]
    fn a_changed_one_is_found_as_it_is_now() {
        let mut bodies = Bodies::new(body(0));
        let id = bodies.enter(body(1));
        bodies.change(id, |body| body.priority = 5);
        assert_eq!(bodies.enter(body(5)), id);
        assert_ne!(bodies.enter(body(1)), id);
    }
}
