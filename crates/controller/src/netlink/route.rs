//! Routes in the kernel's messages (`struct rtmsg`, `RTA_*`; `fib_dump_info`, `rt6_fill_node`).
//!
//! A million of them may come at once. So they are read in place, and only several next hops need an
//! allocation.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use ipnet::IpNet;

use crate::event::{Change, Place};
use crate::kernel::{
    DEAD, Family, Hop, Hops, LINK_DOWN, NexthopId, ON_LINK, Route, RouteKey, RouteKind, TableId,
};
use tollway_linux::netlink::{Attribute, address, attributes, find, record};

/// Length of `struct rtmsg`.
const HEADER: usize = 12;
/// `RTM_F_CLONED`: from a cache, not configured.
pub(super) const CLONED: u32 = 0x200;
/// The unit of times in messages: parts of a second (`USER_HZ`).
const USER_HZ: u32 = 100;
/// The flags of a next hop that are kept.
const HOP_FLAGS: u8 = DEAD | ON_LINK | LINK_DOWN;
/// `RTAX_LOCK` and `RTAX_MTU`, among the metrics.
const LOCK: u16 = 1;
const MTU: u16 = 2;

/// `RTA_*`.
pub(super) mod rta {
    pub(in super::super) const DST: u16 = 1;
    pub(in super::super) const SRC: u16 = 2;
    pub(in super::super) const OIF: u16 = 4;
    pub(super) const GATEWAY: u16 = 5;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const PREFSRC: u16 = 7;
    pub(super) const METRICS: u16 = 8;
    pub(super) const MULTIPATH: u16 = 9;
    pub(super) const CACHEINFO: u16 = 12;
    pub(super) const TABLE: u16 = 15;
    pub(super) const VIA: u16 = 18;
    pub(super) const PREF: u16 = 20;
    pub(super) const ENCAP_TYPE: u16 = 21;
    pub(super) const ENCAP: u16 = 22;
    pub(super) const PAD: u16 = 24;
    pub(super) const NH_ID: u16 = 30;
}

/// The attributes of a message about a route, before it is known which of them matter.
#[derive(Default)]
struct RouteParts {
    dst: Option<IpAddr>,
    table: TableId,
    priority: u32,
    prefsrc: Option<IpAddr>,
    mtu: u32,
    /// The MTU also holds for forwarded packets (`ip_mtu_locked`).
    is_locked: bool,
    hop: HopParts,
    many: Option<Box<[Hop]>>,
    object: Option<NexthopId>,
    unsupported: bool,
}

#[derive(Default)]
struct HopParts {
    via: Option<IpAddr>,
    ifindex: u32,
    encap: bool,
    /// There are unknown attributes outside next hops.
    unsupported: bool,
}

/// The route in the body of an `RTM_NEWROUTE` or `RTM_DELROUTE`; none for a cached one, or for families
/// other than IPv4 and IPv6.
pub(super) fn read(body: &[u8]) -> Option<(RouteKey, Route)> {
    let [family, dst_len, src_len, tos, table, protocol, _scope, kind, flags @ ..] =
        *body.first_chunk::<HEADER>()?;
    let flags = u32::from_ne_bytes(flags);
    let unspecified = match i32::from(family) {
        libc::AF_INET => IpAddr::V4(Ipv4Addr::UNSPECIFIED),
        libc::AF_INET6 => IpAddr::V6(Ipv6Addr::UNSPECIFIED),
        _ => return None,
    };
    if flags & CLONED != 0 {
        return None;
    }
    let mut parts =
        RouteParts { table: table.into(), unsupported: src_len > 0, ..RouteParts::default() };
    attributes(body, HEADER).for_each(|attribute| parts.read(attribute));
    let dst = IpNet::new(parts.dst.unwrap_or(unspecified), dst_len).ok()?;
    // IPv4 has no source prefix, and IPv6 no type of service.
    let tos = if src_len > 0 { RouteKey::OF_SOURCES } else { tos };
    let key = RouteKey { table: parts.table, dst, tos, priority: parts.priority };
    let kind = kind_of(kind);
    let unsupported = parts.unsupported || parts.is_locked;
    let (protocol, prefsrc, mtu) = (protocol, parts.prefsrc, parts.mtu);
    let hops = parts.hops(kind, flags.to_ne_bytes()[0]);
    Some((key, Route { kind, hops, protocol, prefsrc, mtu, unsupported }))
}

/// The destination of an exception whose MTU is locked, and how long it holds; none for other routes.
pub(super) fn locked(body: &[u8]) -> Option<(IpAddr, Duration)> {
    let flags = u32::from_ne_bytes(*body.get(8..HEADER)?.first_chunk()?);
    if flags & CLONED == 0 {
        return None;
    }
    let mut parts = RouteParts::default();
    attributes(body, HEADER).for_each(|attribute| parts.read(attribute));
    let ticks = find(body, HEADER, rta::CACHEINFO)?.value.get(8..12)?.first_chunk()?;
    let left = Duration::from_secs(1) * u32::from_ne_bytes(*ticks) / USER_HZ;
    parts.is_locked.then_some((parts.dst?, left))
}

