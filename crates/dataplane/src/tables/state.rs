//! The forwarding state: what every worker reads for a packet.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::changes::Version;
use crate::epoch::Epochs;
use crate::id::{LinkId, NextHopId, PortId, VrfId};
use crate::links::LinkRecord;
use crate::memory::Memory;
use crate::next_hops::{HEADER_ROOM, NextHop};
use crate::stages::bridge::{BridgePort, Fdb, LearningBridges};
use crate::stages::classify::PortRecord;
use crate::stages::filter::Filter;
use crate::stages::icmp_redirect::Redirects;
use crate::stages::rule::RouteTables;
use crate::stages::source_check::{Rpf, Sources};
use crate::wire::eth::ethertype;

/// Everything that the stages read, shared by all workers.
///
/// The large tables (FIBs, next hops, groups, live sets) change in place, by single stores. All else never
/// changes: a writer publishes another state, which every worker takes before its next burst
/// ([`crate::router`]).
#[derive(Clone, Debug)]
pub struct ForwardingState {
    /// Says when memory of the FIBs may be reused.
    pub epochs: Arc<Epochs>,
    /// Ports by [`PortId`].
    pub ports: Vec<PortRecord>,
    /// What decides a packet's route: links, VRFs, FIBs, policies, groups and next hops.
    pub routes: RouteTables,
    /// Firewall rules, if any.
    pub filter: Option<Arc<Filter>>,
    /// The links' checks of source addresses, if any.
    pub(crate) sources: Option<Box<Sources>>,
    /// Links on which the kernel sends redirects, if any.
    pub(crate) redirects: Option<Box<Redirects>>,
    /// The forwarding database of bridges, which changes in place, too.
    pub fdb: Arc<Fdb>,
    /// The ports of bridges that forward.
    pub(crate) bridge_ports: BTreeMap<PortId, BridgePort>,
    /// Bridges that learn by themselves, if any.
    pub bridges: Option<Arc<LearningBridges>>,
}

impl ForwardingState {
    /// Creates an empty state with this memory.
    pub(super) fn new(memory: &Memory) -> Self {
        let epochs = Epochs::new();
        Self {
            routes: RouteTables::new(&epochs, memory),
            ports: Vec::new(),
            filter: None,
            sources: None,
            redirects: None,
            fdb: Arc::new(Fdb::new(memory)),
            bridge_ports: BTreeMap::new(),
            bridges: None,
            epochs,
        }
    }

    /// The current version of the tables: it differs if anything has changed that can affect a
    /// forwarded packet.
    #[inline(always)]
    #[must_use]
    pub fn version(&self) -> Version {
        self.epochs.changes.version()
    }

    /// The link with this number; numbers come from the tables themselves.
    #[inline(always)]
    #[must_use]
    pub fn link(&self, id: LinkId) -> &LinkRecord {
        &self.routes.links[id]
    }

    /// The VLAN link behind a tag on another link.
    #[must_use]
    pub fn vlan(&self, parent: LinkId, protocol: u16, vid: u16) -> Option<LinkId> {
        self.routes.links.vlan(parent, protocol, vid)
    }

    /// The next hop with this number; "no route" if there is none.
    #[must_use]
    pub fn next_hop(&self, id: NextHopId) -> NextHop {
        self.routes.next_hops.get(id)
    }

    /// The VRF to look up if this one has no route.
    #[must_use]
    pub fn fallback(&self, vrf: VrfId) -> Option<VrfId> {
        self.routes.fallbacks.as_ref()?.of(vrf)
    }

    /// The next hop or group that a VRF's FIB has for an address.
    #[must_use]
    pub fn lookup(&self, vrf: VrfId, address: IpAddr) -> NextHopId {
        let Some(record) = self.routes.vrfs.get(usize::from(vrf.0)) else {
            return NextHopId::NO_ROUTE;
        };
        match address {
            IpAddr::V4(v4) => self.routes.fib4.lookup(record.root4, u128::from(v4.to_bits()) << 96),
            IpAddr::V6(v6) => self.routes.fib6.lookup(record.root6, v6.to_bits()),
        }
    }

    /// The next hop or group for an address, from a VRF's FIB or else from those that it falls back to.
    #[must_use]
    pub fn resolve(&self, vrf: VrfId, address: IpAddr) -> NextHopId {
        self.routes.resolve(vrf, address)
    }

    /// Says whether the verdict on packets from a link depends on the route to their source.
    #[inline(always)]
    #[must_use]
    pub fn checks_source_route(&self, link: LinkId) -> bool {
        self.sources.as_ref().is_some_and(|sources| sources.of(link).source.rpf != Rpf::Off)
    }

    /// The Ethernet header of an IP packet sent on a link, right-aligned in the array, and the
    /// header's length in bytes: 0 on a layer-3 device.
    #[must_use]
    pub fn header(&self, link: LinkId, dst: [u8; 6], is_ipv4: bool) -> ([u8; HEADER_ROOM], u8) {
        if self.link(link).is_layer3() {
            return ([0; HEADER_ROOM], 0);
        }
        let ethertype = if is_ipv4 { ethertype::IPV4 } else { ethertype::IPV6 };
        let bytes = self.header_bytes(link, dst, ethertype);
        let mut header = [0; HEADER_ROOM];
        header[HEADER_ROOM - bytes.len()..].copy_from_slice(&bytes);
        (header, bytes.len() as u8)
    }

    /// The Ethernet header of a frame sent on a link.
    #[must_use]
    pub fn header_bytes(&self, link: LinkId, dst: [u8; 6], ethertype: u16) -> Vec<u8> {
        let record = self.link(link);
        let mut bytes = Vec::with_capacity(HEADER_ROOM);
        bytes.extend_from_slice(&dst);
        bytes.extend_from_slice(&record.mac_bytes);
        for (protocol, vid) in &record.tags {
            bytes.extend_from_slice(&protocol.to_be_bytes());
            bytes.extend_from_slice(&vid.get().to_be_bytes());
        }
        bytes.extend_from_slice(&ethertype.to_be_bytes());
        bytes
    }
}
