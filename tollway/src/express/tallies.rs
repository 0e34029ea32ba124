//! What the lane's packets add to the counts of the firewall's rules.
//!
//! Flows that met the same counters share a tally, in which the steering program counts their packets: so
//! nothing is lost when the lane gives a flow's place to another, and few numbers are read.

use std::collections::HashMap;
use std::io;

use tollway_dataplane::stages::filter::{Count, Touched};

use crate::steer::flows::MOST_TALLIES;

/// The tallies in use.
pub(super) struct Tallies {
    numbers: HashMap<Touched, usize>,
    used: Vec<Used>,
    /// The next to be used. Others follow before it comes again: packets that are under way when rules
    /// change count in the old one.
    next: u16,
}

struct Used {
    number: u16,
    touched: Touched,
    /// What it had when it was last looked at.
    last: (u64, u64),
}

impl Tallies {
    pub(super) fn new() -> Self {
        Self { numbers: HashMap::new(), used: Vec::new(), next: 1 }
    }

    /// The tally of flows that meet these counters: 0 where they meet none; none where all are in use, or
    /// can not be read.
    pub(super) fn number(
        &mut self,
        touched: Touched,
        read: impl Fn(u16) -> io::Result<(u64, u64)>,
    ) -> Option<u16> {
        if touched.counters().is_empty() {
            return Some(0);
        }
        if let Some(index) = self.numbers.get(&touched) {
            return Some(self.used.get(*index)?.number);
        }
        if self.used.len() + 1 >= usize::from(MOST_TALLIES) {
            return None;
        }
        let number = self.next;
        // What others have counted there before is not these flows'.
        let last = read(number).ok()?;
        self.next = if number + 1 < MOST_TALLIES { number + 1 } else { 1 };
        self.numbers.insert(touched, self.used.len());
        self.used.push(Used { number, touched, last });
        Some(number)
    }

    /// Adds what has been counted since the last time.
    pub(super) fn settle(
        &mut self,
        counts: &mut [Count],
        read: impl Fn(u16) -> io::Result<(u64, u64)>,
    ) {
        for used in &mut self.used {
            // What can not be read now can be later.
            let Ok(now) = read(used.number) else { continue };
            let packets = now.0.saturating_sub(used.last.0);
            let bytes = now.1.saturating_sub(used.last.1);
            used.last = now;
            for counter in used.touched.counters() {
                if let Some(count) = counts.get_mut(*counter as usize) {
                    count.packets += packets;
                    count.bytes += bytes;
                }
            }
        }
    }

    /// Begins anew: counters have other numbers from now on.
    pub(super) fn forget(&mut self) {
        self.numbers.clear();
        self.used.clear();
    }
}
