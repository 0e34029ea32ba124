//! Objects with notifications during a list, and the consequences for the list.

use std::collections::HashMap;
use std::hash::{BuildHasher, RandomState};
use std::net::IpAddr;

use ipnet::IpNet;

use super::object::{MOST, Object};
use crate::event::{Change, Event, Place};
use crate::kernel::{Family, Route, RouteKey};

/// The last notification of an object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Last {
    Here,
    /// A route with this hash is gone.
    Gone(u64),
}

/// The objects with notifications since the request for a list.
#[derive(Debug, Default)]
pub(super) struct Touched {
    objects: HashMap<Object, Last>,
    hasher: RandomState,
    /// The last route of the list so far.
    before: Option<RouteKey>,
    /// Addresses whose routes are listed partly in one datagram, partly in the next. If one of these routes
    /// is deleted in between, the list may lack another (`fn_trie_dump_leaf` skips by count).
    split: Vec<IpAddr>,
    /// Whether the next route is the first of its datagram.
    begun: bool,
    /// Whether an IPv6 route was deleted: the list may lack others (`fib6_dump_table` skips by count).
    went: bool,
    /// Whether list and changes together leave the state of a route undecided.
    doubt: bool,
}

impl Touched {
    /// Clears everything for another list: notifications before its request are never newer than it.
    pub(super) fn clear(&mut self) {
        self.objects.clear();
        self.split.clear();
        (self.before, self.begun, self.went, self.doubt) = (None, false, false, false);
    }

    /// Notes a notification.
    pub(super) fn receive(&mut self, event: &Event) {
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

    /// Records that list and changes together leave the state of a route undecided.
    pub(super) const fn doubt(&mut self) {
        self.doubt = true;
    }

    /// Says whether there was a notification of an object.
    pub(super) fn has(&self, object: &Object) -> bool {
        !self.objects.is_empty() && self.objects.contains_key(object)
    }

    /// Says whether there were too many notifications.
    pub(super) fn is_full(&self) -> bool {
        self.objects.len() > MOST
    }

    /// Notes that a datagram of the list begins.
    pub(super) const fn begin_datagram(&mut self) {
        self.begun = true;
    }

    /// Notes a listed route; returns whether the list is valid for it.
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
        // The key has several routes, which the list accepted or not; or this is not the deleted route.
        let gone = Last::Gone(self.hasher.hash_one(route));
        self.doubt |= before == Some(*key) || (*last != Last::Here && *last != gone);
        false
    }

    /// Says whether list and changes together are complete for a family's routes.
    pub(super) fn is_complete(&self, family: Family) -> bool {
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

/// Says whether a change depends on other routes of its key.
fn is_relative(key: &RouteKey, route: &Route, change: Change) -> bool {
    let siblings =
        matches!(key.dst, IpNet::V6(_)) && key.tos != RouteKey::OF_SOURCES && route.joins();
    matches!(change, Change::Add(Place::First | Place::Last)) && !siblings
}
