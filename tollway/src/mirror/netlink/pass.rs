//! One pass through all lists.

use super::drift::Object;
use super::message::List;
use super::touched::Touched;
use super::untold::untold;
use crate::mirror::event::Event;
use crate::mirror::kernel::{Family, Kernel};

/// So often a list is told when too much changes meanwhile.
const ROUNDS: u8 = 3;
/// The same of rules, of which there are few: one that was heard while others were listed would be lost.
const RULE_ROUNDS: u8 = 100;

/// The pass.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) audit: bool,
    /// What is being listed, by the number of the question.
    pub(super) list: List,
    pub(super) sequence: u32,
    /// What is small, as far as it is listed.
    fresh: Box<Kernel>,
    /// A list is not of one moment, and its kind goes on by count.
    interrupted: bool,
    /// How often the list was told in vain.
    round: u8,
}

/// What comes after a list.
#[derive(Debug, PartialEq)]
pub(super) enum Next {
    /// Another list, or the same again.
    List(List),
    /// All that is small; then routes.
    Whole(Box<Kernel>),
    /// The family's routes are settled if so many lists agree.
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

    /// Goes on with a list that was asked for by a number.
    pub(super) const fn ask(&mut self, list: List, sequence: u32) {
        (self.list, self.sequence, self.interrupted) = (list, sequence, false);
    }

    /// The list was not of one moment.
    pub(super) const fn interrupt(&mut self) {
        self.interrupted = true;
    }

    /// Whether what is listed is small.
    const fn is_small(&self) -> bool {
        !matches!(self.list, List::Routes(_))
    }

    /// Takes something that has changed, which is newer than what is listed.
    pub(super) fn hear(&mut self, event: &Event, touched: &mut Touched) {
        touched.hear(event);
        if !self.is_small() {
            return;
        }
        // Rules have no names by which list and changes could be told apart.
        if matches!(event, Event::Rule(..)) {
            self.interrupted |= matches!(self.list, List::Rules(_));
            return;
        }
        for event in &untold(&self.fresh, event) {
            touched.hear(event);
            self.fresh.take(event);
        }
        self.fresh.take(event);
    }

    /// Takes something that is listed; gives a route back that is to be believed.
    pub(super) fn listed(&mut self, event: Event, touched: &mut Touched) -> Option<Event> {
        match (&event, self.list) {
            (Event::Route(key, route, _), List::Routes(family)) => {
                (key.family() == family && touched.listed(key, route)).then_some(event)
            }
            (Event::Rule(rule, _), List::Rules(family)) => {
                if rule.family == family {
                    self.fresh.take(&event);
                }
                None
            }
            (Event::Link(..), List::Links)
            | (Event::Address(..), List::Addresses)
            | (Event::Nexthop(..), List::Nexthops) => {
                if Object::of(&event).is_some_and(|object| !touched.has(&object)) {
                    self.fresh.take(&event);
                }
                None
            }
            _ => None,
        }
    }

    /// What comes next, the list being told to its end.
    pub(super) fn next(&mut self, touched: &Touched) -> Next {
        self.round += 1;
        let again = self.round < ROUNDS;
        let next = match self.list {
            List::Links => Next::List(List::Addresses),
            // Those that changed are right already; another may have been left out.
            List::Addresses if self.interrupted && again => return Next::List(List::Addresses),
            List::Addresses => Next::List(List::Nexthops),
            List::Nexthops => Next::List(List::Rules(Family::V4)),
            // It may have been of the family that was listed before.
            List::Rules(_) if self.interrupted && self.round < RULE_ROUNDS => {
                self.fresh.rules.clear();
                return Next::List(List::Rules(Family::V4));
            }
            // Rounds are counted for both.
            List::Rules(Family::V4) => return Next::List(List::Rules(Family::V6)),
            List::Rules(Family::V6) => Next::Whole(std::mem::take(&mut self.fresh)),
            List::Routes(family) if touched.is_settled(family) => Next::Listed(family, 1),
            // An audit is not in a hurry, and the next one comes anyway.
            List::Routes(family) if self.audit || !again => Next::Listed(family, ROUNDS),
            List::Routes(family) => return Next::List(List::Routes(family)),
        };
        self.round = 0;
        next
    }
}
