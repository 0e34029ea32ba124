//! The lane's packets among all others: what the steering program has counted is added to what the
//! path has.

use std::io;

use tollway_dataplane::counters::{Counters, Traffic};
use tollway_dataplane::id::PortId;

use crate::steer::MOST_PORTS;
use crate::steer::maps::{CountMap, PortCounts};

/// What the lane had received and sent at some moment, by port.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reading {
    /// Received.
    pub rx: Vec<Traffic>,
    /// Sent; never more than was received.
    pub tx: Vec<Traffic>,
}

impl Reading {
    /// Reads the counts of so many ports.
    ///
    /// A packet is counted as received first and then as sent. All that is sent is therefore read
    /// before all that is received: what passes meanwhile is found received and not yet sent.
    ///
    /// # Errors
    /// The system refused.
    pub fn of(counts: &CountMap, ports: usize) -> io::Result<Self> {
        // Beyond, no port has the steering program.
        Self::by(ports.min(MOST_PORTS), |port| counts.port(port))
    }

    /// The same from anything that can be asked port by port.
    pub(super) fn by(
        ports: usize,
        mut ask: impl FnMut(PortId) -> io::Result<PortCounts>,
    ) -> io::Result<Self> {
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
        Ok(Self { rx, tx })
    }
}

/// What the lane has received and sent since this program has it.
///
/// The steering program and its counts outlive the program that loaded them, so the first reading is
/// where its successor's begin, like all its other counts. Counts that went back are those of a
/// steering program that was loaded anew, and begin at zero. So what is told never goes back.
#[derive(Clone, Debug, Default)]
pub struct Tally {
    last: Reading,
    sum: Reading,
}

impl Tally {
    /// Begins at a reading; to be taken when the lane is empty: after [`super::Lane::new`], before
    /// the first turn.
    #[must_use]
    pub fn new(first: Reading) -> Self {
        let none = |list: &[Traffic]| vec![Traffic::default(); list.len()];
        let sum = Reading { rx: none(&first.rx), tx: none(&first.tx) };
        Self { last: first, sum }
    }

    /// Takes in a newer reading.
    pub fn update(&mut self, now: Reading) {
        advance(&mut self.sum.rx, &self.last.rx, &now.rx);
        advance(&mut self.sum.tx, &self.last.tx, &now.tx);
        self.last = now;
    }

    /// What the lane has received and sent, by port.
    #[must_use]
    pub fn sum(&self) -> &Reading {
        &self.sum
    }

    /// Adds the lane's packets to a worker's counts.
    ///
    /// Packets that were received and not yet sent when the steering program was asked are held.
    pub fn add_to(&self, counters: &mut Counters) {
        let add = |to: &mut [Traffic], more: &[Traffic]| {
            to.iter_mut().zip(more).for_each(|(sum, more)| sum.add(more.packets, more.bytes));
            more.iter().take(to.len()).map(|more| more.packets).sum::<u64>()
        };
        let received = add(&mut counters.rx, &self.sum.rx);
        let sent = add(&mut counters.tx, &self.sum.tx);
        counters.sent += sent;
        counters.held += received.saturating_sub(sent);
    }
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
