//! The tables that the stages read: ports, links, FIBs, next hops. They are one value, which is swapped
//! or changed between bursts.

mod adjacency;
mod error;
mod kernel_link;
mod neighs;
mod objects;
mod optional;
mod standing;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::changes::Version;
use crate::epoch::Epochs;
use crate::fib::Capacity;
use crate::id::{LinkId, NextHopId, PortId, Vid, VrfId};
use crate::links::{LinkRecord, VrfRecord};
use crate::next_hops::{Action, HEADER_ROOM, NextHop};
use crate::prefix::RoutePrefix;
use crate::stages::classify::{PortRecord, VlanEntry, VlanTable};
use crate::stages::ecmp::{MOST_MEMBERS, Member};
use crate::stages::filter::Filter;
use crate::stages::icmp_redirect::Redirects;
use crate::stages::rule::RouteTables;
use crate::stages::source_check::Sources;
use crate::verdict::{DropReason, PuntReason};
use crate::wire::eth::{MacWord, ethertype};
use adjacency::HostRoutes;
pub use error::TablesError;
use neighs::Neighs;
pub use objects::ObjectTarget;
use standing::standing_routes;

/// The maximum number of stacked VLAN tags on a link (QinQ).
pub const MAX_STACKED_TAGS: usize = 2;

/// All tables that the stages read.
#[derive(Debug)]
pub struct Tables {
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
    neighs: Neighs,
    inert: HashMap<InertKey, NextHopId>,
    /// The targets of next-hop objects, which change in place.
    objects: HashMap<NextHopId, ObjectTarget>,
    host_routes: HostRoutes,
}

/// Next hops that all their routes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum InertKey {
    Local,
    Drop(DropReason),
    Punt(PuntReason),
    Glean(LinkId),
}

impl Default for Tables {
    fn default() -> Self {
        Self::new()
    }
}

