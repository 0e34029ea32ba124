//! Next-hop objects, which a million routes may share: next hops whose target changes in place.
//!
//! An object has a number of its own, which its routes keep while its target changes from one neighbour to
//! another (`replace_nexthop` in `net/ipv4/nexthop.c`). It follows the state of its neighbour.

use std::net::IpAddr;

use super::neighs::NeighRequest;
use super::{Tables, TablesError};
use crate::id::{LinkId, NextHopId};
use crate::next_hops::{Action, NextHop};
use crate::verdict::{DropReason, PuntReason};

/// The target of a next-hop object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ObjectTarget {
    /// To a neighbour, known or not.
    Neigh {
        /// The link that it is on.
        link: LinkId,
        /// Its address.
        via: IpAddr,
        /// Largest packet in bytes, if it is not the link's.
        mtu: Option<u16>,
        /// Whether its packets are IPv4, whatever the family of the address.
        is_ipv4: bool,
    },
    /// Nowhere: packets are dropped.
    Drop(DropReason),
    /// The slow path receives the packets.
    Punt(PuntReason),
}

impl Tables {
    /// Adds a next hop whose target can be changed with [`Tables::set_object`].
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn add_object(&mut self, to: ObjectTarget) -> Result<NextHopId, TablesError> {
        let id = self.push_next_hop(NextHop::inert(Action::Punt(PuntReason::NoRoute)))?;
        self.objects.insert(id, ObjectTarget::Punt(PuntReason::NoRoute));
        self.set_object(id, to)?;
        Ok(id)
    }

    /// Changes the target of a next hop of [`Tables::add_object`], for all its routes.
    ///
    /// # Errors
    /// See [`TablesError`]; the target is then unchanged.
    pub fn set_object(&mut self, id: NextHopId, to: ObjectTarget) -> Result<(), TablesError> {
        let before = *self.objects.get(&id).ok_or(TablesError::Unknown)?;
        if before == to {
            return Ok(());
        }
        let next = match to {
            ObjectTarget::Neigh { link, via, mtu, is_ipv4 } => {
                let request = self.neigh_request(link, mtu.unwrap_or(u16::MAX), is_ipv4)?;
                self.neigh_next_hop(link, via, request)?
            }
            ObjectTarget::Drop(reason) => NextHop::inert(Action::Drop(reason)),
            ObjectTarget::Punt(reason) => NextHop::inert(Action::Punt(reason)),
        };
        self.change(id, &next)?;
        if let ObjectTarget::Neigh { link, via, .. } = before {
            self.unfollow_neigh(link, via, id);
        }
        if let ObjectTarget::Neigh { link, via, mtu, is_ipv4 } = to {
            let request = self.neigh_request(link, mtu.unwrap_or(u16::MAX), is_ipv4)?;
            self.follow_neigh(link, via, request, id);
        }
        self.objects.insert(id, to);
        Ok(())
    }

    /// The current next hop for a requested neighbour; the tables keep the neighbour permanently.
    pub(super) fn neigh_next_hop(
        &mut self,
        link: LinkId,
        via: IpAddr,
        request: NeighRequest,
    ) -> Result<NextHop, TablesError> {
        let plain = self.neigh(link, via)?;
        let next = self.next_hop(plain);
        let mac = if next.action.has_neighbour() { next.header_mac() } else { None };
        Ok(self.with_mac(next, request, mac))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAC: [u8; 6] = [2, 0, 0, 0, 0, 9];
    const OTHER: [u8; 6] = [2, 0, 0, 0, 0, 10];

    #[test]
    fn an_object_follows_its_neighbour_and_no_other() {
        let mut tables = Tables::new();
        let vrf = tables.add_vrf().unwrap();
        let (_, link) = tables.add_port([2, 0, 0, 0, 0, 1], vrf, 1500).unwrap();
        let vias = [IpAddr::from([10, 0, 0, 7]), "fe80::7".parse().unwrap()];
        let to = |via, mtu| ObjectTarget::Neigh { link, via, mtu, is_ipv4: true };
        tables.set_neigh(link, vias[1], Some(OTHER)).unwrap();
        let id = tables.add_object(to(vias[0], None)).unwrap();
        let seen = |tables: &Tables| {
            let next = tables.next_hop(id);
            let ethertype = [next.header[22], next.header[23]];
            (next.action, next.mtu, next.header_mac(), ethertype)
        };
        assert_eq!(seen(&tables).0, Action::Resolve);
        tables.set_neigh(link, vias[0], Some(MAC)).unwrap();
        assert_eq!(seen(&tables), (Action::Forward, 1500, Some(MAC), [8, 0]));
        tables.set_object(id, to(vias[1], Some(1400))).unwrap();
        assert_eq!(seen(&tables), (Action::Forward, 1400, Some(OTHER), [8, 0]));
        tables.set_neigh(link, vias[0], Some([4; 6])).unwrap();
        assert_eq!(seen(&tables).2, Some(OTHER));
        tables.set_neigh(link, vias[1], None).unwrap();
        assert_eq!(seen(&tables).0, Action::Resolve);
        tables.set_object(id, ObjectTarget::Drop(DropReason::Blackhole)).unwrap();
        tables.set_neigh(link, vias[1], Some(MAC)).unwrap();
        assert_eq!(seen(&tables).0, Action::Drop(DropReason::Blackhole));
        let other = tables.neigh(link, vias[0]).unwrap();
        assert_eq!(tables.set_object(other, to(vias[1], None)), Err(TablesError::Unknown));
    }

    #[test]
    fn an_object_has_the_links_mtu_for_ipv6() {
        let mut tables = Tables::new();
        let vrf = tables.add_vrf().unwrap();
        let (_, link) = tables.add_port([2, 0, 0, 0, 0, 1], vrf, 1500).unwrap();
        let via: IpAddr = "fe80::7".parse().unwrap();
        let id = tables
            .add_object(ObjectTarget::Neigh { link, via, mtu: None, is_ipv4: false })
            .unwrap();
        tables.set_neigh(link, via, Some(MAC)).unwrap();
        for mtu in [1400, 1300, 1500] {
            tables.set_mtu6(link, mtu).unwrap();
            assert_eq!(tables.next_hop(id).mtu, mtu);
        }
    }
}