/// The change of a route, by the message's flags: `nlflags` in `fib_table_insert` and
/// `fib6_add_rt2node`. In IPv6 no new route comes before existing ones.
pub(super) const fn change(family: Family, flags: u16) -> Change {
    const REPLACE: u16 = 0x100;
    const EXCL: u16 = 0x200;
    const CREATE: u16 = 0x400;
    const APPEND: u16 = 0x800;
    Change::Add(if flags & EXCL != 0 {
        Place::Only
    } else if flags & REPLACE != 0 {
        Place::Instead
    } else if matches!(family, Family::V4) && flags & (APPEND | CREATE) == CREATE {
        Place::First
    } else {
        Place::Last
    })
}

impl RouteParts {
    fn read(&mut self, attribute: Attribute<'_>) {
        let number = attribute.u32().unwrap_or_default();
        match attribute.kind {
            rta::DST => self.dst = attribute.address(),
            rta::TABLE => self.table = number,
            rta::PRIORITY => self.priority = number,
            rta::PREFSRC => self.prefsrc = attribute.address(),
            rta::METRICS => attribute.nested().for_each(|metric| self.metric(metric)),
            rta::MULTIPATH => self.many = Some(self.hops_of(attribute.value)),
            rta::NH_ID => self.object = Some(number),
            // A lifetime: `rta_expires` of `struct rta_cacheinfo`.
            rta::CACHEINFO => {
                self.unsupported |= attribute.value.get(8..12).is_some_and(|time| time != [0; 4])
            }
            // Any preference but medium makes a difference among routes of one metric; before Linux 6.15 among
            // siblings, too (`fib6_select_path`).
            rta::PREF => self.unsupported |= attribute.u8() != Some(0),
            _ => {
                self.hop.read(attribute);
                self.unsupported |= std::mem::take(&mut self.hop.unsupported);
            }
        }
    }

    fn metric(&mut self, metric: Attribute<'_>) {
        match metric.kind {
            MTU => self.mtu = metric.u32().unwrap_or_default(),
            LOCK => self.is_locked = metric.u32().is_some_and(|locked| locked & (1 << MTU) != 0),
            _ => {}
        }
    }

    /// The next hops of `RTA_MULTIPATH`: a `struct rtnexthop` each, and its attributes.
    fn hops_of(&mut self, mut bytes: &[u8]) -> Box<[Hop]> {
        const LEN: usize = 8;
        let mut hops = Vec::new();
        while let Some((one, rest)) = record(bytes, LEN) {
            bytes = rest;
            let Some([_, _, flags, weight, index @ ..]) = one.first_chunk::<LEN>() else { break };
            let ifindex = u32::from_ne_bytes(*index);
            let mut parts = HopParts { ifindex, ..HopParts::default() };
            attributes(one, LEN).for_each(|attribute| parts.read(attribute));
            self.unsupported |= parts.unsupported;
            hops.push(parts.hop(u16::from(*weight) + 1, *flags));
        }
        hops.into()
    }

    fn hops(self, kind: RouteKind, flags: u8) -> Hops {
        use RouteKind::{Blackhole, Prohibit, Throw, Unreachable};
        if let Some(id) = self.object {
            return Hops::Object(id);
        }
        match self.many.as_deref() {
            // IPv6 names a device even if the route sends nothing.
            _ if matches!(kind, Blackhole | Prohibit | Throw | Unreachable) => Hops::None,
            Some([hop]) => Hops::One(*hop),
            Some(_) => self.many.map_or(Hops::None, Hops::Many),
            None if self.hop.ifindex == 0 && self.hop.via.is_none() => Hops::None,
            None => Hops::One(self.hop.hop(1, flags)),
        }
    }
}

impl HopParts {
    fn read(&mut self, attribute: Attribute<'_>) {
        match attribute.kind {
            rta::OIF => self.ifindex = attribute.u32().unwrap_or_default(),
            rta::GATEWAY => self.via = attribute.address(),
            // A gateway of another family: its number, then its address.
            rta::VIA => self.via = attribute.value.get(2..).and_then(address),
            rta::ENCAP | rta::ENCAP_TYPE => self.encap = true,
            rta::PAD => {}
            _ => self.unsupported = true,
        }
    }

    fn hop(&self, weight: u16, flags: u8) -> Hop {
        let Self { via, ifindex, encap, .. } = *self;
        Hop { via, ifindex, weight, flags: flags & HOP_FLAGS, encap }
    }
}

/// `RTN_*`.
const fn kind_of(number: u8) -> RouteKind {
    match number {
        1 => RouteKind::Unicast,
        2 => RouteKind::Local,
        3 => RouteKind::Broadcast,
        4 => RouteKind::Anycast,
        5 => RouteKind::Multicast,
        6 => RouteKind::Blackhole,
        7 => RouteKind::Unreachable,
        8 => RouteKind::Prohibit,
        9 => RouteKind::Throw,
        other => RouteKind::Other(other),
    }
}
