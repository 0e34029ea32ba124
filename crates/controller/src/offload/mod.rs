//! The offload: which traffic takes the fast path and which the kernel path, and why.
//!
//! The rule is never to be wrong, only slower. Traffic takes the kernel path if the router would not handle
//! it exactly as the kernel is configured to, or if in doubt. [`Offload::of`] derives the offload from known
//! [`Facts`] without any query, for each link and family, and for arriving and leaving packets apart. A
//! packet takes the fast path under three conditions. Arriving packets are fast on its ingress link. Leaving
//! packets are fast on its egress link. Nothing in [`Offload::parts`] concerns it.
//!
//! The offload does not list traffic that always takes the kernel path: packets to the host, ARP
//! and neighbour discovery, multicast, packets with options, errors to send.
//!
//! Limits: Tollway does not see what NetLabel is configured to do without SELinux's `always_check_network`.
//! It does not see netfilter's BPF programs if the kernel neither lists hooks ([`Hook`]) nor has BTF.

mod bridge;
mod firewall;
mod general;
mod idle;
mod link;
mod live;
mod parts;
mod peers;
mod probe;
mod reason;
mod routes;
mod snapshot;
#[cfg(test)]
mod tests;
mod traffic;

use std::collections::BTreeMap;

use super::kernel::{Family, Ifindex, Kernel};
use super::sysctl::Sysctls;
use tollway_firewall::ir;
use tollway_model::Engine;

pub use bridge::{Bridged, BridgedPackets};
pub use live::Live;
pub use parts::{Note, Part};
pub use probe::{
    Checksums, Device, ForeignUpper, Hook, Legacy, Probes, QueryResult, QuickPoll, Tags, Unknown,
    Watch, Xfrm,
};
pub use reason::{BridgeWork, Reason};
pub use routes::RouteTally;
pub use snapshot::{KernelSnapshot, SnapshotError};
pub use traffic::{Counted, Other, Shares, Traffic};

/// A value for each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// The value for IPv4.
    pub v4: T,
    /// The value for IPv6.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// The value for a family.
    #[must_use]
    pub const fn of(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// The value for a family, mutable.
    pub const fn of_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// The values that a function returns for each family.
    #[must_use]
    pub fn each(mut of: impl FnMut(Family) -> T) -> Self {
        Self { v4: of(Family::V4), v6: of(Family::V6) }
    }
}

/// What the offload is derived from.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The devices that are Tollway's ports, and what decides about their packets.
    pub ports: &'a [(Ifindex, Engine)],
    /// Devices, rules and next hops.
    pub kernel: &'a Kernel,
    /// Sysctls of the devices and of their VRFs.
    pub sysctls: &'a Sysctls,
    /// Results of other queries about the devices.
    pub probes: &'a Probes,
    /// The counts of routes.
    pub routes: &'a RouteTally,
    /// The rules of nftables.
    pub firewall: &'a Firewall,
    /// The largest packet that a buffer has room for, in bytes.
    pub most_mtu: u32,
    /// The same for ports that have room for less, as they are opened.
    pub rooms: &'a BTreeMap<Ifindex, u32>,
    /// The state of routes with several next hops.
    pub spread: Spread,
}

/// The state of routes with several next hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// There are some.
    pub groups: PerFamily<bool>,
    /// Setting the seed of the kernel's hash failed.
    pub seed_refused: bool,
}

/// The rules of nftables, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Firewall {
    /// They are unknown, for this reason.
    Unread(String),
    /// They are known.
    Read(Rules),
}

/// The rules of nftables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// The number of rules that the router evaluates for packets, whatever connection they belong to.
    pub compiled: usize,
    /// The number of rules that it evaluates for established connections.
    pub compiled_for_connections: usize,
    /// Rules whose packets take the kernel path, of one kind of packets or both.
    pub kernel: Vec<KernelRule>,
    /// Chains at the hooks of devices: the hook and the name.
    pub at_devices: Vec<(ir::Hook, String)>,
    /// The rule, in words, that enables tracking of connections whose state forwarded packets may depend on.
    pub tracking: PerFamily<Option<String>>,
    /// Whether no such rule keeps Tollway from forwarding connections that the kernel knows to be established.
    pub spares_established: PerFamily<bool>,
    /// The rule that enables reassembly of fragments, even one for the host's own packets only.
    pub fragments: PerFamily<Option<String>>,
    /// Why everything of a family takes the kernel path.
    pub whole: PerFamily<Vec<String>>,
    /// Some rules are about fields of Ethernet's header.
    pub of_ethernet: bool,
    /// Whether there is a chain for frames of bridges, or at a device.
    pub of_frames: bool,
    /// Whether forwarded packets of a family come to a chain.
    pub of_forwarded: PerFamily<bool>,
}

/// A rule of nftables whose packets take the kernel path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KernelRule {
    /// The rule, and its chain.
    pub rule: String,
    /// The families of the chain.
    pub families: PerFamily<bool>,
    /// Why, where the router evaluates rules for single packets: where the kernel tracks no connections.
    pub of_packets: Option<String>,
    /// Why, where it evaluates them for established connections.
    pub of_connections: Option<String>,
}

