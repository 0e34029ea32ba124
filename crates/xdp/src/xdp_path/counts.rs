//! Adds the counters of the XDP program to the worker's counters.

use std::io;

use tollway_dataplane::counters::{Counters, Traffic};
use tollway_dataplane::id::PortId;
use tollway_dataplane::verdict::DropReason;

use crate::counts::PortCounts;
use crate::maps::CountMap;
use crate::{MOST_PORTS, Refusals};

/// The counters of the XDP path at one moment, by port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Received, and not dropped.
    pub rx: Vec<Traffic>,
    /// Redirected to a device; never more than was received.
    pub tx: Vec<Traffic>,
    /// The part of these packets that the device refused; never more than were redirected.
    pub refused: Vec<u64>,
    /// Dropped: for each port, by [`DropReason`].
    pub dropped: Vec<Traffic>,
}

impl Reading {
    /// Reads the counters of so many ports.
    ///
    /// The XDP program counts a packet as received first, then as sent, and last as refused if its
    /// device refuses it. So this reads the counters in the opposite order. A packet that passes
    /// meanwhile then shows as received and not yet sent.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn of(counts: &CountMap, refusals: Option<&Refusals>, ports: usize) -> io::Result<Self> {
        // Ports beyond the maximum have no XDP program.
        let refused = |port| refusals.map_or(0, |refusals| refusals.packets(port));
        Self::of_source(ports.min(MOST_PORTS), refused, |port| counts.port(port))
    }

    /// As [`Self::of`], from any source with counters by port.
    pub(super) fn of_source(
        ports: usize,
        refused: impl FnMut(PortId) -> u64,
        mut read: impl FnMut(PortId) -> io::Result<PortCounts>,
    ) -> io::Result<Self> {
        let refused = (0..ports).map(|port| PortId(port as u16)).map(refused).collect();
        let mut all =
            || (0..ports).map(|port| read(PortId(port as u16))).collect::<Result<Vec<_>, _>>();
        let (sent, received) = (all()?, all()?);
        let tx = sent.iter().map(|port| traffic([port.xdp_tx_packets, port.xdp_tx_bytes]));
        let rx = received.iter().map(|port| traffic([port.xdp_rx_packets, port.xdp_rx_bytes]));
        let dropped = received.iter().flat_map(|port| port.drops).map(traffic);
        Ok(Self { rx: rx.collect(), tx: tx.collect(), refused, dropped: dropped.collect() })
    }
}

/// The packets that the XDP path has received, sent and dropped since this process began.
///
/// The XDP program and its counters outlive the process that loaded them. So the first reading is
/// the successor's zero, as for its other counters. A counter that is lower than at the last reading
/// belongs to a reloaded XDP program, and began at zero. So reported values never decrease, with one
/// exception: packets that a device refuses after the reading, a burst at most, no longer count as
/// sent.
#[derive(Clone, Debug, Default)]
pub struct XdpTotals {
    last: Reading,
    sum: Reading,
    /// The refused part of the packets sent. Nothing counts refused bytes, so each packet has the
    /// average size of those that the device received since the last reading.
    refused: Vec<Traffic>,
}

impl XdpTotals {
    /// Begins at a reading. Take it while the XDP path is empty: after [`super::XdpFlows::new`],
    /// before the first turn.
    #[must_use]
    pub fn new(first: Reading) -> Self {
        let none = |list: &[Traffic]| vec![Traffic::default(); list.len()];
        let refused = vec![0; first.refused.len()];
        let [rx, tx, dropped] = [&first.rx, &first.tx, &first.dropped].map(|list| none(list));
        let sum = Reading { rx, tx, refused, dropped };
        Self { last: first, refused: none(&sum.tx), sum }
    }

    /// Applies a newer reading.
    pub fn update(&mut self, now: Reading) {
        let before = self.sum.tx.clone();
        advance(&mut self.sum.rx, &self.last.rx, &now.rx);
        advance(&mut self.sum.tx, &self.last.tx, &now.tx);
        advance(&mut self.sum.dropped, &self.last.dropped, &now.dropped);
        self.add_refusals(&before, &now.refused);
        self.last = now;
    }

