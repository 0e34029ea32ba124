//! Neighbours and the next hops that lead to them. Each neighbour has one, and more for routes with
//! requirements of their own (an MTU, IPv4 through an IPv6 neighbour). All of them follow the
//! neighbour's state. On a layer-3 device, neighbours have no address, and packets are forwarded to them at once.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::{Tables, TablesError};
use crate::epoch::{Epochs, Spare};
use crate::id::{LinkId, NextHopId};
use crate::next_hops::{Action, NextHop};

/// The neighbours that are known or needed.
#[derive(Debug)]
pub(super) struct Neighs {
    known: HashMap<(LinkId, IpAddr), NeighRecord>,
    /// Next hops of forgotten neighbours, for reuse by new ones.
    spare: Spare<NextHopId>,
}

impl Neighs {
    pub(super) fn new(epochs: &Arc<Epochs>) -> Self {
        Self { known: HashMap::new(), spare: Spare::new(epochs) }
    }
}

/// The next hops that lead to a neighbour.
#[derive(Clone, Debug)]
struct NeighRecord {
    next: NextHopId,
    /// Whether a caller has the number and may use it in routes; it is then not reused.
    pinned: bool,
    /// Next hops of routes with requirements of their own.
    requested: Vec<(NeighRequest, NextHopId)>,
    /// Next-hop objects whose target this neighbour is now (`objects.rs`).
    followers: Vec<(NeighRequest, NextHopId)>,
}

/// A route's requirements on the path to its neighbour.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct NeighRequest {
    /// Largest packet in bytes if the device accepts larger ones; otherwise the greatest number.
    mtu: u16,
    /// Whether its packets are IPv4, whatever the family of the neighbour's address.
    is_ipv4: bool,
}

impl NeighRequest {
    /// The request of routes without requirements of their own.
    const fn usual(address: IpAddr) -> Self {
        Self { mtu: u16::MAX, is_ipv4: address.is_ipv4() }
    }
}

