//! Counters of what happened to every packet; they must add up.

use crate::id::PortId;
use crate::verdict::{DropReason, PuntReason};

/// Packets and bytes of one port in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Frames.
    pub packets: u64,
    /// Bytes, Ethernet headers included, check sequences excluded.
    pub bytes: u64,
}

impl Traffic {
    /// Adds frames.
    #[inline(always)]
    pub fn add(&mut self, packets: u64, bytes: u64) {
        self.packets = self.packets.wrapping_add(packets);
        self.bytes = self.bytes.wrapping_add(bytes);
    }
}

/// All counters of one worker.
///
/// [`Counters::check`] asserts the identity: received and cloned are the sum of sent, dropped, punted,
/// delivered and held. Frames that the router makes itself (answers, errors, fragments) are in
/// [`Counters::originated`] and in none of these.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Received, by port.
    pub rx: Vec<Traffic>,
    /// Handed to the port and accepted by it, by port; includes frames that the router made.
    pub tx: Vec<Traffic>,
    /// Copies of received packets that a bridge floods, each of them sent or dropped.
    pub cloned: u64,
    /// Received packets and their copies that were forwarded.
    pub sent: u64,
    /// Received packets dropped, by [`DropReason`].
    pub drops: [u64; DropReason::COUNT],
    /// Received packets handed to the slow path, by [`PuntReason`].
    pub punts: [u64; PuntReason::COUNT],
    /// Received packets for the router itself.
    pub delivered: u64,
    /// Received packets that wait for a neighbour now. If the counts of the XDP path are added, it also
    /// has packets that the XDP path has received and not yet sent.
    pub held: u64,
    /// Frames that the router made and a port accepted.
    pub originated: u64,
    /// Frames that the router made and no port accepted.
    pub originated_lost: u64,
}

impl Counters {
    /// Creates counters for `ports` ports, all zero.
    #[must_use]
    pub fn new(ports: usize) -> Self {
        Self {
            rx: vec![Traffic::default(); ports],
            tx: vec![Traffic::default(); ports],
            ..Self::default()
        }
    }

    /// Adds the counts of another worker of the same ports. What one worker has counted and another takes back (a
    /// packet held by one and sent by the other; a frame handed over that cannot be sent) may make a count of the
    /// other wrap below 0; their sum is right.
    pub fn add(&mut self, other: &Self) {
        let both = |own: &mut [Traffic], other: &[Traffic]| {
            for (own, other) in own.iter_mut().zip(other) {
                own.add(other.packets, other.bytes);
            }
        };
        both(&mut self.rx, &other.rx);
        both(&mut self.tx, &other.tx);
        for (own, other) in self.drops.iter_mut().zip(other.drops) {
            *own += other;
        }
        for (own, other) in self.punts.iter_mut().zip(other.punts) {
            *own += other;
        }
        self.cloned += other.cloned;
        self.sent = self.sent.wrapping_add(other.sent);
        self.delivered += other.delivered;
        self.held = self.held.wrapping_add(other.held);
        self.originated += other.originated;
        self.originated_lost += other.originated_lost;
    }

    /// Counts a drop.
    #[inline]
    pub fn drop(&mut self, reason: DropReason) {
        self.drops[reason as usize] += 1;
    }

    /// Counts a frame as dropped that was counted as sent by another worker, which has handed it over.
    pub(crate) fn take_back_sent(&mut self, port: PortId, bytes: u64) {
        if let Some(traffic) = self.tx.get_mut(usize::from(port.0)) {
            traffic.packets = traffic.packets.wrapping_sub(1);
            traffic.bytes = traffic.bytes.wrapping_sub(bytes);
        }
        self.sent = self.sent.wrapping_sub(1);
        self.drop(DropReason::DevTxFailed);
    }

    /// Counts a punt.
    #[inline]
    pub fn punt(&mut self, reason: PuntReason) {
        self.punts[reason as usize] += 1;
    }

    /// Counts frames received by a port.
    #[inline(always)]
    pub fn received(&mut self, port: PortId, packets: u64, bytes: u64) {
        if let Some(traffic) = self.rx.get_mut(usize::from(port.0)) {
            traffic.add(packets, bytes);
        }
    }

    /// Packets received by all ports.
    #[must_use]
    pub fn received_packets(&self) -> u64 {
        self.rx.iter().map(|traffic| traffic.packets).sum()
    }

    /// Packets dropped for any reason.
    #[must_use]
    pub fn dropped_packets(&self) -> u64 {
        self.drops.iter().sum()
    }

    /// Packets punted for any reason.
    #[must_use]
    pub fn punted_packets(&self) -> u64 {
        self.punts.iter().sum()
    }

    /// Checks the identity of the counters.
    ///
    /// # Errors
    /// A sentence with every term, if they do not add up.
    pub fn check(&self) -> Result<(), String> {
        let received = self.received_packets();
        let (dropped, punted) = (self.dropped_packets(), self.punted_packets());
        let Self { cloned, sent, delivered, held, .. } = *self;
        let transmitted: u64 = self.tx.iter().map(|traffic| traffic.packets).sum();
        if received + cloned != (sent + dropped + punted + delivered).wrapping_add(held) {
            return Err(format!(
                "packets do not add up: received {received} + cloned {cloned} is not sent {sent} + dropped \
                 {dropped} + punted {punted} + delivered {delivered} + held {held}"
            ));
        }
        if transmitted != sent + self.originated {
            return Err(format!(
                "packets do not add up: the ports accepted {transmitted}, which is not sent {sent} + \
                 originated {}",
                self.originated
            ));
        }
        Ok(())
    }
}
