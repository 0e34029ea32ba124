//! Routes by table and destination, kept small: 13 bytes for most of a million IPv4 routes.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::{Hash, Hasher};

use super::attrs_store::RouteAttrsId;

/// The index of a table and a prefix's length.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Tag(pub(super) u32);

impl Tag {
    /// The most tables.
    pub(super) const MOST_TABLES: u32 = 1 << 24;

    pub(super) const fn new(table: u32, len: u8) -> Self {
        Self(table << 8 | len as u32)
    }

    pub(super) const fn table(self) -> u32 {
        self.0 >> 8
    }

    pub(super) const fn len(self) -> u8 {
        self.0 as u8
    }
}

/// The key of an IPv4 destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key4(pub(super) Tag, pub(super) u32);

impl Hash for Key4 {
    // Hashing one word takes half the time of two.
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u64(u64::from(self.0.0) << 32 | u64::from(self.1));
    }
}

/// The key of an IPv6 destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Key6(pub(super) Tag, pub(super) [u32; 4]);

/// One of the routes to a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Alias {
    pub(super) attrs: RouteAttrsId,
    /// The generation of lists in which it was last listed or notified.
    pub(super) stamp: u8,
}

/// The routes to a destination: a single one in place, or the number of a list.
#[derive(Clone, Copy, Debug)]
struct Slot(u32);

/// The bit of a slot that has the number of a list.
const SEVERAL: u32 = 1 << 31;
/// The position of the stamp in a slot with a single route.
const STAMP_SHIFT: u32 = 23;
/// The bits of a slot that are a number: of attributes, or of a list.
const NUMBER: u32 = RouteAttrsId::MOST - 1;

impl Slot {
    const fn one(alias: Alias) -> Self {
        Self((alias.stamp as u32) << STAMP_SHIFT | alias.attrs.0)
    }

    const fn several(number: u32) -> Self {
        Self(SEVERAL | number)
    }

    const fn alias(self) -> Alias {
        Alias { attrs: RouteAttrsId(self.0 & NUMBER), stamp: (self.0 >> STAMP_SHIFT) as u8 }
    }

    fn list(self) -> Option<usize> {
        (self.0 & SEVERAL != 0).then_some((self.0 & NUMBER) as usize)
    }
}

/// All routes of a family.
#[derive(Debug)]
pub(super) struct RouteStore<K> {
    slots: HashMap<K, Slot>,
    lists: Vec<Vec<Alias>>,
    spare: Vec<u32>,
}

impl<K> Default for RouteStore<K> {
    fn default() -> Self {
        Self { slots: HashMap::new(), lists: Vec::new(), spare: Vec::new() }
    }
}

impl<K: Hash + Eq + Copy> RouteStore<K> {
    /// The number of destinations with a route.
    pub(super) fn len(&self) -> usize {
        self.slots.len()
    }

    /// Calls a function with the routes to a destination, in the kernel's order.
    pub(super) fn look<T>(&self, key: K, look: impl FnOnce(&[Alias]) -> T) -> T {
        match self.slots.get(&key) {
            Some(slot) => self.look_in(*slot, look),
            None => look(&[]),
        }
    }

    fn look_in<T>(&self, slot: Slot, look: impl FnOnce(&[Alias]) -> T) -> T {
        match slot.list() {
            Some(list) => look(&self.lists[list]),
            None => look(&[slot.alias()]),
        }
    }

    /// Stamps the only route to a destination; false if there are others, or if it differs from the listed one.
    pub(super) fn stamp(
        &mut self,
        key: K,
        stamp: u8,
        is_meant: impl FnOnce(RouteAttrsId) -> bool,
    ) -> bool {
        let Some(slot) = self.slots.get_mut(&key).filter(|slot| slot.list().is_none()) else {
            return false;
        };
        let Alias { attrs, .. } = slot.alias();
        let is_meant = is_meant(attrs);
        if is_meant {
            *slot = Slot::one(Alias { attrs, stamp });
        }
        is_meant
    }

    /// Lets a function change the routes to a destination.
    pub(super) fn edit(&mut self, key: K, edit: impl FnOnce(&mut Vec<Alias>)) {
        let mut aliases = self.look(key, <[Alias]>::to_vec);
        edit(&mut aliases);
        self.set(key, aliases);
    }

    fn set(&mut self, key: K, aliases: Vec<Alias>) {
        let (lists, spare) = (&mut self.lists, &mut self.spare);
        match self.slots.entry(key) {
            Entry::Occupied(mut entry) => {
                let list = entry.get().list();
                match slot_for(lists, spare, list, aliases) {
                    Some(slot) => *entry.get_mut() = slot,
                    None => {
                        entry.remove();
                    }
                }
            }
            Entry::Vacant(entry) => {
                if let Some(slot) = slot_for(lists, spare, None, aliases) {
                    entry.insert(slot);
                }
            }
        }
    }

    /// Removes the routes that `keep` rejects; reports each of them and its destination to `lost`.
    pub(super) fn sweep(
        &mut self,
        mut keep: impl FnMut(K, Alias) -> bool,
        mut lost: impl FnMut(K, Alias),
    ) {
        let (lists, spare) = (&mut self.lists, &mut self.spare);
        self.slots.retain(|key, slot| {
            let Some(list) = slot.list() else {
                let alias = slot.alias();
                let kept = keep(*key, alias);
                if !kept {
                    lost(*key, alias);
                }
                return kept;
            };
            let mut aliases = std::mem::take(&mut lists[list]);
            aliases.retain(|alias| {
                let kept = keep(*key, *alias);
                if !kept {
                    lost(*key, *alias);
                }
                kept
            });
            let kept = slot_for(lists, spare, Some(list), aliases);
            if let Some(kept) = kept {
                *slot = kept;
            }
            kept.is_some()
        });
        self.slots.shrink_to((self.slots.len() * 2).max(1024));
    }

    /// Calls a function with every destination and its routes, in no particular order.
    pub(super) fn each(&self, mut each: impl FnMut(K, &[Alias])) {
        for (key, slot) in &self.slots {
            self.look_in(*slot, |aliases| each(*key, aliases));
        }
    }
}

/// The slot for these routes; `list` is the list that was there before.
fn slot_for(
    lists: &mut Vec<Vec<Alias>>,
    spare: &mut Vec<u32>,
    list: Option<usize>,
    aliases: Vec<Alias>,
) -> Option<Slot> {
    if let (Some(list), 0 | 1) = (list, aliases.len()) {
        lists[list] = Vec::new();
        spare.push(list as u32);
    }
    match aliases[..] {
        [] => None,
        [alias] => Some(Slot::one(alias)),
        _ => {
            let number = list.map(|list| list as u32).or_else(|| spare.pop());
            let number = number.unwrap_or_else(|| {
                lists.push(Vec::new());
                (lists.len() - 1) as u32
            });
            lists[number as usize] = aliases;
            Some(Slot::several(number))
        }
    }
}
