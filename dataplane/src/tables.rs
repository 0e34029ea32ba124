//! What the stages read: ports, links, FIBs, next hops. One value, swapped or changed between bursts.

mod adjacency;
mod next_hops;
mod prefix;
mod records;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;

use crate::changes::Version;
use crate::epoch::Epochs;
use crate::id::{LinkId, NextHopId, PortId, Vid, VrfId};
use crate::stages::classify::{VlanEntry, VlanTable};
use crate::stages::ecmp::{BUCKETS, Groups, Member};
use crate::stages::filter::Filter;
use crate::stages::route::{Capacity, Fib};
use crate::verdict::{DropReason, PuntReason};
use crate::wire::eth::{MacWord, ethertype};
use adjacency::HostRoutes;
pub use next_hops::{MOST_NEXT_HOPS, NextHops, Record, RecordId, View};
pub use prefix::RoutePrefix;
use prefix::standing_routes;
pub use records::{Action, LinkRecord, NextHop, PortRecord, TablesError, VrfRecord};

/// Bytes that a ready-made Ethernet header has room for: 14 and two tags, rounded up for the copy.
pub const HEADER_ROOM: usize = 24;

/// Tags that links can be stacked (QinQ).
pub const MAX_STACKED_TAGS: usize = 2;

/// Everything that the stages read.
#[derive(Debug)]
pub struct Tables {
    /// When memory of the FIBs may be used again.
    pub epochs: Arc<Epochs>,
    /// Ports by [`PortId`].
    pub ports: Vec<PortRecord>,
    /// Links by [`LinkId`].
    pub links: Vec<LinkRecord>,
    /// VRFs by [`VrfId`].
    pub vrfs: Vec<VrfRecord>,
    /// IPv4 FIBs of all VRFs.
    pub fib4: Arc<Fib>,
    /// IPv6 FIBs of all VRFs.
    pub fib6: Arc<Fib>,
    /// Next hops by [`NextHopId`].
    pub next_hops: Arc<NextHops>,
    /// Next-hop groups by [`NextHopId`] without its mark.
    pub groups: Arc<Groups>,
    /// Rules of the firewall, if there are any.
    pub filter: Option<Arc<Filter>>,
    /// Every VLAN link, by what it is on: the link below, the tag's protocol and identifier.
    vlans: HashMap<(LinkId, u16, u16), LinkId>,
    /// The next hop of each known or wanted neighbour.
    neighs: HashMap<(LinkId, IpAddr), NeighRecord>,
    /// Next hops of neighbours that were forgotten, for those that come.
    spare: Vec<NextHopId>,
    inert: HashMap<InertKey, NextHopId>,
    host_routes: HostRoutes,
}

/// The next hop that leads to a neighbour.
#[derive(Clone, Copy, Debug)]
struct NeighRecord {
    next: NextHopId,
    /// Somebody was told the number and may have routes with it: it is not used again.
    pinned: bool,
}