impl Tables {
    /// Creates empty tables: no packet has a route.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(Capacity::default(), Capacity::default())
    }

    /// Creates empty tables with FIBs of the given capacity, IPv4 and IPv6.
    #[must_use]
    pub fn with_capacity(capacity4: Capacity, capacity6: Capacity) -> Self {
        let epochs = Epochs::new();
        Self {
            routes: RouteTables::new(&epochs, capacity4, capacity6),
            ports: Vec::new(),
            filter: None,
            sources: None,
            redirects: None,
            neighs: Neighs::default(),
            inert: HashMap::new(),
            objects: HashMap::new(),
            host_routes: HostRoutes::default(),
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

    /// Adds a VRF; each has the routes that RFC 1122 and RFC 4291 demand of all hosts.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_vrf(&mut self) -> Result<VrfId, TablesError> {
        let id = u16::try_from(self.routes.vrfs.len()).map_err(|_| TablesError::Full)?;
        let vrf =
            VrfRecord { root4: self.routes.fib4.add_root()?, root6: self.routes.fib6.add_root()? };
        self.routes.vrfs.push(vrf);
        let id = VrfId(id);
        for (prefix, action) in standing_routes() {
            let next = self.inert(action)?;
            self.insert(id, prefix, next)?;
        }
        Ok(id)
    }

    /// Adds a port and the link for its untagged frames.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_port(
        &mut self,
        mac: [u8; 6],
        vrf: VrfId,
        mtu: u16,
    ) -> Result<(PortId, LinkId), TablesError> {
        let port = PortId(u16::try_from(self.ports.len()).map_err(|_| TablesError::Full)?);
        let link = self.add_link(port, mac, vrf, mtu, Vec::new())?;
        let record = self.link(link);
        let (root4, root6) = (record.root4, record.root6);
        let vlans = VlanTable::default();
        self.ports.push(PortRecord { mac: MacWord::new(mac), link, root4, root6, vlans });
        Ok((port, link))
    }

    /// Adds a VLAN link on top of another; `protocol` is the tag's ethertype.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_vlan(
        &mut self,
        parent: LinkId,
        protocol: u16,
        vid: Vid,
        mac: [u8; 6],
        vrf: VrfId,
        mtu: u16,
    ) -> Result<LinkId, TablesError> {
        let below = self.routes.links.get(parent).ok_or(TablesError::Unknown)?;
        let (port, mut tags) = (below.port, below.tags.clone());
        tags.push((protocol, vid));
        if tags.len() > MAX_STACKED_TAGS {
            return Err(TablesError::TooManyTags);
        }
        let link = self.add_link(port, mac, vrf, mtu, tags)?;
        self.routes.links.insert_vlan(parent, protocol, vid, link);
        if let Some(record) = self.ports.get_mut(usize::from(port.0)).filter(|p| p.link == parent) {
            let LinkRecord { mac, root4, root6, .. } = self.routes.links[link];
            let own_mac = mac != record.mac;
            record.vlans.insert(protocol, vid, VlanEntry { link, root4, root6 }, own_mac);
        }
        Ok(link)
    }

    fn add_link(
        &mut self,
        port: PortId,
        mac: [u8; 6],
        vrf: VrfId,
        mtu: u16,
        tags: Vec<(u16, Vid)>,
    ) -> Result<LinkId, TablesError> {
        let roots = *self.routes.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
        let record = LinkRecord {
            mac: MacWord::new(mac),
            root4: roots.root4.0,
            root6: roots.root6.0,
            port,
            vrf,
            mtu,
            mtu6: mtu,
            mac_bytes: mac,
            tags,
        };
        self.routes.links.push(record).ok_or(TablesError::Full)
    }

    /// Inserts a route into a VRF's FIB, replacing any route to the same prefix.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn insert(
        &mut self,
        vrf: VrfId,
        prefix: RoutePrefix,
        next: NextHopId,
    ) -> Result<(), TablesError> {
        self.change_route(vrf, prefix, Some(next)).map(|_| ())
    }

    /// Removes a route from a VRF's FIB; false if there was none.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn remove(&mut self, vrf: VrfId, prefix: RoutePrefix) -> Result<bool, TablesError> {
        self.change_route(vrf, prefix, None)
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

    /// The next hop that delivers to the router itself.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn local(&mut self) -> Result<NextHopId, TablesError> {
        self.inert(Action::Local)
    }

    /// The next hop that drops.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn drop(&mut self, reason: DropReason) -> Result<NextHopId, TablesError> {
        self.inert(Action::Drop(reason))
    }

    /// The next hop that punts to the slow path.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn punt(&mut self, reason: PuntReason) -> Result<NextHopId, TablesError> {
        self.inert(Action::Punt(reason))
    }

    fn inert(&mut self, action: Action) -> Result<NextHopId, TablesError> {
        let key = match action {
            Action::Drop(reason) => InertKey::Drop(reason),
            Action::Punt(reason) => InertKey::Punt(reason),
            _ => InertKey::Local,
        };
        if let Some(id) = self.inert.get(&key) {
            return Ok(*id);
        }
        let id = self.push_next_hop(NextHop::inert(action))?;
        self.inert.insert(key, id);
        Ok(id)
    }

    /// The next hop of a connected prefix: each destination is itself the neighbour.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn glean(&mut self, link: LinkId) -> Result<NextHopId, TablesError> {
        if let Some(id) = self.inert.get(&InertKey::Glean(link)) {
            return Ok(*id);
        }
        let record = self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        let next = NextHop { link, port: record.port, ..NextHop::inert(Action::Glean) };
        let id = self.push_next_hop(next)?;
        self.inert.insert(InertKey::Glean(link), id);
        Ok(id)
    }

    fn push_next_hop(&self, next: NextHop) -> Result<NextHopId, TablesError> {
        self.routes.next_hops.push(&next).ok_or(TablesError::Full)
    }

    /// Adds a next-hop group.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_group(&mut self, members: &[Member]) -> Result<NextHopId, TablesError> {
        if members.is_empty() || members.len() > MOST_MEMBERS {
            return Err(TablesError::GroupSize);
        }
        let number = self.routes.groups.push(members).ok_or(TablesError::Full)?;
        Ok(NextHopId(NextHopId::GROUP | number))
    }

    /// Sets the members of a next-hop group, in their order.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_group(&self, id: NextHopId, members: &[Member]) -> Result<(), TablesError> {
        if members.is_empty() || members.len() > MOST_MEMBERS {
            return Err(TablesError::GroupSize);
        }
        let number = id.0 & !NextHopId::GROUP;
        let done = id.is_group() && self.routes.groups.set(number, members);
        if done { Ok(()) } else { Err(TablesError::Unknown) }
    }

    /// The Ethernet header of an IP packet sent on a link, right-aligned in the array, and the
    /// header's length in bytes.
    #[must_use]
    pub fn header(&self, link: LinkId, dst: [u8; 6], is_ipv4: bool) -> ([u8; HEADER_ROOM], u8) {
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
