//! A pass through all lists.

use super::implicit_deletes::implicit_deletes;
use super::message::List;
use super::object::Object;
use super::touched::Touched;
use crate::event::Event;
use crate::kernel::{Family, Kernel};

/// The most attempts to read a list during which too much changes.
const ROUNDS: u8 = 3;
/// The same for rules, which are few. Only a repeated list includes a change during the other family's list.
const RULE_ROUNDS: u8 = 100;

/// The state of a pass.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) audit: bool,
    /// The present list, and the sequence number of its request.
    pub(super) list: List,
    pub(super) sequence: u32,
    /// Everything listed so far apart from routes.
    fresh: Box<Kernel>,
    /// The list mixes states of several moments (`NLM_F_DUMP_INTR`), and the kernel continues lists
    /// of its kind by count.
    interrupted: bool,
    /// How often the list was read without success.
    round: u8,
}

/// What follows a list.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Another list, or the same again.
    List(List),
    /// The configuration apart from routes is complete; then routes follow.
    Whole(Box<Kernel>),
    /// The family's routes are complete if this many lists agree.
    Listed(Family, u8),
}

impl Pass {
    pub(super) fn new(audit: bool) -> Self {
        Self {
            audit,
            list: List::Links,
            sequence: 0,
            fresh: Box::default(),
            interrupted: false,
            round: 0,
        }
    }

    /// Continues with a list that was requested with a sequence number.
    pub(super) const fn begin_list(&mut self, list: List, sequence: u32) {
        (self.list, self.sequence, self.interrupted) = (list, sequence, false);
    }

    /// Records that the list mixes states of several moments (`NLM_F_DUMP_INTR`).
    pub(super) const fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Says whether the list is not of routes.
    const fn is_small(&self) -> bool {
        !matches!(self.list, List::Routes(_))
    }

    /// Receives a change, which is newer than the list.
    pub(super) fn receive(&mut self, event: &Event, touched: &mut Touched) {
        touched.receive(event);
        if !self.is_small() {
            return;
        }
        // Rules have no names by which a listed rule and a changed rule could be matched.
        if matches!(event, Event::Rule(..)) {
            self.interrupted |= matches!(self.list, List::Rules(_));
            return;
        }
        for event in &implicit_deletes(&self.fresh, event) {
            touched.receive(event);
            self.fresh.apply(event);
        }
        self.fresh.apply(event);
    }

    /// Receives a listed object; returns a route if the list is valid for it.
    pub(super) fn listed(&mut self, event: Event, touched: &mut Touched) -> Option<Event> {
        match (&event, self.list) {
            (Event::Route(key, route, _), List::Routes(family)) => {
                (key.family() == family && touched.listed(key, route)).then_some(event)
            }
            (Event::Rule(rule, _), List::Rules(family)) => {
                if rule.family == family {
                    self.fresh.apply(&event);
                }
                None
            }
            (Event::Link(..) | Event::BridgePort(..), List::Links)
            | (Event::Address(..), List::Addresses)
            | (Event::Nexthop(..), List::Nexthops) => {
                if Object::of(&event).is_some_and(|object| !touched.has(&object)) {
                    self.fresh.apply(&event);
                }
                None
            }
            _ => None,
        }
    }

    /// What follows the present list, which is complete.
    pub(super) fn next(&mut self, touched: &Touched) -> Next {
        self.round += 1;
        let again = self.round < ROUNDS;
        let next = match self.list {
            List::Links => Next::List(List::Addresses),
            // Changed addresses are already correct, but the list may lack another one.
            List::Addresses if self.interrupted && again => return Next::List(List::Addresses),
            List::Addresses => Next::List(List::Nexthops),
            List::Nexthops => Next::List(List::Rules(Family::V4)),
            // The change may concern the family that was listed first.
            List::Rules(_) if self.interrupted && self.round < RULE_ROUNDS => {
                self.fresh.rules.clear();
                return Next::List(List::Rules(Family::V4));
            }
            // Rounds count for both families.
            List::Rules(Family::V4) => return Next::List(List::Rules(Family::V6)),
            List::Rules(Family::V6) => Next::Whole(std::mem::take(&mut self.fresh)),
            List::Routes(family) if touched.is_complete(family) => Next::Listed(family, 1),
            // An audit need not repeat a list: the next audit follows anyway.
            List::Routes(family) if self.audit || !again => Next::Listed(family, ROUNDS),
            List::Routes(family) => return Next::List(List::Routes(family)),
        };
        self.round = 0;
        next
    }
}
