//! The order of the routes to one destination, and how a message changes it.
//!
//! `fib_table_insert` (`net/ipv4/fib_trie.c`) sorts by type of service, higher first, then by metric;
//! `fib6_add_rt2node` (`net/ipv6/ip6_fib.c`) sorts by metric. Among routes of one key, the message says
//! where a route belongs ([`Place`]).

use std::cmp::Reverse;
use std::ops::Range;

use super::attrs_store::{RouteAttrs, RouteAttrsId, RouteAttrsStore};
use super::route_store::Alias;
use crate::event::{Change, Place};
use crate::kernel::{Family, Hop, Hops, Route, RouteKey};

/// The routes to one destination while a message changes them.
pub(super) struct Edit<'a> {
    pub(super) attrs_store: &'a mut RouteAttrsStore,
    pub(super) aliases: &'a mut Vec<Alias>,
    pub(super) generation: u8,
    /// Attributes of removed routes. Their users are decremented later: their numbers must not be reused
    /// while the old and the new state are compared.
    pub(super) gone: Vec<RouteAttrsId>,
    /// The message is about an unknown route, or one that is not distinguishable from another.
    pub(super) ambiguous: bool,
}

impl Edit<'_> {
    /// Applies a message.
    pub(super) fn make(&mut self, attrs: RouteAttrs, change: Change) {
        match change {
            Change::Listed => self.list(attrs),
            Change::Add(place) => self.add(attrs, place),
            Change::Del => self.delete(&attrs),
        }
    }

    fn attrs(&self, at: usize) -> &RouteAttrs {
        self.attrs_store.get(self.aliases[at].attrs)
    }

    /// The routes of one key.
    fn same_key(&self, attrs: &RouteAttrs) -> Range<usize> {
        let rank = |attrs: &RouteAttrs| (Reverse(attrs.tos), attrs.priority);
        let before = |alias: &Alias| rank(self.attrs_store.get(alias.attrs)) < rank(attrs);
        let start = self.aliases.partition_point(before);
        let upto = |alias: &Alias| rank(self.attrs_store.get(alias.attrs)) <= rank(attrs);
        start..self.aliases.partition_point(upto)
    }

    fn same(&self, attrs: &RouteAttrs) -> Option<usize> {
        self.same_key(attrs).find(|at| self.attrs(*at).route.is_same(&attrs.route))
    }

    /// The route of the key that combines the siblings.
    fn joined(&self, attrs: &RouteAttrs) -> Option<usize> {
        if attrs.family != Family::V6 || attrs.tos == RouteKey::OF_SOURCES {
            return None;
        }
        let route = &attrs.route;
        let joins = |known: &Route| {
            (known.joins() && route.joins()) || known.is_among(route) || route.is_among(known)
        };
        self.same_key(attrs).find(|at| joins(&self.attrs(*at).route))
    }

    /// Places a listed route behind those that this list has already contained.
    fn list(&mut self, attrs: RouteAttrs) {
        let known = self.joined(&attrs).or_else(|| self.same(&attrs));
        if let Some(at) = known {
            if self.aliases[at].stamp == self.generation && self.same(&attrs) == Some(at) {
                return self.set(at, attrs);
            }
            let alias = self.aliases.remove(at);
            self.gone.push(alias.attrs);
        }
        let same_key = self.same_key(&attrs);
        let listed = self.aliases[same_key.clone()].iter();
        let listed = listed.take_while(|alias| alias.stamp == self.generation).count();
        self.insert(same_key.start + listed, attrs);
    }

    fn add(&mut self, mut attrs: RouteAttrs, place: Place) {
        if let Some(at) = self.joined(&attrs) {
            if place == Place::Last {
                let known = self.attrs(at).route.clone();
                keep_order(&known.hops, &mut attrs.route.hops);
                let first = |route: &Route| route.hops.list().first().copied();
                // Except for the next hops, the message has the new sibling's attributes. The kernel lists
                // those of the first one.
                if let (Some(before), Some(now)) = (first(&known), first(&attrs.route))
                    && before.leads_alike(&now)
                {
                    // If the first one's attributes are unknown, only a later list has them.
                    self.ambiguous |= known.unsupported;
                    attrs.route = Route { hops: attrs.route.hops, ..known };
                }
            }
            return self.set(at, attrs);
        }
        let same_key = self.same_key(&attrs);
        if attrs.family == Family::V6 && attrs.tos == RouteKey::OF_SOURCES {
            // The other routes may be for other sources.
            match self.same(&attrs) {
                Some(at) => self.set(at, attrs),
                None => self.insert(same_key.end, attrs),
            }
            return;
        }
        if let Some(at) = self.same(&attrs) {
            // Two routes that differ only in attributes that are not stored are one here.
            self.ambiguous |= matches!(place, Place::First | Place::Last);
            self.set(at, attrs);
            if place == Place::Only {
                self.keep_only(same_key, at);
            }
            return;
        }
        match place {
            Place::Only => {
                let start = same_key.start;
                self.keep_only(same_key, usize::MAX);
                self.insert(start, attrs);
            }
            Place::First => self.insert(same_key.start, attrs),
            Place::Last => self.insert(same_key.end, attrs),
            Place::Instead => {
                // The flag that decides which of several routes the kernel replaces is not reported
                // (`RTF_ADDRCONF`).
                self.ambiguous |= attrs.family == Family::V6 && same_key.len() > 1;
                match self.replaced(same_key.clone(), &attrs) {
                    Some(at) => self.set(at, attrs),
                    None => self.insert(same_key.start, attrs),
                }
            }
        }
    }

    fn replaced(&self, mut same_key: Range<usize>, attrs: &RouteAttrs) -> Option<usize> {
        let first = (!same_key.is_empty()).then_some(same_key.start);
        if attrs.family == Family::V4 {
            return first;
        }
        let alike = |at: &usize| self.attrs(*at).route.joins() == attrs.route.joins();
        same_key.find(alike).or(first)
    }

    fn delete(&mut self, attrs: &RouteAttrs) {
        let Some(at) = self.joined(attrs) else {
            match self.same(attrs) {
                Some(at) => {
                    let alias = self.aliases.remove(at);
                    self.gone.push(alias.attrs);
                }
                None => self.ambiguous = true,
            }
            return;
        };
        let mut left = self.attrs(at).clone();
        let mut hops = left.route.hops.list().to_vec();
        let mut is_known = true;
        for gone in attrs.route.hops.list() {
            let mut alike = (0..hops.len()).filter(|at| hops[*at].leads_alike(gone));
            let (found, other) = (alike.next(), alike.next());
            // Next hops that differ only in their encapsulation look alike here. And except for next hops,
            // the kernel has reported only the first one's attributes.
            is_known &= other.is_none() && found != Some(0);
            found.map(|at| hops.remove(at));
        }
        left.route.hops = as_hops(hops);
        if left.route.hops == Hops::None {
            let alias = self.aliases.remove(at);
            self.gone.push(alias.attrs);
        } else {
            if !is_known {
                (left.route.unsupported, self.ambiguous) = (true, true);
            }
            self.set(at, left);
        }
    }

    fn insert(&mut self, at: usize, attrs: RouteAttrs) {
        let alias = Alias { attrs: self.attrs_store.acquire(attrs), stamp: self.generation };
        self.aliases.insert(at, alias);
    }

    fn set(&mut self, at: usize, attrs: RouteAttrs) {
        let new = self.attrs_store.acquire(attrs);
        self.gone.push(self.aliases[at].attrs);
        self.aliases[at] = Alias { attrs: new, stamp: self.generation };
    }

    fn keep_only(&mut self, range: Range<usize>, kept: usize) {
        for at in range.rev().filter(|at| *at != kept) {
            let alias = self.aliases.remove(at);
            self.gone.push(alias.attrs);
        }
    }
}

/// Next hops in the form that a route has them.
pub(super) fn as_hops(hops: Vec<Hop>) -> Hops {
    match hops[..] {
        [] => Hops::None,
        [hop] => Hops::One(hop),
        _ => Hops::Many(hops.into()),
    }
}

/// Sorts next hops: known ones in their previous order, then new ones.
fn keep_order(before: &Hops, now: &mut Hops) {
    let place = |hop: &Hop| before.list().iter().position(|before| before.leads_alike(hop));
    if let Hops::Many(hops) = now {
        hops.sort_by_key(|hop| place(hop).unwrap_or(usize::MAX));
    }
}