/// One of the two paths that the offload distinguishes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PathKind {
    /// The fast path: XDP and user path.
    Fast,
    /// The kernel path.
    Kernel,
}

/// A link with its offload.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The device.
    pub ifindex: Ifindex,
    /// Its name.
    pub name: String,
    /// The port that it is, or that it is on. Or a bridge whose ports are Tollway's: its frames arrive by any of them.
    pub port: Ifindex,
    /// It is on a bridge, or is one.
    pub is_on_bridge: bool,
    /// The VRF that it is in.
    pub vrf: Option<String>,
    /// The link and all devices below it are up.
    pub up: bool,
    /// It, or a device below it, is new: no query covers it yet, so what is fast there is not known.
    pub is_new: bool,
    /// Why arriving packets take the kernel path, in addition to [`Offload::general`].
    pub arrives: PerFamily<Vec<Reason>>,
    /// Why leaving packets take the kernel path, likewise.
    pub leaves: PerFamily<Vec<Reason>>,
    /// Why what arrives for an XDP program and leaves by a port with a tc program takes the kernel path.
    pub tc_exits: Vec<Reason>,
    /// Why frames that a bridge forwards from the link's device, or to it, take the kernel path.
    pub frames: Vec<Reason>,
}

/// Which traffic takes which path.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Offload {
    /// Why everything takes the kernel path, for each family.
    pub general: PerFamily<Vec<Reason>>,
    /// The links: each port, followed by the VLAN devices on it; then each bridge of ports, likewise.
    pub links: Vec<Link>,
    /// The ports that belong to bridges.
    pub bridged: Vec<Bridged>,
    /// The rule for which the kernel tracks connections, where the programs forward those that are established.
    pub tracked: PerFamily<Option<String>>,
    /// Why routes with several next hops take the kernel path.
    pub groups: PerFamily<Vec<Reason>>,
    /// Why fragments take the kernel path, if they do.
    pub fragments: PerFamily<Option<String>>,
    /// Other traffic that takes the kernel path though its links are fast.
    pub parts: Vec<Part>,
    /// Other things to know, which concern no path.
    pub notes: Vec<Note>,
    /// The number of nftables rules that the router evaluates.
    pub compiled: usize,
    /// The number of routes of each family.
    pub routes: PerFamily<u64>,
}

impl Offload {
    /// Derives the offload from facts.
    #[must_use]
    pub fn of(facts: &Facts<'_>) -> Self {
        let general = PerFamily::each(|family| general::reasons(facts, family));
        let fragments = PerFamily::each(|family| {
            let rule = general::fragments(facts, family);
            rule.filter(|_| general.of(family).is_empty()).map(str::to_owned)
        });
        let tracked = PerFamily::each(|family| {
            let rule = general::tracked(facts, family);
            rule.filter(|_| general.of(family).is_empty()).map(str::to_owned)
        });
        let mut links = link::links(facts);
        let mut bridged = bridge::bridged(facts, &links);
        bridge::limit(&mut links, &bridged);
        bridge::leave_needless(&mut bridged, &links, &general);
        let groups = PerFamily::each(|family| general::groups(facts, family));
        let mut parts = parts::tracked(&tracked);
        parts.extend(parts::fragments(&fragments));
        parts.extend(parts::parts(facts, &links, &groups));
        parts.extend(parts::rules(facts, &general, &tracked));
        let notes = parts::notes(facts, &links, (&fragments, &tracked));
        let has_tracked = tracked.v4.is_some() || tracked.v6.is_some();
        let compiled = match facts.firewall {
            Firewall::Read(rules) if has_tracked => rules.compiled_for_connections,
            Firewall::Read(rules) => rules.compiled,
            Firewall::Unread(_) => 0,
        };
        let routes = facts.routes.total;
        Self { general, links, bridged, tracked, groups, fragments, parts, notes, compiled, routes }
    }

    /// The path of packets that arrive by a device.
    #[must_use]
    pub fn arrives(&self, ifindex: Ifindex, family: Family) -> PathKind {
        self.path_kind(ifindex, family, |link| &link.arrives)
    }

    /// Whether what arrives by a device takes the kernel path if it leaves by a port with a tc program.
    #[must_use]
    pub fn keeps_tc_exits(&self, ifindex: Ifindex) -> bool {
        let mut links = self.links.iter();
        links.find(|link| link.ifindex == ifindex).is_none_or(|link| !link.tc_exits.is_empty())
    }

    /// The path of packets that leave by a device.
    #[must_use]
    pub fn leaves(&self, ifindex: Ifindex, family: Family) -> PathKind {
        self.path_kind(ifindex, family, |link| &link.leaves)
    }

    fn path_kind(
        &self,
        ifindex: Ifindex,
        family: Family,
        way: impl Fn(&Link) -> &PerFamily<Vec<Reason>>,
    ) -> PathKind {
        let link = self.links.iter().find(|link| link.ifindex == ifindex);
        let is_fast = link.is_some_and(|link| way(link).of(family).is_empty());
        if is_fast && self.general.of(family).is_empty() {
            PathKind::Fast
        } else {
            PathKind::Kernel
        }
    }
}
