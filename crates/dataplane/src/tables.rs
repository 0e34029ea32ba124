//! The tables that the stages read: ports, links, FIBs, next hops. They are one value, which is swapped
//! or changed between bursts.

mod adjacency;
mod engines;
mod error;
mod kernel_link;
mod neighs;
mod objects;
mod optional;
mod standing;
mod state;

use std::collections::HashMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use crate::id::{BridgeId, LinkId, NextHopId, PortId, Vid, VrfId};
use crate::links::{LinkRecord, VrfRecord};
use crate::memory::Memory;
use crate::next_hops::{Action, NextHop};
use crate::prefix::RoutePrefix;
use crate::stages::classify::{InnerTag, PortRecord, VlanEntry, VlanTable};
use crate::stages::ecmp::{MOST_MEMBERS, Member};
use crate::stages::filter::Count;
use crate::verdict::{DropReason, PuntReason};
use crate::wire::eth::MacWord;
use adjacency::HostRoutes;
pub(crate) use engines::Engines;
pub use engines::{
    DECIDES4, DECIDES6, IN_VRF, MOST_BRIDGE_PORTS, MOST_BRIDGES, MOST_ENGINE_COUNTERS, MOST_LINKS,
    MOST_ROUTE_RULES, ROOT_RULES, SOURCE_DROPS4, SOURCE_KIND4, SOURCE_LINK4, SOURCE_NOT_TO_VRF4,
    SOURCE_ROUTE4,
};
pub use error::TablesError;
use neighs::Neighs;
pub use objects::ObjectTarget;
use standing::standing_routes;
pub use state::ForwardingState;

/// The maximum number of stacked VLAN tags on a link (QinQ).
pub const MAX_STACKED_TAGS: usize = 2;

/// The forwarding state with what its writer needs to change it.
///
/// It dereferences to its [`ForwardingState`]. A change of a part that is not changed in place makes a copy of
/// the state if workers may have it.
#[derive(Debug)]
pub struct Tables {
    state: Arc<ForwardingState>,
    neighs: Neighs,
    inert: HashMap<InertKey, NextHopId>,
    /// The targets of next-hop objects, which change in place.
    objects: HashMap<NextHopId, ObjectTarget>,
    host_routes: HostRoutes,
    memory: Memory,
    engines: Arc<Engines>,
}

impl Deref for Tables {
    type Target = ForwardingState;

    fn deref(&self) -> &ForwardingState {
        &self.state
    }
}

impl DerefMut for Tables {
    fn deref_mut(&mut self) -> &mut ForwardingState {
        Arc::make_mut(&mut self.state)
    }
}

/// Next hops that all their routes share.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum InertKey {
    Local,
    Drop(DropReason),
    Punt(PuntReason),
    Glean(LinkId),
    KernelExit(LinkId),
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
        Self::with_memory(&Memory::default())
    }

    /// Creates empty tables with this memory.
    #[must_use]
    pub fn with_memory(memory: &Memory) -> Self {
        let state = Arc::new(ForwardingState::new(memory));
        Self {
            neighs: Neighs::new(&state.epochs),
            engines: Arc::new(Engines::new(memory, &state.epochs)),
            state,
            inert: HashMap::new(),
            objects: HashMap::new(),
            host_routes: HostRoutes::default(),
            memory: memory.clone(),
        }
    }

    /// Where the tables have their memory.
    #[must_use]
    pub const fn memory(&self) -> &Memory {
        &self.memory
    }

    /// Lets the BPF programs that read the tables decide by the state as it is now.
    pub fn write_engines(&self) {
        self.write_engines_with(0);
    }

    /// As [`Tables::write_engines`], with the generation of the rules.
    pub(crate) fn write_engines_with(&self, rules: u64) {
        if self.memory.is_lent() {
            self.epochs.wake_programs();
            self.engines.write(&self.state, rules);
        }
    }

    /// Whether rules wait for room in the memory of the BPF programs.
    pub(crate) fn have_waiting_rules(&self) -> bool {
        self.memory.is_lent() && self.engines.are_waiting()
    }

    /// Lets the BPF programs find the elements of the rules' live sets, which takes some 10 ms with many. So call it
    /// before workers have these tables.
    pub fn fill_sets(&self) {
        if let Some(filter) = self.filter.as_ref().filter(|_| self.memory.is_lent()) {
            self.engines.rules().fill(filter);
        }
    }

    /// What the BPF programs have counted by the rules that they have now, by counter; nothing if they have none.
    #[must_use]
    pub fn engine_counts(&self) -> Vec<Count> {
        self.engines.rules().counts()
    }

    /// What the BPF programs read beside FIBs and next hops.
    pub(crate) const fn engines(&self) -> &Arc<Engines> {
        &self.engines
    }

    /// Lets no BPF program decide by these tables any more: others are active.
    pub(crate) fn end_engines(&self) {
        if self.memory.is_lent() {
            self.engines.end(&self.state);
        }
    }

    /// The state as it is now, for workers.
    #[must_use]
    pub fn state(&self) -> &Arc<ForwardingState> {
        &self.state
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

    /// Adds the link of a bridge, for what the bridge hands up. Packets leave by it from any of the bridge's ports.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_bridge(
        &mut self,
        bridge: BridgeId,
        mac: [u8; 6],
        vrf: VrfId,
        mtu: u16,
    ) -> Result<LinkId, TablesError> {
        if usize::from(bridge.0) >= MOST_BRIDGES {
            return Err(TablesError::Full);
        }
        self.add_link(PortId::of_bridge(bridge), mac, vrf, mtu, Vec::new())
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
        let LinkRecord { mac, root4, root6, .. } = self.routes.links[link];
        if let Some(record) = self.ports.get_mut(usize::from(port.0)) {
            let (own_mac, entry) = (mac != record.mac, VlanEntry { link, root4, root6 });
            if record.link == parent {
                record.vlans.insert(protocol, vid, entry, own_mac);
            } else {
                let tag = InnerTag::new(parent, protocol, vid.get());
                record.vlans.insert_inner(tag, entry, own_mac);
            }
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
        self.inert_on(link, InertKey::Glean(link), Action::Glean)
    }

    /// The next hop of routes to a link by which only the kernel sends.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn kernel_exit(&mut self, link: LinkId) -> Result<NextHopId, TablesError> {
        let action = Action::Punt(PuntReason::KernelExit);
        self.inert_on(link, InertKey::KernelExit(link), action)
    }

    /// The next hop of a key with an action that needs no more than the link.
    fn inert_on(
        &mut self,
        link: LinkId,
        key: InertKey,
        action: Action,
    ) -> Result<NextHopId, TablesError> {
        if let Some(id) = self.inert.get(&key) {
            return Ok(*id);
        }
        let record = self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        let next = NextHop { link, port: record.port, ..NextHop::inert(action) };
        let id = self.push_next_hop(next)?;
        self.inert.insert(key, id);
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
}
