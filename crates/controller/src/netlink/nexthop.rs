//! Next-hop objects in the kernel's messages (`struct nhmsg`, `NHA_*`; `nh_fill_node`).

use crate::kernel::{DEAD, Hop, LINK_DOWN, Nexthop, NexthopId, ON_LINK};
use tollway_linux::netlink::attributes;

/// Length of `struct nhmsg`.
const HEADER: usize = 8;
/// Length of `struct nexthop_grp`.
const MEMBER: usize = 8;

/// `NHA_*`.
mod nha {
    pub(super) const ID: u16 = 1;
    pub(super) const GROUP: u16 = 2;
    pub(super) const GROUP_TYPE: u16 = 3;
    pub(super) const BLACKHOLE: u16 = 4;
    pub(super) const OIF: u16 = 5;
    pub(super) const GATEWAY: u16 = 6;
    pub(super) const ENCAP_TYPE: u16 = 7;
    pub(super) const ENCAP: u16 = 8;
    pub(super) const FDB: u16 = 11;
}

/// An object from the body of an `RTM_NEWNEXTHOP` or `RTM_DELNEXTHOP`.
pub(super) fn read(body: &[u8]) -> Option<(NexthopId, Nexthop)> {
    let [.., f0, f1, f2, f3] = *body.first_chunk::<HEADER>()?;
    let flags =
        u32::from_ne_bytes([f0, f1, f2, f3]).to_ne_bytes()[0] & (DEAD | ON_LINK | LINK_DOWN);
    let mut hop = Hop { via: None, ifindex: 0, weight: 1, flags, encap: false };
    let (mut id, mut group, mut group_type) = (None, None, 0);
    let (mut blackhole, mut fdb) = (false, false);
    for attribute in attributes(body, HEADER) {
        match attribute.kind {
            nha::ID => id = attribute.u32(),
            nha::GROUP => group = Some(members(attribute.value)),
            nha::GROUP_TYPE => group_type = attribute.u16().unwrap_or_default(),
            nha::BLACKHOLE => blackhole = true,
            nha::OIF => hop.ifindex = attribute.u32().unwrap_or_default(),
            nha::GATEWAY => hop.via = attribute.address(),
            nha::ENCAP | nha::ENCAP_TYPE => hop.encap = true,
            nha::FDB => fdb = true,
            _ => {}
        }
    }
    let nexthop = match (fdb, group, group_type) {
        (true, ..) => Nexthop::Other,
        (_, Some(members), 0 | 1) => Nexthop::Group { members, resilient: group_type == 1 },
        (_, Some(_), _) => Nexthop::Other,
        _ if blackhole => Nexthop::Blackhole,
        _ => Nexthop::Hop(hop),
    };
    Some((id?, nexthop))
}

/// Number and weight of each member. The weight has 16 bits since Linux 6.12; before, its upper byte is zero.
fn members(bytes: &[u8]) -> Vec<(NexthopId, u16)> {
    let (members, _) = bytes.as_chunks::<MEMBER>();
    let member = |[i0, i1, i2, i3, low, high, ..]: &[u8; MEMBER]| {
        let weight = u16::from_le_bytes([*low, *high]).saturating_add(1);
        (u32::from_ne_bytes([*i0, *i1, *i2, *i3]), weight)
    };
    members.iter().map(member).collect()
}
