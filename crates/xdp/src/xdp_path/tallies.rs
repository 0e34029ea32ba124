//! Adds the XDP path's packets to the counters of the firewall's rules.
//!
//! Flows that match the same counters share a tally, in which the XDP program counts their packets.
//! So no count is lost when the XDP path replaces a flow, and there are few tallies to read.

use std::collections::HashMap;
use std::io;

use tollway_dataplane::stages::filter::{Count, Touched};

use crate::flows::MOST_TALLIES;

/// The tallies in use.
pub(super) struct Tallies {
    numbers: HashMap<Touched, usize>,
    used: Vec<Used>,
    /// The next tally to use. Others follow before it comes again, for packets under way when rules
    /// change still count in the old one.
    next: u16,
}

struct Used {
    number: u16,
    touched: Touched,
    /// The tally's value at the last reading.
    last: (u64, u64),
}

impl Tallies {
    pub(super) fn new() -> Self {
        Self { numbers: HashMap::new(), used: Vec::new(), next: 1 }
    }

    /// The tally of flows that match these counters; 0 if they match none; `None` if all tallies
    /// are in use, or the tally cannot be read.
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
        // Earlier flows' counts in this tally do not belong to these flows.
        let last = read(number).ok()?;
        self.next = if number + 1 < MOST_TALLIES { number + 1 } else { 1 };
        self.numbers.insert(touched, self.used.len());
        self.used.push(Used { number, touched, last });
        Some(number)
    }

    /// Adds what was counted since the last call.
    pub(super) fn drain(
        &mut self,
        counts: &mut [Count],
        read: impl Fn(u16) -> io::Result<(u64, u64)>,
    ) {
        for used in &mut self.used {
            // If reading fails now, a later call counts the packets.
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

    /// Starts over, as counters have other numbers from now on.
    pub(super) fn forget(&mut self) {
        self.numbers.clear();
        self.used.clear();
    }
}
