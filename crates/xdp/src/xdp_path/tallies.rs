//! Adds the XDP path's packets to the counters of the firewall's rules.
//!
//! Flows that match the same counters share a tally, in which the XDP program counts their packets.
//! So no count is lost when the XDP path replaces a flow, and there are few tallies to read.

use std::collections::HashMap;
use std::io;
use std::ops::Range;

use tollway_dataplane::stages::filter::{Count, Touched};

use crate::flows::MOST_TALLIES;

/// The tallies that a worker uses. Each worker has its own numbers: if two used one, each would add the packets of
/// the other's flows to the counters of its own.
pub(super) struct Tallies {
    /// The worker's numbers.
    own: Range<u16>,
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
    /// The part of one of `workers` workers.
    pub(super) fn of_worker(worker: usize, workers: usize) -> Self {
        // The first tally means none.
        let all = usize::from(MOST_TALLIES) - 1;
        let start = |worker: usize| (1 + all * worker / workers) as u16;
        let own = start(worker)..start(worker + 1);
        Self { numbers: HashMap::new(), used: Vec::new(), next: own.start, own }
    }

    /// The tally of flows that match these counters; 0 if they match none; `None` if all of the
    /// worker's tallies are in use, or the tally cannot be read.
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
        if self.used.len() >= self.own.len() {
            return None;
        }
        let number = self.next;
        // Earlier flows' counts in this tally do not belong to these flows.
        let last = read(number).ok()?;
        self.next = if number + 1 < self.own.end { number + 1 } else { self.own.start };
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

#[cfg(test)]
mod tests {
    use tollway_dataplane::id::LinkId;
    use tollway_dataplane::stages::filter::{Filter, FlowKey, Op, Point, Rule, Rules};

    use super::*;

    /// Flows that match this counter.
    fn touched(counter: u32) -> Touched {
        let mut filter = Filter::new(counter as usize + 1, Vec::new());
        let ops = vec![Op::Count(counter), Op::Accept];
        let rules = Rules { rules: vec![Rule { ops, next: 1, ..Rule::default() }], end: 0 };
        filter.set(Point::Forward, 4, &rules).unwrap();
        let (input, output) = (LinkId(0), Some(LinkId(1)));
        let flow = FlowKey {
            version: 4,
            source: 1,
            destination: 2,
            protocol: 6,
            ports: Some((3, 4)),
            input,
            output,
            connection: None,
        };
        filter.of_flow(&flow).unwrap().touched
    }

    #[test]
    fn workers_share_the_tallies_and_none_is_of_two() {
        let counters: Vec<_> = (0..u32::from(MOST_TALLIES)).map(touched).collect();
        for workers in [1, 2, 3, 7, 64, 5000] {
            let of_worker = |worker| {
                let mut tallies = Tallies::of_worker(worker, workers);
                let number = |counter: &Touched| tallies.number(*counter, |_| Ok((0, 0)));
                counters.iter().map_while(number).collect::<Vec<_>>()
            };
            let parts: Vec<_> = (0..workers).map(of_worker).collect();
            let expected: Vec<_> = (1..MOST_TALLIES).collect();
            assert_eq!(parts.concat(), expected, "{workers} workers");
            let least = usize::from(MOST_TALLIES - 1) / workers;
            assert!(parts.iter().all(|part| (least..=least + 1).contains(&part.len())));
        }
    }

    #[test]
    fn others_follow_before_a_tally_comes_again() {
        let mut tallies = Tallies::of_worker(1, 1000);
        let mut seen = Vec::new();
        for _ in 0..12 {
            seen.extend(tallies.number(touched(7), |_| Ok((0, 0))));
            tallies.forget();
        }
        assert_eq!(seen, [5, 6, 7, 8].repeat(3));
    }
}
