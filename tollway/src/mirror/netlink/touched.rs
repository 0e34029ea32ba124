//! What was heard of while a list was being told, and what follows for the list.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use ipnet::IpNet;

use super::drift::Object;
use crate::mirror::event::{Change, Event, Place};
use crate::mirror::kernel::{Family, Route, RouteKey};

/// More would take too much memory; the list is given up.
pub(super) const MOST: usize = 500_000;

/// How something was told last.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Here,
    /// A route that looked like this is gone.
    Gone(u64),
}

/// The things that were heard of since a list was asked for.
#[derive(Debug, Default)]
pub(super) struct Touched {
    objects: HashMap<Object, Last>,
    hasher: RandomState,
    /// The route that was listed last.
    before: Option<RouteKey>,
    /// Addresses whose routes are listed partly in one datagram, partly in the next: where one of
    /// them goes meanwhile, another may be left out (`fn_trie_dump_leaf` goes on by count).
    split: Vec<IpAddr>,
    /// A datagram has begun.
    begun: bool,
    /// A route of IPv6 went: others may be left out (`fib6_dump_table` goes on by count).
    went: bool,
    /// Something was told that the list and the changes together do not settle.
    doubt: bool,
}

impl Touched {
    /// Forgets all for another list: what was heard before it is asked for is never newer than it.
    pub(super) fn clear(&mut self) {
        self.objects.clear();
        self.split.clear();
        (self.before, self.begun, self.went, self.doubt) = (None, false, false, false);
    }

    /// Notes what was heard.
    pub(super) fn hear(&mut self, event: &Event) {
        let Some(object) = Object::of(event) else { return };
        let last = match event {
            Event::Route(key, route, change) => {
                self.doubt |= is_relative(key, route, *change);
                let gone = *change == Change::Del;
                self.went |= gone && matches!(key.dst, IpNet::V6(_));
                if gone { Last::Gone(self.hasher.hash_one(route)) } else { Last::Here }
            }
            _ => Last::Here,
        };
        self.objects.insert(object, last);
    }

    /// Something is listed that can not be so for long.
    pub(super) const fn doubt(&mut self) {
        self.doubt = true;
    }

    /// Whether something was heard of.
    pub(super) fn has(&self, object: &Object) -> bool {
        !self.objects.is_empty() && self.objects.contains_key(object)
    }

    /// Whether too much was heard.
    pub(super) fn is_full(&self) -> bool {
        self.objects.len() > MOST
    }

    /// A datagram of the list begins.
    pub(super) const fn begin_datagram(&mut self) {
        self.begun = true;
    }

    /// Notes that a route is listed; says if the list is to be believed about it.
    pub(super) fn listed(&mut self, key: &RouteKey, route: &Route) -> bool {
        let before = self.before.replace(*key);
        if std::mem::take(&mut self.begun)
            && before.is_some_and(|before| before.dst.addr() == key.dst.addr())
        {
            self.split.push(key.dst.addr());
        }
        if self.objects.is_empty() {
            return true;
        }
        let Some(last) = self.objects.get(&Object::Route(*key)) else { return true };
        // One of several, of which some were believed, or none; or another than what has gone.
        let gone = Last::Gone(self.hasher.hash_one(route));
        self.doubt |= before == Some(*key) || (*last != Last::Here && *last != gone);
        false
    }

    /// Whether list and changes together are the whole truth about a family's routes.
    pub(super) fn is_settled(&self, family: Family) -> bool {
        let left_out = match family {
            Family::V6 => self.went,
            Family::V4 => {
                !self.split.is_empty()
                    && self.objects.keys().any(|object| match object {
                        Object::Route(key) => self.split.contains(&key.dst.addr()),
                        _ => false,
                    })
            }
        };
        !self.doubt && !left_out
    }
}

/// Whether a change says something about others of its key.
fn is_relative(key: &RouteKey, route: &Route, change: Change) -> bool {
    let siblings = matches!(key.dst, IpNet::V6(_)) && route.joins();
    matches!(change, Change::Add(Place::First | Place::Last)) && !siblings
}