impl Tables {
    /// The next hop that leads to a neighbour, known or not; it keeps its number for good.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn neigh(&mut self, link: LinkId, address: IpAddr) -> Result<NextHopId, TablesError> {
        let id = self.neigh_record(link, address)?;
        if let Some(record) = self.neighs.known.get_mut(&(link, address)) {
            record.pinned = true;
        }
        Ok(id)
    }

    /// Like [`Tables::neigh`], for routes with an MTU of their own (`RTAX_MTU`), in bytes. A value
    /// above the link's MTU counts as the link's: packets between the two take the kernel path, like
    /// all that do not fit.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn neigh_mtu(
        &mut self,
        link: LinkId,
        address: IpAddr,
        mtu: u16,
    ) -> Result<NextHopId, TablesError> {
        let request = self.neigh_request(link, mtu, address.is_ipv4())?;
        self.requested_neigh(link, address, request)
    }

    /// Like [`Tables::neigh`], for IPv4 routes through a neighbour with an IPv6 address (RFC 8950;
    /// `RTA_VIA`), with an MTU of their own if they have one.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn neigh4_by6(
        &mut self,
        link: LinkId,
        address: Ipv6Addr,
        mtu: Option<u16>,
    ) -> Result<NextHopId, TablesError> {
        let request = self.neigh_request(link, mtu.unwrap_or(u16::MAX), true)?;
        self.requested_neigh(link, address.into(), request)
    }

    pub(super) fn neigh_request(
        &self,
        link: LinkId,
        mtu: u16,
        is_ipv4: bool,
    ) -> Result<NeighRequest, TablesError> {
        let record = self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        // The IPv6 MTU may change and never exceeds this one.
        let is_less = mtu < record.mtu;
        Ok(NeighRequest { mtu: if is_less { mtu } else { u16::MAX }, is_ipv4 })
    }

    fn requested_neigh(
        &mut self,
        link: LinkId,
        address: IpAddr,
        request: NeighRequest,
    ) -> Result<NextHopId, TablesError> {
        let plain = self.neigh(link, address)?;
        if request == NeighRequest::usual(address) {
            return Ok(plain);
        }
        let requested = self.neighs.known.get(&(link, address)).map(|record| &record.requested);
        if let Some((_, id)) = requested.into_iter().flatten().find(|(known, _)| *known == request)
        {
            return Ok(*id);
        }
        let next = self.neigh_next_hop(link, address, request)?;
        let id = self.push_next_hop(next)?;
        if let Some(record) = self.neighs.known.get_mut(&(link, address)) {
            record.requested.push((request, id));
        }
        Ok(id)
    }

    /// The next hop that leads to a neighbour, if there is one.
    #[must_use]
    pub fn find_neigh(&self, link: LinkId, address: IpAddr) -> Option<NextHopId> {
        self.neighs.known.get(&(link, address)).map(|record| record.next)
    }

    /// All next hops that lead to a neighbour: routes with requirements of their own, and next-hop objects, have others
    /// than [`Tables::find_neigh`] returns.
    pub fn next_hops_to(&self, link: LinkId, address: IpAddr) -> impl Iterator<Item = NextHopId> {
        let record = self.neighs.known.get(&(link, address));
        record.into_iter().flat_map(|record| {
            let others = record.requested.iter().chain(&record.followers);
            std::iter::once(record.next).chain(others.map(|(_, id)| *id))
        })
    }

    /// Every neighbour that is known or needed, with the next hop that leads to it; in no order.
    pub fn neighs(&self) -> impl Iterator<Item = (LinkId, IpAddr, NextHopId)> {
        self.neighs.known.iter().map(|(&(link, address), record)| (link, address, record.next))
    }

    fn neigh_record(&mut self, link: LinkId, address: IpAddr) -> Result<NextHopId, TablesError> {
        if let Some(id) = self.find_neigh(link, address) {
            return Ok(id);
        }
        let record = self.routes.links.get(link).ok_or(TablesError::Unknown)?;
        let inert = NextHop::inert(Action::Resolve);
        // In the place of any neighbour of a layer-3 device.
        let neigh = Some(address).filter(|address| !address.is_unspecified());
        let next = NextHop { link, port: record.port, neigh, ..inert };
        let next = self.with_mac(next, NeighRequest::usual(address), None);
        let id = match self.neighs.spare.pop() {
            Some(id) => {
                self.change(id, &next)?;
                id
            }
            None => self.push_next_hop(next)?,
        };
        let record =
            NeighRecord { next: id, pinned: false, requested: Vec::new(), followers: Vec::new() };
        self.neighs.known.insert((link, address), record);
        Ok(id)
    }

    pub(super) fn change(&self, id: NextHopId, next: &NextHop) -> Result<(), TablesError> {
        // A neighbour that is only confirmed has not changed.
        if self.routes.next_hops.get(id) == *next {
            return Ok(());
        }
        if self.routes.next_hops.set(id, next) { Ok(()) } else { Err(TablesError::Full) }
    }

    /// Sets a neighbour's address; none means that it is not known (any more).
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

    /// Like [`Tables::set_neigh`], for a learned address: [`Tables::forget_neigh`] frees its next hop
    /// for reuse, unless [`Tables::neigh`] has returned it.
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
        self.change(id, &self.with_mac(self.next_hop(id), NeighRequest::usual(address), mac))?;
        self.change_others(link, address, mac)?;
        Ok(id)
    }

    fn change_others(
        &self,
        link: LinkId,
        address: IpAddr,
        mac: Option<[u8; 6]>,
    ) -> Result<(), TablesError> {
        let record = self.neighs.known.get(&(link, address));
        let others =
            record.iter().flat_map(|record| record.requested.iter().chain(&record.followers));
        for (request, id) in others {
            self.change(*id, &self.with_mac(self.next_hop(*id), *request, mac))?;
        }
        Ok(())
    }

    /// Makes a next hop follow a neighbour from now on.
    pub(super) fn follow_neigh(
        &mut self,
        link: LinkId,
        address: IpAddr,
        request: NeighRequest,
        id: NextHopId,
    ) {
        if let Some(record) = self.neighs.known.get_mut(&(link, address)) {
            record.followers.push((request, id));
        }
    }

    /// Makes a next hop stop following a neighbour.
    pub(super) fn unfollow_neigh(&mut self, link: LinkId, address: IpAddr, id: NextHopId) {
        if let Some(record) = self.neighs.known.get_mut(&(link, address)) {
            record.followers.retain(|(_, follower)| *follower != id);
        }
    }

    /// A next hop with a neighbour's MAC address, or none.
    pub(super) fn with_mac(
        &self,
        mut next: NextHop,
        request: NeighRequest,
        mac: Option<[u8; 6]>,
    ) -> NextHop {
        let link = self.link(next.link);
        let most = if request.is_ipv4 { link.mtu } else { link.mtu6 };
        let (header, header_len) = self.header(next.link, mac.unwrap_or_default(), request.is_ipv4);
        (next.header, next.header_len) = (header, header_len);
        (next.action, next.mtu) = if mac.is_some() || link.is_layer3() {
            let is_bridged = link.port.bridge().is_some();
            let action = if is_bridged { Action::Bridge } else { Action::Forward };
            (action, request.mtu.min(most))
        } else {
            (Action::Resolve, 0)
        };
        next
    }

    /// Updates the IPv6 neighbours of a link to its MTU.
    pub(super) fn renew_neighs6(&mut self, link: LinkId) -> Result<(), TablesError> {
        let is_there = |(own, address): &&(LinkId, IpAddr)| *own == link && address.is_ipv6();
        let neighs: Vec<_> = self.neighs.known.keys().filter(is_there).copied().collect();
        for (link, address) in neighs {
            let next = self.find_neigh(link, address).map(|id| self.next_hop(id));
            if let Some(next) = next.filter(|next| next.action.has_neighbour()) {
                self.learn_neigh(link, address, next.header_mac())?;
            }
        }
        Ok(())
    }

    /// Forgets a neighbour's address; no route may still use the next hop of [`Tables::learn_neigh`]. False if memory
    /// for the change waits for readers: the neighbour then keeps its next hop.
    pub fn forget_neigh(&mut self, link: LinkId, address: IpAddr) -> bool {
        let Some(record) = self.neighs.known.get(&(link, address)) else { return true };
        let (next, pinned) = (record.next, record.pinned);
        let inert = NextHop { action: Action::Resolve, mtu: 0, ..self.next_hop(next) };
        let is_changed = self.change(next, &inert).is_ok();
        if !is_changed || self.change_others(link, address, None).is_err() {
            return false;
        }
        if !pinned {
            self.neighs.known.remove(&(link, address));
            self.neighs.spare.push(next);
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 10];

    fn tables() -> (Tables, LinkId) {
        let mut tables = Tables::new();
        let vrf = tables.add_vrf().unwrap();
        let (_, link) = tables.add_port([2, 0, 0, 0, 0, 1], vrf, 1500).unwrap();
        (tables, link)
    }

    /// A next hop's action, the MTU, and the last bytes of its header: station and ethertype.
    fn shown(tables: &Tables, id: NextHopId) -> (Action, u16, [u8; 6], u16) {
        let next = tables.next_hop(id);
        let header = &next.header[next.header.len() - usize::from(next.header_len)..];
        let mut mac = [0; 6];
        mac.copy_from_slice(&header[..6]);
        (next.action, next.mtu, mac, u16::from_be_bytes([header[12], header[13]]))
    }

    #[test]
    fn neighbours_on_a_layer_3_device_are_always_known() {
        let mut tables = Tables::new();
        let vrf = tables.add_vrf().unwrap();
        let (_, link) = tables.add_port([0; 6], vrf, 1420).unwrap();
        for (address, neigh) in [([10, 0, 0, 7], true), ([0; 4], false)] {
            let address = IpAddr::from(address);
            let ids = [tables.neigh(link, address), tables.neigh_mtu(link, address, 1300)];
            for change in [Some(Some(MAC)), Some(None), None] {
                for (id, mtu) in ids.into_iter().zip([1420, 1300]) {
                    let next = tables.next_hop(id.unwrap());
                    let shown = (next.action, next.mtu, next.header_len, next.neigh.is_some());
                    assert_eq!(shown, (Action::Forward, mtu, 0, neigh), "{address}");
                }
                if let Some(mac) = change {
                    tables.learn_neigh(link, address, mac).unwrap();
                }
            }
        }
        tables.set_mtu6(link, 1280).unwrap();
        let id = tables.neigh(link, "fe80::7".parse().unwrap()).unwrap();
        assert_eq!((tables.next_hop(id).mtu, tables.next_hop(id).header_len), (1280, 0));
        tables.set_mtu6(link, 1400).unwrap();
        assert_eq!(tables.next_hop(id).mtu, 1400);
    }

    #[test]
    fn requested_next_hops_follow_their_neighbour() {
        let (mut tables, link) = tables();
        let (v4, v6): (IpAddr, Ipv6Addr) = ([10, 0, 0, 7].into(), "fe80::7".parse().unwrap());
        let before = tables.neigh_mtu(link, v4, 1400).unwrap();
        assert_eq!(tables.next_hop(before).action, Action::Resolve);
        let plain = tables.set_neigh(link, v4, Some(MAC)).unwrap();
        let after = tables.neigh_mtu(link, v4, 1300).unwrap();
        let by6 = tables.neigh4_by6(link, v6, None).unwrap();
        let small = tables.neigh4_by6(link, v6, Some(1280)).unwrap();
        tables.set_neigh(link, v6.into(), Some(OTHER)).unwrap();
        for mac in [MAC, OTHER, MAC] {
            tables.set_neigh(link, v4, Some(mac)).unwrap();
            assert_eq!(shown(&tables, plain), (Action::Forward, 1500, mac, 0x0800));
            assert_eq!(shown(&tables, before), (Action::Forward, 1400, mac, 0x0800));
            assert_eq!(shown(&tables, after), (Action::Forward, 1300, mac, 0x0800));
        }
        assert_eq!(shown(&tables, by6), (Action::Forward, 1500, OTHER, 0x0800));
        assert_eq!(shown(&tables, small), (Action::Forward, 1280, OTHER, 0x0800));
        let own6 = tables.neigh(link, v6.into()).unwrap();
        assert_eq!(shown(&tables, own6), (Action::Forward, 1500, OTHER, 0x86dd));
        tables.set_neigh(link, v4, None).unwrap();
        tables.forget_neigh(link, v6.into());
        for id in [plain, before, after, by6, small, own6] {
            assert_eq!((tables.next_hop(id).action, tables.next_hop(id).mtu), (Action::Resolve, 0));
        }
    }

    #[test]
    fn equal_requests_share_a_number_and_needless_ones_have_none() {
        let (mut tables, link) = tables();
        let via: IpAddr = [10, 0, 0, 7].into();
        let id = tables.neigh_mtu(link, via, 1400).unwrap();
        assert_eq!(tables.neigh_mtu(link, via, 1400), Ok(id));
        let plain = tables.neigh(link, via).unwrap();
        assert_ne!(plain, id);
        for mtu in [1500, 1501, u16::MAX] {
            assert_eq!(tables.neigh_mtu(link, via, mtu), Ok(plain));
        }
        let nowhere = LinkId(7);
        assert_eq!(tables.neigh_mtu(nowhere, via, 1400), Err(TablesError::Unknown));
    }

    #[test]
    fn ipv6_has_the_links_mtu_for_ipv6() {
        let (mut tables, link) = tables();
        tables.set_mtu6(link, 1400).unwrap();
        let v6: Ipv6Addr = "fe80::7".parse().unwrap();
        let plain = tables.set_neigh(link, v6.into(), Some(MAC)).unwrap();
        let by6 = tables.neigh4_by6(link, v6, None).unwrap();
        assert_eq!(shown(&tables, plain), (Action::Forward, 1400, MAC, 0x86dd));
        assert_eq!(shown(&tables, by6), (Action::Forward, 1500, MAC, 0x0800));
        let less = tables.neigh_mtu(link, v6.into(), 1450).unwrap();
        assert_eq!(shown(&tables, less), (Action::Forward, 1400, MAC, 0x86dd));
        // Leads that already point there follow.
        tables.set_mtu6(link, 1300).unwrap();
        assert_eq!(shown(&tables, plain), (Action::Forward, 1300, MAC, 0x86dd));
        tables.set_mtu6(link, 1500).unwrap();
        assert_eq!(shown(&tables, less), (Action::Forward, 1450, MAC, 0x86dd));
    }
}
