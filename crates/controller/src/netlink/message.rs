//! Converts messages to events, and builds the requests for lists.

use super::{bridge, link, nexthop, route, rule};
use crate::event::{Change, Event, Presence};
use crate::kernel::{Family, Ifindex};
use tollway_linux::netlink::{Message, push, request};

/// `NLMSG_ERROR`, `NLMSG_DONE`, `NLMSG_OVERRUN`.
pub(super) const ERROR: u16 = 2;
pub(super) const DONE: u16 = 3;
pub(super) const OVERRUN: u16 = 4;
/// `NLM_F_DUMP_INTR`.
pub(super) const INTERRUPTED: u16 = 0x10;

/// `NLM_F_DUMP`.
const DUMP: u16 = 0x300;

/// `RTNLGRP_*`: link, tc, addresses, routes and rules of both families, netconf of both, nexthop.
pub(super) const GROUPS: [u32; 11] = [1, 4, 5, 7, 8, 9, 11, 19, 24, 25, 32];

/// `RTM_*`.
pub(super) mod rtm {
    pub(super) const NEW_LINK: u16 = 16;
    pub(super) const DEL_LINK: u16 = 17;
    pub(super) const GET_LINK: u16 = 18;
    pub(super) const NEW_ADDR: u16 = 20;
    pub(super) const DEL_ADDR: u16 = 21;
    pub(super) const GET_ADDR: u16 = 22;
    pub(super) const NEW_ROUTE: u16 = 24;
    pub(super) const DEL_ROUTE: u16 = 25;
    pub(in crate::netlink) const GET_ROUTE: u16 = 26;
    pub(super) const NEW_RULE: u16 = 32;
    pub(super) const DEL_RULE: u16 = 33;
    pub(super) const GET_RULE: u16 = 34;
    pub(super) const NEW_QDISC: u16 = 36;
    pub(super) const DEL_QDISC: u16 = 37;
    pub(super) const NEW_CLASS: u16 = 40;
    pub(super) const DEL_CLASS: u16 = 41;
    pub(super) const NEW_FILTER: u16 = 44;
    pub(super) const DEL_FILTER: u16 = 45;
    pub(super) const NEW_NETCONF: u16 = 80;
    pub(super) const NEW_CHAIN: u16 = 100;
    pub(super) const DEL_CHAIN: u16 = 101;
    pub(super) const NEW_NEXTHOP: u16 = 104;
    pub(super) const DEL_NEXTHOP: u16 = 105;
    pub(super) const GET_NEXTHOP: u16 = 106;
}

/// The events of a message; none if the message does not matter. A message about a device may also be about a
/// port of a bridge.
pub(super) fn read(message: &Message<'_>, listed: bool) -> impl Iterator<Item = Event> {
    object(message, listed).into_iter().chain(bridge_port(message))
}

/// The event of a message, except about ports of bridges.
fn object(message: &Message<'_>, listed: bool) -> Option<Event> {
    let body = message.body;
    Some(match message.kind {
        rtm::NEW_ROUTE => {
            let (key, route) = route::read(body)?;
            let change = match listed {
                true => Change::Listed,
                false => route::change(key.family(), message.flags),
            };
            Event::Route(key, route, change)
        }
        rtm::DEL_ROUTE => {
            let (key, route) = route::read(body)?;
            Event::Route(key, route, Change::Del)
        }
        rtm::NEW_LINK => {
            let (index, netdev) = link::read(body)?;
            Event::Link(index, Some(Box::new(netdev)))
        }
        rtm::DEL_LINK => Event::Link(link::read(body)?.0, None),
        rtm::NEW_ADDR => Event::Address(link::address(body)?, Presence::Here),
        rtm::DEL_ADDR => Event::Address(link::address(body)?, Presence::Gone),
        rtm::NEW_RULE => Event::Rule(rule::read(body)?, Presence::Here),
        rtm::DEL_RULE => Event::Rule(rule::read(body)?, Presence::Gone),
        rtm::NEW_NEXTHOP => {
            let (id, nexthop) = nexthop::read(body)?;
            Event::Nexthop(id, Some(nexthop))
        }
        rtm::DEL_NEXTHOP => Event::Nexthop(nexthop::read(body)?.0, None),
        rtm::NEW_NETCONF => link::netconf(body)?,
        rtm::NEW_QDISC
        | rtm::DEL_QDISC
        | rtm::NEW_CLASS
        | rtm::DEL_CLASS
        | rtm::NEW_FILTER
        | rtm::DEL_FILTER
        | rtm::NEW_CHAIN
        | rtm::DEL_CHAIN => link::traffic_control(body)?,
        _ => return None,
    })
}

/// The event about a port of a bridge.
fn bridge_port(message: &Message<'_>) -> Option<Event> {
    let body = message.body;
    match message.kind {
        rtm::NEW_LINK => {
            let (index, port) = bridge::port(body)?;
            Some(Event::BridgePort(index, Some(port)))
        }
        rtm::DEL_LINK => Some(Event::BridgePort(bridge::gone_port(body)?, None)),
        _ => None,
    }
}

/// The lists that can be requested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum List {
    Links,
    Addresses,
    Nexthops,
    Rules(Family),
    Routes(Family),
}

impl List {
    /// The request for the list.
    pub(super) fn request(self, sequence: u32) -> Vec<u8> {
        let (kind, body): (_, &[u8]) = match self {
            Self::Links => (rtm::GET_LINK, &link_body(0)),
            Self::Addresses => (rtm::GET_ADDR, &[0; 8]),
            Self::Nexthops => (rtm::GET_NEXTHOP, &[0; 8]),
            Self::Rules(family) => (rtm::GET_RULE, &family_first(family)),
            Self::Routes(family) => (rtm::GET_ROUTE, &family_first(family)),
        };
        request(kind, DUMP, sequence, body)
    }
}

/// The request for one device.
pub(super) fn link_request(index: Ifindex, sequence: u32) -> Vec<u8> {
    request(rtm::GET_LINK, 0, sequence, &link_body(index))
}

/// `struct rtmsg` and `struct fib_rule_hdr` begin with the family, and the rest may be zero.
pub(super) fn family_first(family: Family) -> [u8; 12] {
    let number = match family {
        Family::V4 => libc::AF_INET,
        Family::V6 => libc::AF_INET6,
    };
    let mut body = [0; 12];
    body[0] = number as u8;
    body
}

/// The body of a request for a device, or for all (0): `struct ifinfomsg`, without statistics, which the
/// kernel would add up over all processors.
pub(crate) fn link_body(index: Ifindex) -> Vec<u8> {
    /// `IFLA_EXT_MASK`, `RTEXT_FILTER_SKIP_STATS`.
    const EXT_MASK: u16 = 29;
    const SKIP_STATS: u32 = 8;
    let mut body = vec![0; 4];
    body.extend(index.to_ne_bytes());
    body.extend([0; 8]);
    push(&mut body, EXT_MASK, &SKIP_STATS.to_ne_bytes());
    body
}
