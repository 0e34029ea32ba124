//! The lane's packets among all others: what the steering program has counted is added to what the
//! path has.

use std::io;

use tollway_dataplane::counters::{Counters, Traffic};
use tollway_dataplane::id::PortId;
use tollway_dataplane::verdict::DropReason;

use crate::steer::maps::{CountMap, PortCounts};
use crate::steer::{MOST_PORTS, Refusals};

/// What the lane had received and sent at some moment, by port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Received.
    pub rx: Vec<Traffic>,
    /// Given to a device; never more than was received.
    pub tx: Vec<Traffic>,
    /// Packets that the device did not take of these; never more than it was given.
    pub refused: Vec<u64>,
}

impl Reading {
    /// Reads the counts of so many ports.
    ///
    /// A packet is counted as received first and then as sent, and where its device refuses it, as
    /// refused last. All that is refused is therefore read before all that is sent, and that before all
    /// that is received: what passes meanwhile is found received and not yet sent.
    ///
    /// # Errors
    /// The system refused.
    pub fn of(counts: &CountMap, refusals: Option<&Refusals>, ports: usize) -> io::Result<Self> {
        // Beyond, no port has the steering program.
        let refused = |port| refusals.map_or(0, |refusals| refusals.packets(port));
        Self::by(ports.min(MOST_PORTS), refused, |port| counts.port(port))
    }

    /// The same from anything that can be asked port by port.
    pub(super) fn by(
        ports: usize,
        refused: impl FnMut(PortId) -> u64,
        mut ask: impl FnMut(PortId) -> io::Result<PortCounts>,
    ) -> io::Result<Self> {
        let refused = (0..ports).map(|port| PortId(port as u16)).map(refused).collect();
        let mut all = |of: fn(&PortCounts) -> (u64, u64)| -> io::Result<Vec<Traffic>> {
            (0..ports)
                .map(|port| {
                    let (packets, bytes) = of(&ask(PortId(port as u16))?);
                    Ok(Traffic { packets, bytes })
                })
                .collect()
        };
        let tx = all(|counts| (counts.express_tx_packets, counts.express_tx_bytes))?;
        let rx = all(|counts| (counts.express_rx_packets, counts.express_rx_bytes))?;
        Ok(Self { rx, tx, refused })
    }
}

/// What the lane has received and sent since this program has it.
///
/// The steering program and its counts outlive the program that loaded them, so the first reading is
/// where its successor's begin, like all its other counts. Counts that went back are those of a
/// steering program that was loaded anew, and begin at zero. So what is told never goes back; but what
/// counts as sent goes back by what a device refuses after it was read, a burst at most.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    last: Reading,
    sum: Reading,
    /// What was refused of what was sent. Nobody counts its bytes: each packet has those of the average
    /// packet that the device was given since it was last asked.
    refused: Vec<Traffic>,
}

impl Tally {
    /// Begins at a reading; to be taken when the lane is empty: after [`super::Lane::new`], before
    /// the first turn.
    #[must_use]
    pub fn new(first: Reading) -> Self {
        let none = |list: &[Traffic]| vec![Traffic::default(); list.len()];
        let refused = vec![0; first.refused.len()];
        let sum = Reading { rx: none(&first.rx), tx: none(&first.tx), refused };
        Self { last: first, refused: none(&sum.tx), sum }
    }

    /// Takes in a newer reading.
    pub fn update(&mut self, now: Reading) {
        let before = self.sum.tx.clone();
        advance(&mut self.sum.rx, &self.last.rx, &now.rx);
        advance(&mut self.sum.tx, &self.last.tx, &now.tx);
        self.refuse(&before, &now.refused);
        self.last = now;
    }

    /// Takes in what devices refused, with its share of the bytes that they have been given since `before`.
    fn refuse(&mut self, before: &[Traffic], now: &[u64]) {
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

    /// What the lane has received, by port, and what it has been given to send and was refused.
    #[must_use]
    pub fn sum(&self) -> &Reading {
        &self.sum
    }

    /// What the lane has sent, by port.
    pub fn sent(&self) -> impl Iterator<Item = Traffic> + '_ {
        let refused = self.refused.iter().copied().chain(std::iter::repeat(Traffic::default()));
        self.sum.tx.iter().zip(refused).map(|(given, refused)| Traffic {
            packets: given.packets - refused.packets,
            bytes: given.bytes - refused.bytes,
        })
    }

    /// Adds the lane's packets to a worker's counts.
    ///
    /// Packets that a device did not take are dropped. Those that were received and not yet sent when the steering program was asked are held.
    pub fn add_to(&self, counters: &mut Counters) {
        let received = add(&mut counters.rx, self.sum.rx.iter().copied());
        let sent = add(&mut counters.tx, self.sent());
        let refused: u64 = self.refused.iter().take(counters.tx.len()).map(|all| all.packets).sum();
        counters.sent += sent;
        counters.drops[DropReason::DevTxFailed as usize] += refused;
        counters.held += received.saturating_sub(sent + refused);
    }
}

/// Adds to each port's traffic; all the packets that were added.
fn add(to: &mut [Traffic], more: impl Iterator<Item = Traffic>) -> u64 {
    let both = to.iter_mut().zip(more);
    both.map(|(sum, more)| {
        sum.add(more.packets, more.bytes);
        more.packets
    })
    .sum()
}

/// Adds to sums what each has grown by.
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
