//! The order of the routes to one destination, and what a message does to it.
//!
//! `fib_table_insert` (`net/ipv4/fib_trie.c`) keeps those with a type of service first, higher ones
//! before lower, then by metric; `fib6_add_rt2node` (`net/ipv6/ip6_fib.c`) by metric. Among those of
//! one key the message says where a route belongs ([`Place`]).

use std::cmp::Reverse;
use std::ops::Range;

use super::bodies::{Bodies, Body, BodyId};
use super::shelf::Alias;
use crate::mirror::event::{Change, Place};
use crate::mirror::kernel::{Family, Hop, Hops, RouteKey};

/// The routes to one destination while a message changes them.
pub(super) struct Edit<'a> {
    pub(super) bodies: &'a mut Bodies,
    pub(super) aliases: &'a mut Vec<Alias>,
    pub(super) generation: u8,
    /// Bodies of routes that went. Their users are counted later: their numbers must not be another's
    /// while somebody compares what was with what is.
    pub(super) gone: Vec<BodyId>,
    /// The message is of a route that is not known, or not told apart from another.
    pub(super) astray: bool,
}

impl Edit<'_> {
    /// Does what a message says.
    pub(super) fn make(&mut self, body: Body, change: Change) {
        match change {
            Change::Listed => self.list(body),
            Change::Add(place) => self.add(body, place),
            Change::Del => self.delete(&body),
        }
    }

    fn body(&self, at: usize) -> &Body {
        self.bodies.get(self.aliases[at].body)
    }

    /// Those of one key.
    fn rivals(&self, body: &Body) -> Range<usize> {
        let rank = |body: &Body| (Reverse(body.tos), body.priority);
        let before = |alias: &Alias| rank(self.bodies.get(alias.body)) < rank(body);
        let start = self.aliases.partition_point(before);
        let upto = |alias: &Alias| rank(self.bodies.get(alias.body)) <= rank(body);
        start..self.aliases.partition_point(upto)
    }

    fn same(&self, body: &Body) -> Option<usize> {
        self.rivals(body).find(|at| self.body(*at).route.is_same(&body.route))
    }

    /// The one of the key that the siblings together are.
    fn joined(&self, body: &Body) -> Option<usize> {
        let joins = body.family == Family::V6 && body.route.joins();
        self.rivals(body).find(|at| joins && self.body(*at).route.joins())
    }

    /// It comes behind those that this list has told before.
    fn list(&mut self, body: Body) {
        let known = self.joined(&body).or_else(|| self.same(&body));
        if let Some(at) = known {
            if self.aliases[at].stamp == self.generation && self.same(&body) == Some(at) {
                return self.set(at, body);
            }
            let alias = self.aliases.remove(at);
            self.gone.push(alias.body);
        }
        let rivals = self.rivals(&body);
        let told = self.aliases[rivals.clone()].iter();
        let told = told.take_while(|alias| alias.stamp == self.generation).count();
        self.insert(rivals.start + told, body);
    }

    fn add(&mut self, mut body: Body, place: Place) {
        if let Some(at) = self.joined(&body) {
            if place == Place::Last {
                keep_order(&self.body(at).route.hops, &mut body.route.hops);
            }
            return self.set(at, body);
        }
        let rivals = self.rivals(&body);
        if body.family == Family::V6 && body.tos == RouteKey::OF_SOURCES {
            // The others may be for other sources.
            match self.same(&body) {
                Some(at) => self.set(at, body),
                None => self.insert(rivals.end, body),
            }
            return;
        }
        if let Some(at) = self.same(&body) {
            // Two that differ in what is not kept stand here as one.
            self.astray |= matches!(place, Place::First | Place::Last);
            self.set(at, body);
            if place == Place::Only {
                self.keep_only(rivals, at);
            }
            return;
        }
        match place {
            Place::Only => {
                let start = rivals.start;
                self.keep_only(rivals, usize::MAX);
                self.insert(start, body);
            }
            Place::First => self.insert(rivals.start, body),
            Place::Last => self.insert(rivals.end, body),
            Place::Instead => match self.replaced(rivals.clone(), &body) {
                Some(at) => self.set(at, body),
                None => self.insert(rivals.start, body),
            },
        }
    }

    fn replaced(&self, mut rivals: Range<usize>, body: &Body) -> Option<usize> {
        let first = (!rivals.is_empty()).then_some(rivals.start);
        if body.family == Family::V4 {
            return first;
        }
        let alike = |at: &usize| self.body(*at).route.joins() == body.route.joins();
        rivals.find(alike).or(first)
    }

    fn delete(&mut self, body: &Body) {
        let Some(at) = self.joined(body) else {
            match self.same(body) {
                Some(at) => {
                    let alias = self.aliases.remove(at);
                    self.gone.push(alias.body);
                }
                None => self.astray = true,
            }
            return;
        };
        let gone = body.route.hops.list();
        let mut left = self.body(at).clone();
        let hops = left.route.hops.list().iter().copied();
        let hops: Vec<Hop> =
            hops.filter(|hop| !gone.iter().any(|gone| gone.leads_alike(hop))).collect();
        left.route.hops = as_hops(hops);
        if left.route.hops == Hops::None {
            let alias = self.aliases.remove(at);
            self.gone.push(alias.body);
        } else {
            self.set(at, left);
        }
    }

    fn insert(&mut self, at: usize, body: Body) {
        let alias = Alias { body: self.bodies.enter(body), stamp: self.generation };
        self.aliases.insert(at, alias);
    }

    fn set(&mut self, at: usize, body: Body) {
        let new = self.bodies.enter(body);
        self.gone.push(self.aliases[at].body);
        self.aliases[at] = Alias { body: new, stamp: self.generation };
    }

    fn keep_only(&mut self, range: Range<usize>, kept: usize) {
        for at in range.rev().filter(|at| *at != kept) {
            let alias = self.aliases.remove(at);
            self.gone.push(alias.body);
        }
    }
}

/// Next hops as a route has them.
pub(super) fn as_hops(hops: Vec<Hop>) -> Hops {
    match hops[..] {
        [] => Hops::None,
        [hop] => Hops::One(hop),
        _ => Hops::Many(hops.into()),
    }
}

/// Those that were there keep their order, new ones follow.
fn keep_order(before: &Hops, now: &mut Hops) {
    let place = |hop: &Hop| before.list().iter().position(|before| before.leads_alike(hop));
    if let Hops::Many(hops) = now {
        hops.sort_by_key(|hop| place(hop).unwrap_or(usize::MAX));
    }
}
