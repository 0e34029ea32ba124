//! The objects that can change.

use std::net::IpAddr;

use ipnet::IpNet;

use crate::event::Event;
use crate::kernel::{Family, Ifindex, NexthopId, RouteKey};

/// The most objects with notifications during a list: more would take too much memory, so the list is
/// abandoned.
pub(super) const MOST: usize = 500_000;

/// An object that can change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Object {
    Link(Ifindex),
    BridgePort(Ifindex),
    Address(Ifindex, IpNet, Option<IpAddr>),
    Nexthop(NexthopId),
    Rules(Family),
    Route(RouteKey),
}

impl Object {
    /// The object of an event.
    pub(super) const fn of(event: &Event) -> Option<Self> {
        Some(match event {
            Event::Link(index, _) => Self::Link(*index),
            Event::BridgePort(index, _) => Self::BridgePort(*index),
            Event::Address(address, _) => {
                Self::Address(address.ifindex, address.address, address.peer)
            }
            Event::Nexthop(id, _) => Self::Nexthop(*id),
            Event::Rule(rule, _) => Self::Rules(rule.family),
            Event::Route(key, ..) => Self::Route(*key),
            _ => return None,
        })
    }
}