/// Next hops that are the same for every route that needs them.
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
    /// Empty tables: every packet has no route.
    #[must_use]
    pub fn new() -> Self {
        Self::with_capacity(Capacity::default(), Capacity::default())
    }

    /// The same with FIBs that may grow so far, IPv4 and IPv6.
    #[must_use]
    pub fn with_capacity(capacity4: Capacity, capacity6: Capacity) -> Self {
        let epochs = Epochs::new();
        Self {
            fib4: Arc::new(Fib::new(Arc::clone(&epochs), capacity4)),
            fib6: Arc::new(Fib::new(Arc::clone(&epochs), capacity6)),
            ports: Vec::new(),
            links: Vec::new(),
            vrfs: Vec::new(),
            next_hops: Arc::new(NextHops::new(Arc::clone(&epochs))),
            groups: Arc::new(Groups::new(Arc::clone(&epochs))),
            filter: None,
            vlans: HashMap::new(),
            neighs: HashMap::new(),
            spare: Vec::new(),
            inert: HashMap::new(),
            host_routes: HostRoutes::default(),
            epochs,
        }
    }

    /// What the tables are like now: another value when anything has changed that a forwarded packet
    /// might notice.
    #[inline(always)]
    #[must_use]
    pub fn version(&self) -> Version {
        self.epochs.changes.version()
    }

    /// The link of that number; numbers come from the tables themselves.
    #[inline(always)]
    #[must_use]
    pub fn link(&self, id: LinkId) -> &LinkRecord {
        &self.links[usize::from(id.0)]
    }

    /// The VLAN link behind a tag on another link.
    #[must_use]
    pub fn vlan(&self, parent: LinkId, protocol: u16, vid: u16) -> Option<LinkId> {
        self.vlans.get(&(parent, protocol, vid)).copied()
    }

    /// The next hop of that number; one that is not there has no route.
    #[must_use]
    pub fn next_hop(&self, id: NextHopId) -> NextHop {
        self.next_hops.get(id)
    }

    /// Adds a VRF; every one has the routes that RFC 1122 and RFC 4291 demand of all hosts.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_vrf(&mut self) -> Result<VrfId, TablesError> {
        let id = u16::try_from(self.vrfs.len()).map_err(|_| TablesError::Full)?;
        let vrf = VrfRecord { root4: self.fib4.add_root()?, root6: self.fib6.add_root()? };
        self.vrfs.push(vrf);
        let id = VrfId(id);
        for (prefix, action) in standing_routes() {
            let next = self.inert(action)?;
            self.insert(id, prefix, next)?;
        }
        Ok(id)
    }

    /// Adds a port and the link of its untagged frames.
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
        let below = self.links.get(usize::from(parent.0)).ok_or(TablesError::Unknown)?;
        let (port, mut tags) = (below.port, below.tags.clone());
        tags.push((protocol, vid));
        if tags.len() > MAX_STACKED_TAGS {
            return Err(TablesError::TooManyTags);
        }
        let link = self.add_link(port, mac, vrf, mtu, tags)?;
        self.vlans.insert((parent, protocol, vid.get()), link);
        if let Some(record) = self.ports.get_mut(usize::from(port.0)).filter(|p| p.link == parent) {
            let LinkRecord { mac, root4, root6, .. } = self.links[usize::from(link.0)];
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
        let roots = *self.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
        // One number is spared: it stands for no link.
        let id = u16::try_from(self.links.len()).ok().filter(|id| *id < u16::MAX);
        let id = LinkId(id.ok_or(TablesError::Full)?);
        self.links.push(LinkRecord {
            mac: MacWord::new(mac),
            root4: roots.root4.0,
            root6: roots.root6.0,
            port,
            vrf,
            mtu,
            mac_bytes: mac,
            tags,
        });
        Ok(id)
    }

    /// Puts a route in a VRF's FIB, over one to the same prefix.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn insert(
        &mut self,
        vrf: VrfId,
        prefix: RoutePrefix,
        next: NextHopId,
    ) -> Result<(), TablesError> {
        let record = *self.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
        match prefix {
            RoutePrefix::V4(prefix) => self.fib4.insert(record.root4, prefix, next)?,
            RoutePrefix::V6(prefix) => self.fib6.insert(record.root6, prefix, next)?,
        }
        self.note_connected(vrf, next);
        Ok(())
    }

    /// Takes a route out of a VRF's FIB; false where there was none.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn remove(&self, vrf: VrfId, prefix: RoutePrefix) -> Result<bool, TablesError> {
        let record = self.vrfs.get(usize::from(vrf.0)).ok_or(TablesError::Unknown)?;
        Ok(match prefix {
            RoutePrefix::V4(prefix) => self.fib4.remove(record.root4, prefix)?,
            RoutePrefix::V6(prefix) => self.fib6.remove(record.root6, prefix)?,
        })
    }

    /// The next hop or group that a VRF's FIB has for an address.
    #[must_use]
    pub fn lookup(&self, vrf: VrfId, address: IpAddr) -> NextHopId {
        let Some(record) = self.vrfs.get(usize::from(vrf.0)) else { return NextHopId::NO_ROUTE };
        match address {
            IpAddr::V4(v4) => self.fib4.lookup(record.root4, u128::from(v4.to_bits()) << 96),
            IpAddr::V6(v6) => self.fib6.lookup(record.root6, v6.to_bits()),
        }
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

    /// The next hop that hands to the slow path.
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
        let record = self.links.get(usize::from(link.0)).ok_or(TablesError::Unknown)?;
        let next = NextHop { link, port: record.port, ..NextHop::inert(Action::Glean) };
        let id = self.push_next_hop(next)?;
        self.inert.insert(InertKey::Glean(link), id);
        Ok(id)
    }

    /// The next hop that leads to a neighbour, known or not; it keeps its number for good.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn neigh(&mut self, link: LinkId, address: IpAddr) -> Result<NextHopId, TablesError> {
        let id = self.neigh_record(link, address)?;
        if let Some(record) = self.neighs.get_mut(&(link, address)) {
            record.pinned = true;
        }
        Ok(id)
    }

    /// The next hop that leads to a neighbour, if there is one.
    #[must_use]
    pub fn find_neigh(&self, link: LinkId, address: IpAddr) -> Option<NextHopId> {
        self.neighs.get(&(link, address)).map(|record| record.next)
    }

    /// Every neighbour that is known or wanted, with the next hop that leads to it; in no order.
    pub fn neighs(&self) -> impl Iterator<Item = (LinkId, IpAddr, NextHopId)> {
        self.neighs.iter().map(|(&(link, address), record)| (link, address, record.next))
    }

    fn neigh_record(&mut self, link: LinkId, address: IpAddr) -> Result<NextHopId, TablesError> {
        if let Some(id) = self.find_neigh(link, address) {
            return Ok(id);
        }
        let record = self.links.get(usize::from(link.0)).ok_or(TablesError::Unknown)?;
        let inert = NextHop::inert(Action::Resolve);
        let next = NextHop { link, port: record.port, neigh: Some(address), ..inert };
        let id = match self.spare.pop() {
            Some(id) => {
                self.change(id, &next)?;
                id
            }
            None => self.push_next_hop(next)?,
        };
        self.neighs.insert((link, address), NeighRecord { next: id, pinned: false });
        Ok(id)
    }

    fn push_next_hop(&self, next: NextHop) -> Result<NextHopId, TablesError> {
        self.next_hops.push(&next).ok_or(TablesError::Full)
    }

    fn change(&self, id: NextHopId, next: &NextHop) -> Result<(), TablesError> {
        // A neighbour that is confirmed is none that changed.
        if self.next_hops.get(id) == *next {
            return Ok(());
        }
        if self.next_hops.set(id, next) { Ok(()) } else { Err(TablesError::Full) }
    }

    /// Tells a neighbour's address, or with none that it is not known (any more).
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_neigh(
        &mut self,
        link: LinkId,
        address: IpAddr,
        mac: Option<[u8; 6]>,
    ) -> Result<NextHopId, TablesError> {
        self.neigh(link, address)?;
        self.learn_neigh(link, address, mac)
    }

    /// As [`Tables::set_neigh`], for an address that was learned: [`Tables::forget_neigh`] frees
    /// its next hop for another, unless [`Tables::neigh`] has given it out.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn learn_neigh(
        &mut self,
        link: LinkId,
        address: IpAddr,
        mac: Option<[u8; 6]>,
    ) -> Result<NextHopId, TablesError> {
        let id = self.neigh_record(link, address)?;
        let (header, header_len) = self.header(link, mac.unwrap_or_default(), address.is_ipv4());
        let mtu = self.link(link).mtu;
        let mut next = self.next_hop(id);
        (next.header, next.header_len) = (header, header_len);
        (next.action, next.mtu) =
            if mac.is_some() { (Action::Forward, mtu) } else { (Action::Resolve, 0) };
        self.change(id, &next)?;
        Ok(id)
    }

    /// Forgets a neighbour's address; no route may be left that [`Tables::learn_neigh`]'s next hop
    /// was put in.
    pub fn forget_neigh(&mut self, link: LinkId, address: IpAddr) {
        let Some(record) = self.neighs.get(&(link, address)).copied() else { return };
        let inert = NextHop { action: Action::Resolve, mtu: 0, ..self.next_hop(record.next) };
        if self.change(record.next, &inert).is_err() {
            // It can not be told now, so it stays whose it is.
            return;
        }
        if !record.pinned {
            self.neighs.remove(&(link, address));
            self.spare.push(record.next);
        }
    }

    /// Adds a next-hop group.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_group(&mut self, members: &[Member]) -> Result<NextHopId, TablesError> {
        if members.is_empty() || members.len() > BUCKETS {
            return Err(TablesError::GroupSize);
        }
        let number = self.groups.push(members).ok_or(TablesError::Full)?;
        Ok(NextHopId(NextHopId::GROUP | number))
    }

    /// Gives a next-hop group other members; only flows move that have to.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_group(&self, id: NextHopId, members: &[Member]) -> Result<(), TablesError> {
        if members.is_empty() || members.len() > BUCKETS {
            return Err(TablesError::GroupSize);
        }
        let number = id.0 & !NextHopId::GROUP;
        let done = id.is_group() && self.groups.set(number, members);
        if done { Ok(()) } else { Err(TablesError::Unknown) }
    }

    /// The Ethernet header of an IP packet sent on a link, at the end of its room, and its length.
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
