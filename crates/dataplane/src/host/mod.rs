//! The router as a host: ARP, ND, ICMP, fragmentation, and packets that wait for a neighbour.
//!
//! This is the slow path of file mode, where no kernel can take the packets that [`crate::path`]
//! does not forward. It sees only those packets, so it may allocate and branch freely. It behaves
//! as Linux does on a router with default `sysctl`s; each file names the kernel functions.
//!
//! How packets are counted:
//!
//! - A delivered packet counts as delivered. Exception: a packet to be forwarded that arrived in a
//!   group-addressed frame counts as dropped, as in the kernel.
//! - A punted packet counts as punted with its reason, whatever the host does with it. The frames
//!   that the host makes from it (errors, fragments, the packet itself with its options filled in)
//!   count as originated.
//! - A packet that waits for a neighbour counts as held, then as sent or dropped. A packet dropped
//!   for its options counts as dropped.
//! - A frame of the router's own that is lost while it waits for a neighbour counts as originated
//!   and lost.
//!
//! [`HostCounters`] says what the host did, and why.
//!
//! Limits: the host reassembles no fragments, so it ignores fragments for the router itself. It
//! listens on no port. It sends no redirects, multicast listener reports or router advertisements;
//! it does no duplicate address detection of its own, and no proxy ARP or ND.

mod addresses;
mod arp;
mod build;
mod counters;
mod error;
mod forward;
mod fragment;
mod limit;
mod local;
mod nd;
mod neigh;
mod reject;
mod send;
mod succeed;
#[cfg(test)]
mod tests;
mod translated;

use std::collections::BTreeSet;
use std::net::IpAddr;

pub use counters::HostCounters;

use crate::counters::Counters;
use crate::frame::{Descriptor, FrameAddr, Umem};
use crate::id::{LinkId, PortId};
use crate::ip;
use crate::stages::filter::PolicyRoute;
use crate::tables::Tables;
use crate::verdict::{DropReason, PuntReason};
use crate::wire::eth::ethertype;
use addresses::Addresses;
use error::Offender;
use limit::Limiter;
use neigh::Neighs;
use send::{Destination, destination};

/// A packet that exited the fast path; its holder owns the frame.
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
    /// The target to which the firewall's rules reroute it.
    pub policy_route: PolicyRoute,
}

/// A frame for the caller to send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Outgoing {
    /// The egress port.
    pub port: PortId,
    /// The frame.
    pub frame: Descriptor,
    /// Whether this is a received packet that was held, rather than a frame that the router made.
    pub released: bool,
}

/// What the host works on, borrowed for one call.
pub struct Context<'a> {
    /// Tables; the host enters the neighbours that it learns.
    pub tables: &'a mut Tables,
    /// The frames' memory.
    pub umem: &'a mut Umem,
    /// Counts; the host counts the packets that it receives.
    pub counters: &'a mut Counters,
    /// Frames to send after the call.
    pub outbox: &'a mut Vec<Outgoing>,
    /// The destination with which the packet has come, and the port if it has one, if rules have given it another one.
    /// The connection may not be in their table yet.
    pub came: Option<(u128, Option<u16>)>,
    /// Monotonic time since any fixed moment, in ns.
    pub now_ns: u64,
}

/// The router as a host.
#[derive(Debug, Default)]
pub struct Host {
    addresses: Addresses,
    neighs: Neighs,
    limiter: Limiter,
    /// The last IP identification that was assigned.
    ident: u16,
    counters: HostCounters,
    /// Links whose neighbours the kernel resolves.
    kernel_links: BTreeSet<LinkId>,
    /// Neighbours that it has to resolve.
    wanted: Vec<(LinkId, IpAddr)>,
}

impl Host {
    /// A host without addresses.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Assigns a link an address with its prefix length; the first of each family is the primary
    /// one.
    ///
    /// The caller enters the routes that follow (local, connected, broadcast) in the tables. A link
    /// without a link-local IPv6 address uses the one derived from its MAC address.
    pub fn add_address(&mut self, link: LinkId, address: IpAddr, prefix_len: u8) {
        self.addresses.add(link, address, prefix_len);
    }

    /// Has the kernel behind a link resolve its neighbours, since the answers come to the kernel. Somebody takes the
    /// requests (`take_wanted`), and puts the neighbours into the tables.
    pub fn have_kernel_resolve(&mut self, link: LinkId) {
        self.kernel_links.insert(link);
    }

    /// Takes the neighbours that the kernel has to resolve.
    pub(crate) fn take_wanted(&mut self) -> Vec<(LinkId, IpAddr)> {
        std::mem::take(&mut self.wanted)
    }

