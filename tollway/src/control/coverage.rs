//! Which traffic takes which road, as it is told over the socket, and by `tollway check`.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollway_dataplane::id::PortId;

use crate::mirror::coverage::{self, PerFamily};
use crate::steer::CountMap;
use crate::steer::maps::PassReason;

/// The answer to [`Ask::Coverage`](super::Ask::Coverage), and of `tollway check DEVICE...`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Coverage {
    /// Why everything is the kernel's.
    pub general: Whys,
    /// The links: each port, followed by the VLAN devices on it.
    pub links: Vec<CoveredLink>,
    /// Why what several next hops share is the kernel's.
    pub groups: Whys,
    /// What else is the kernel's, of what would be fast.
    pub parts: Vec<CoveredPart>,
    /// What people should know beside.
    pub notes: Vec<String>,
    /// Rules of nftables that the router decides by.
    pub rules: usize,
    /// Routes.
    pub routes: RouteCounts,
    /// Ports of which nothing could be fast that arrives or leaves there, so that they carry no program.
    #[serde(default)]
    pub not_attached: Vec<String>,
    /// What devices had counted before anything was attached, where that tells the roads apart.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<RoadTraffic>,
    /// What was counted; none before anything is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<RoadCounts>,
}

/// Why traffic of each family is the kernel's; nothing where it is fast.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Whys {
    /// IPv4.
    pub ipv4: Vec<Why>,
    /// IPv6.
    pub ipv6: Vec<Why>,
}

/// Why traffic is the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The reason, for programs.
    pub reason: String,
    /// The same in words.
    pub why: String,
}

/// A link with its roads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoveredLink {
    /// Its name.
    pub link: String,
    /// The port that it is, or is on.
    pub port: String,
    /// The VRF that it is in.
    pub vrf: Option<String>,
    /// It is up.
    pub up: bool,
    /// Both ways of IPv4 are fast, whatever holds for all links considered.
    pub ipv4_fast: bool,
    /// Both ways of IPv6 are.
    pub ipv6_fast: bool,
    /// Why what arrives there is the kernel's, beside what holds for all links.
    pub arrives: Whys,
    /// Why what would leave there is the kernel's, likewise.
    pub leaves: Whys,
}

/// Something whose packets are the kernel's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CoveredPart {
    /// What.
    pub what: String,
    /// Why.
    pub why: String,
}

/// How many routes there are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteCounts {
    /// IPv4.
    pub ipv4: u64,
    /// IPv6.
    pub ipv6: u64,
}

/// Packets that devices have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoadTraffic {
    /// Received at ports.
    pub received: Shares,
    /// Sent by ports.
    pub sent: Shares,
    /// What went by devices that are no ports, and is the kernel's.
    pub others: Vec<Other>,
}

/// Packets that ports have counted, by what is known of their roads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// All.
    pub packets: u64,
    /// By links where all of this way is the kernel's.
    pub kernel: u64,
    /// By links where one of IPv4 and IPv6 is.
    pub either: u64,
}

/// What went by a device that is no port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// The device.
    pub device: String,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
}

/// What was counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoadCounts {
    /// Of each port.
    pub ports: Vec<PortRoads>,
    /// Packets that user space has given to the kernel, by reason.
    pub punts: BTreeMap<String, u64>,
}

/// What has arrived at a port, by the road that it took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortRoads {
    /// The port.
    pub port: String,
    /// Packets that the express lane has forwarded.
    pub express: u64,
    /// Packets given to user space.
    pub user: u64,
    /// Packets left to the kernel, by reason.
    pub kernel: BTreeMap<String, u64>,
}

impl From<&coverage::Coverage> for Coverage {
    fn from(coverage: &coverage::Coverage) -> Self {
        let ports = coverage.links.iter().filter(|link| link.ifindex == link.port);
        let idle = ports.clone().filter(|port| coverage.idle(port.ifindex).is_some());
        let not_attached = idle.map(|port| port.name.clone()).collect();
        let ports: BTreeMap<_, _> = ports.map(|port| (port.ifindex, &port.name)).collect();
        let link = |link: &coverage::Link| {
            let whys = [&coverage.general, &link.arrives, &link.leaves];
            let fast = PerFamily::each(|family| whys.iter().all(|why| why.of(family).is_empty()));
            CoveredLink {
                link: link.name.clone(),
                port: ports.get(&link.port).map_or_else(String::new, |name| (*name).clone()),
                vrf: link.vrf.clone(),
                up: link.up,
                ipv4_fast: fast.v4,
                ipv6_fast: fast.v6,
                arrives: Whys::from(&link.arrives),
                leaves: Whys::from(&link.leaves),
            }
        };
        let part =
            |part: &coverage::Part| CoveredPart { what: part.what.clone(), why: part.why.clone() };
        Self {
            general: Whys::from(&coverage.general),
            links: coverage.links.iter().map(link).collect(),
            groups: Whys::from(&coverage.groups),
            parts: coverage.parts.iter().map(part).collect(),
            notes: coverage.notes.iter().map(|note| note.0.clone()).collect(),
            rules: coverage.compiled,
            routes: RouteCounts { ipv4: coverage.routes.v4, ipv6: coverage.routes.v6 },
            not_attached,
            traffic: None,
            counts: None,
        }
    }
}

impl From<coverage::Traffic> for RoadTraffic {
    fn from(traffic: coverage::Traffic) -> Self {
        let shares = |shares: coverage::Shares| {
            let coverage::Shares { packets, kernel, either } = shares;
            Shares { packets, kernel, either }
        };
        let other = |other: coverage::Other| {
            let coverage::Counted { received, sent } = other.counted;
            Other { device: other.name, received, sent }
        };
        Self {
            received: shares(traffic.received),
            sent: shares(traffic.sent),
            others: traffic.others.into_iter().map(other).collect(),
        }
    }
}

impl From<&PerFamily<Vec<coverage::Reason>>> for Whys {
    fn from(reasons: &PerFamily<Vec<coverage::Reason>>) -> Self {
        let whys = |reasons: &[coverage::Reason]| {
            let why = |reason: &coverage::Reason| Why {
                reason: reason.key().to_owned(),
                why: reason.to_string(),
            };
            reasons.iter().map(why).collect()
        };
        Self { ipv4: whys(&reasons.v4), ipv6: whys(&reasons.v6) }
    }
}

/// What the steering program has counted at each port; nothing of those that it does not have.
pub(super) fn roads<'a>(
    counts: Option<&CountMap>,
    ports: impl Iterator<Item = &'a str>,
) -> Vec<PortRoads> {
    let Some(counts) = counts else { return Vec::new() };
    let road = |(index, name): (usize, &str)| {
        let counted = counts.port(PortId(index as u16)).unwrap_or_default();
        let passed = PassReason::ALL.iter().map(|reason| (reason, counted.passed(*reason)));
        let passed = passed.filter(|(_, count)| *count > 0);
        PortRoads {
            port: name.to_owned(),
            express: counted.express_rx_packets,
            user: counted.to_user,
            kernel: passed.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
        }
    };
    ports.enumerate().map(road).collect()
}
