//! The router as a host: ARP, ND, ICMP, fragmentation, and packets that wait for a neighbour.
//!
//! Here is the slow road of file mode, where no kernel stands behind the path. It may allocate and
//! branch as it likes; it sees only what [`crate::path`] did not forward. It does what Linux does
//! on a router whose `sysctl`s are as they come; each file names the kernel's.
//!
//! How packets are counted: one that is delivered counts as that, unless it was to be forwarded and
//! came in a frame to a group, which drops it as the kernel does. One that is punted
//! counts as punted for the reason it came with, whatever is made of it, and the frames that come
//! of it (errors, fragments, the packet itself with its options filled in) as originated; but one
//! that waits for a neighbour is held and then sent or dropped, and one that is dropped for its
//! options counts as dropped. A frame of the router's own that is lost while it waits for a
//! neighbour counts as originated and lost. [`HostCounters`] says what was done, and why.
//!
//! Limits: no fragment is put together, so fragments for the router itself are ignored. Nothing
//! listens on any port. No redirects, no multicast listener reports, no duplicate address
//! detection of its own, no router advertisements, no proxy ARP or ND.

mod addresses;
mod arp;
mod build;
mod counters;
mod error;
mod extension;
mod forward;
mod fragment;
mod limit;
mod local;
mod nd;
mod neigh;
mod options;
mod reject;
mod send;
mod succeed;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

pub use counters::HostCounters;

use crate::counters::Counters;
use crate::frame::{Descriptor, FrameAddr, Umem};
use crate::id::{LinkId, PortId};
use crate::stages::filter::Steer;
use crate::tables::Tables;
use crate::verdict::{DropReason, PuntReason};
use crate::wire::eth::ethertype;
use addresses::Addresses;
use error::Offender;
use limit::Limiter;
use neigh::Neighs;
use send::{Destination, destination};

/// Whether a packet with IPv4 options or a hop-by-hop header goes on with them.
#[must_use]
pub fn obeys_options(layer3: &[u8]) -> bool {
    build::trim(layer3).is_some_and(|packet| match packet.first().map(|first| first >> 4) {
        Some(4) => options::read(packet, |_| false).is_ok(),
        _ => extension::options(packet, build::LEN6).is_ok(),
    })
}

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
    /// Where rules of the firewall send it.
    pub steer: Steer,
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
    /// Counts; the host keeps those of the packets that it is given.
    pub counters: &'a mut Counters,
    /// Frames to send when the call is over.
    pub outbox: &'a mut Vec<Outgoing>,
    /// The time since any fixed moment, ns; never goes back.
    pub now_ns: u64,
}

/// The router as a host.
#[derive(Debug, Default)]
pub struct Host {
    addresses: Addresses,
    neighs: Neighs,
    limiter: Limiter,
    /// The last identification given to a packet.
    ident: u16,
    counters: HostCounters,
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
    /// A link without a link-local IPv6 address has the one that its MAC address makes.
    pub fn add_address(&mut self, link: LinkId, address: IpAddr, prefix_len: u8) {
        self.addresses.add(link, address, prefix_len);
    }

    /// Says that a neighbour's address is the caller's to set, with [`Tables::set_neigh`], and not
    /// to be learned. A neighbour that is set before it is asked for is not learned either.
    pub fn add_static(&mut self, link: LinkId, address: IpAddr) {
        self.neighs.set_static((link, address));
    }

    /// Whether a neighbour's address is the caller's to set: see [`Host::add_static`].
    #[must_use]
    pub fn has_static(&self, link: LinkId, address: IpAddr) -> bool {
        self.neighs.is_static((link, address))
    }