    /// Whether packets wait for a neighbour.
    #[must_use]
    pub fn waits_for(&self, link: LinkId, address: IpAddr) -> bool {
        let entry = self.neighs.get((link, address));
        entry.is_some_and(|entry| entry.state == neigh::State::Incomplete)
    }

    /// Declares a neighbour static: the caller sets its address with [`Tables::set_neigh`], and the
    /// host does not learn it. The host does not learn a neighbour that is set before it is
    /// solicited either.
    pub fn add_static(&mut self, link: LinkId, address: IpAddr) {
        self.neighs.set_static((link, address));
    }

    /// Whether a neighbour is static; see [`Host::add_static`].
    #[must_use]
    pub fn has_static(&self, link: LinkId, address: IpAddr) -> bool {
        self.neighs.is_static((link, address))
    }

    /// The host's counters.
    #[must_use]
    pub fn counters(&self) -> &HostCounters {
        &self.counters
    }

    /// The number of neighbours that the host has learned or is soliciting.
    #[must_use]
    pub fn neighbours(&self) -> usize {
        self.neighs.len()
    }

    /// A neighbour's state, in the words of `ip neigh`; `None` if the host does not know it.
    #[must_use]
    pub fn neigh_state(&self, link: LinkId, address: IpAddr) -> Option<&'static str> {
        if self.neighs.is_static((link, address)) {
            return Some("permanent");
        }
        self.neighs.get((link, address)).map(|entry| entry.state.name())
    }

    /// The number of the router's own frames that wait for a neighbour now; they do not count as
    /// held.
    #[must_use]
    pub fn originated_waiting(&self) -> usize {
        self.neighs.made_waiting()
    }

    /// The number of chunks in use by frames that wait for a neighbour now.
    #[must_use]
    pub fn chunks(&self, umem: &Umem) -> usize {
        self.neighs.frames().map(|addr| umem.chunks_of(addr)).sum()
    }

    /// Handles a packet for the router itself.
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
            protocol @ (ethertype::IPV4 | ethertype::IPV6) => match ip::trim(layer3) {
                Some(packet) if (packet[0] >> 4 == 4) == (protocol == ethertype::IPV4) => {
                    self.receive(context, Offender { link, packet, to_group });
                }
                _ => self.counters.malformed += 1,
            },
            _ => self.counters.ignored += 1,
        }
    }

    /// Handles a packet that the path punted.
    ///
    /// The host holds a packet with `NeighUnresolved`, and counts it as held, not as punted. It
    /// handles any other at once.
    pub fn punt(&mut self, context: &mut Context<'_>, packet: Packet, reason: PuntReason) {
        if reason == PuntReason::NeighUnresolved {
            self.hold(context, packet);
            return;
        }
        let frame = take(context, packet);
        if reason == PuntReason::FilterUnsupported {
            // Hook ingress has not checked the header; only a kernel could decide, sound or not.
            context.counters.punt(reason);
            return;
        }
        let layer3 = frame.get(usize::from(packet.l3)..).unwrap_or_default();
        let Some(bytes) = ip::trim(layer3) else {
            context.counters.drop(DropReason::IpInhdr);
            return;
        };
        let (link, policy_route) = (packet.link, packet.policy_route);
        let done = match reason {
            PuntReason::IpOptions => {
                self.forward_options(context, (link, policy_route), bytes.to_vec())
            }
            PuntReason::HopByHop => {
                self.forward_hop_by_hop(context, (link, policy_route), bytes.to_vec())
            }
            PuntReason::MtuExceeded => {
                self.forward_big(context, (link, policy_route), bytes.to_vec());
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

    /// Runs the timers (probes, timeouts); to be called about ten times a second.
    pub fn tick(&mut self, context: &mut Context<'_>) {
        self.release_resolved(context);
        for key in self.neighs.due(context.now_ns) {
            self.step(context, key);
        }
    }
}

/// Whether a packet for another station arrived in a group-addressed frame (`ip_forward` and
/// `ip6_forward` drop what is not `PACKET_HOST`).
fn is_misdirected(tables: &Tables, link: LinkId, frame: &[u8], l3: usize) -> bool {
    let to_group = frame.first().is_some_and(|byte| byte & 1 != 0);
    let packet = frame.get(l3..).filter(|_| to_group).and_then(ip::trim);
    let Some((packet, (_, dst))) = packet.and_then(|p| Some((p, ip::endpoints(p)?))) else {
        return false;
    };
    matches!(destination(tables, tables.link(link).vrf, dst, packet), Destination::EgressLink(_))
}

/// Copies a frame's bytes and frees its chunk.
fn take(context: &mut Context<'_>, packet: Packet) -> Vec<u8> {
    let frame = Descriptor { addr: packet.addr, len: u32::from(packet.len) };
    let bytes = context.umem.whole(frame).into_owned();
    context.umem.free(packet.addr);
    bytes
}