    /// Adds the packets that devices refused, with their share of the bytes that the devices received
    /// since `before`.
    fn add_refusals(&mut self, before: &[Traffic], now: &[u64]) {
        let ports = self.sum.tx.len();
        self.sum.refused.resize(ports, 0);
        self.refused.resize(ports, Traffic::default());
        for (port, now) in now.iter().enumerate().take(ports) {
            let last = self.last.refused.get(port).copied().unwrap_or(0);
            let more = if *now >= last { now - last } else { *now };
            let (sum, given) = (&mut self.refused[port], self.sum.tx[port]);
            let before = before.get(port).copied().unwrap_or_default();
            let (packets, bytes) = match given.packets - before.packets {
                grown if grown >= more && grown > 0 => (grown, given.bytes - before.bytes),
                _ => (given.packets.max(1), given.bytes),
            };
            let share = u128::from(bytes) * u128::from(more) / u128::from(packets);
            sum.packets = (sum.packets + more).min(given.packets);
            sum.bytes = (sum.bytes + share as u64).min(given.bytes);
            self.sum.refused[port] = sum.packets;
        }
    }

    /// What the XDP path has received, redirected, refused and dropped, by port.
    #[must_use]
    pub fn sum(&self) -> &Reading {
        &self.sum
    }

    /// What the XDP path has sent, by port.
    pub fn sent(&self) -> impl Iterator<Item = Traffic> + '_ {
        let refused = self.refused.iter().copied().chain(std::iter::repeat(Traffic::default()));
        self.sum.tx.iter().zip(refused).map(|(given, refused)| Traffic {
            packets: given.packets - refused.packets,
            bytes: given.bytes - refused.bytes,
        })
    }

    /// What the XDP path has dropped: for each port, by [`DropReason`].
    pub fn dropped(&self) -> impl Iterator<Item = Traffic> + '_ {
        self.sum.dropped.iter().copied()
    }

    /// Adds the XDP path's packets to a worker's counters.
    ///
    /// Packets that a device refused count as dropped. Packets that the XDP path has received and not
    /// yet sent at the reading count as held.
    pub fn add_to(&self, counters: &mut Counters) {
        let received = add(&mut counters.rx, self.sum.rx.iter().copied());
        let sent = add(&mut counters.tx, self.sent());
        let refused: u64 = self.refused.iter().take(counters.tx.len()).map(|all| all.packets).sum();
        counters.sent += sent;
        counters.drops[DropReason::DevTxFailed as usize] += refused;
        counters.held += received.saturating_sub(sent + refused);
        for (rx, dropped) in
            counters.rx.iter_mut().zip(self.sum.dropped.as_chunks::<{ DropReason::COUNT }>().0)
        {
            for (count, more) in counters.drops.iter_mut().zip(dropped) {
                rx.add(more.packets, more.bytes);
                *count += more.packets;
            }
        }
    }
}

fn traffic([packets, bytes]: [u64; 2]) -> Traffic {
    Traffic { packets, bytes }
}

/// Adds to each port's traffic; returns the packets added in all.
fn add(to: &mut [Traffic], more: impl Iterator<Item = Traffic>) -> u64 {
    let both = to.iter_mut().zip(more);
    both.map(|(sum, more)| {
        sum.add(more.packets, more.bytes);
        more.packets
    })
    .sum()
}

/// Adds each counter's growth to its sum.
fn advance(sums: &mut Vec<Traffic>, last: &[Traffic], now: &[Traffic]) {
    if sums.len() < now.len() {
        sums.resize(now.len(), Traffic::default());
    }
    for (index, (sum, now)) in sums.iter_mut().zip(now).enumerate() {
        let last = last.get(index).copied().unwrap_or_default();
        let is_same = now.packets >= last.packets && now.bytes >= last.bytes;
        let last = if is_same { last } else { Traffic::default() };
        sum.add(now.packets - last.packets, now.bytes - last.bytes);
    }
}