    /// What the host did.
    #[must_use]
    pub fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// Neighbours that it has learned or is asking for.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        self.neighs.len()
    }

    /// What it knows of a neighbour, in the words of `ip neigh`; none where it knows nothing.
    #[must_use]
    pub fn neigh_state(&self, link: LinkId, address: IpAddr) -> Option<&'static str> {
        if self.neighs.is_static((link, address)) {
            return Some("permanent");
        }
        self.neighs.get((link, address)).map(|entry| entry.state.name())
    }

    /// Frames of its own that wait for a neighbour now; they are not counted as held.
    #[must_use]
    pub fn originated_waiting(&self) -> usize {
        self.neighs.made_waiting()
    }

    /// Chunks of the frames that wait for a neighbour now.
    #[must_use]
    pub fn chunks(&self, umem: &Umem) -> usize {
        self.neighs.frames().map(|addr| umem.chunks_of(addr)).sum()
    }

    /// Takes a packet for the router itself.
    pub fn deliver(&mut self, context: &mut Context<'_>, packet: Packet) {
        let frame = take(context, packet);
        let l3 = usize::from(packet.l3);
        if is_misdirected(context.tables, packet.link, &frame, l3) {
            context.counters.drop(DropReason::UnicastInL2Multicast);
            return;
        }
        context.counters.delivered += 1;
        let (Some(header), Some(layer3)) = (frame.get(..l3), frame.get(l3..)) else { return };
        let ([first, ..], [.., high, low]) = (header, header) else { return };
        let (link, to_group) = (packet.link, first & 1 != 0);
        match u16::from_be_bytes([*high, *low]) {
            ethertype::ARP => self.take_arp(context, link, layer3, !to_group),
            protocol @ (ethertype::IPV4 | ethertype::IPV6) => match build::trim(layer3) {
                Some(packet) if (packet[0] >> 4 == 4) == (protocol == ethertype::IPV4) => {
                    self.receive(context, Offender { link, packet, to_group });
                }
                _ => self.counters.malformed += 1,
            },
            _ => self.counters.ignored += 1,
        }
    }

    /// Takes a packet that the path punted; one with `NeighUnresolved` is held (and then counted
    /// as held, not as punted), any other is dealt with at once.
    pub fn punt(&mut self, context: &mut Context<'_>, packet: Packet, reason: PuntReason) {
        if reason == PuntReason::NeighUnresolved {
            self.hold(context, packet);
            return;
        }
        let frame = take(context, packet);
        if reason == PuntReason::FilterUnsupported {
            // A kernel's to decide, be it sound or not: hook ingress has not looked at its header.
            context.counters.punt(reason);
            return;
        }
        let layer3 = frame.get(usize::from(packet.l3)..).unwrap_or_default();
        let Some(bytes) = build::trim(layer3) else {
            context.counters.drop(DropReason::IpInhdr);
            return;
        };
        let (link, steer) = (packet.link, packet.steer);
        let done = match reason {
            PuntReason::IpOptions => self.forward_options(context, (link, steer), bytes.to_vec()),
            PuntReason::HopByHop => self.forward_hop_by_hop(context, (link, steer), bytes.to_vec()),
            PuntReason::MtuExceeded => {
                self.forward_big(context, (link, steer), bytes.to_vec());
                Ok(())
            }
            _ => {
                self.answer(context, link, bytes, reason);
                Ok(())
            }
        };
        match done {
            Ok(()) => context.counters.punt(reason),
            Err(drop) => context.counters.drop(drop),
        }
    }

    /// Does what is due by now: probes, timeouts. To be called some ten times a second.
    pub fn tick(&mut self, context: &mut Context<'_>) {
        for key in self.neighs.due(context.now_ns) {
            self.step(context, key);
        }
    }
}

/// Whether a packet came in a frame to a group and is for one other station (`ip_forward` and
/// `ip6_forward` drop what is not `PACKET_HOST`).
fn is_misdirected(tables: &Tables, link: LinkId, frame: &[u8], l3: usize) -> bool {
    let to_group = frame.first().is_some_and(|byte| byte & 1 != 0);
    let packet = frame.get(l3..).filter(|_| to_group).and_then(build::trim);
    let Some((packet, (_, dst))) = packet.and_then(|p| Some((p, build::endpoints(p)?))) else {
        return false;
    };
    matches!(destination(tables, tables.link(link).vrf, dst, packet), Destination::Way(_))
}

/// A frame's bytes; its chunk is free from then on.
fn take(context: &mut Context<'_>, packet: Packet) -> Vec<u8> {
    let frame = Descriptor { addr: packet.addr, len: u32::from(packet.len) };
    let bytes = context.umem.whole(frame).into_owned();
    context.umem.free(packet.addr);
    bytes
}
