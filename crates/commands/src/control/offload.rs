//! The offload of traffic, as the control socket and `tollway check` report it.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollway_dataplane::id::PortId;

use tollway_controller::offload::{self, PerFamily};
use tollway_xdp::CountMap;
use tollway_xdp::counts::PassReason;

/// The answer to [`ShowRequest::Offload`](super::ShowRequest::Offload) and to `tollway check DEVICE...`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Offload {
    /// Why all traffic takes the kernel path.
    pub general: Reasons,
    /// The links: each port, followed by the VLAN devices on it.
    pub links: Vec<OffloadedLink>,
    /// The families of which only packets of established connections of UDP and TCP take the fast path.
    #[serde(default)]
    pub tracked: Tracked,
    /// Why traffic over routes with several next hops takes the kernel path.
    pub groups: Reasons,
    /// Exceptions: traffic that takes the kernel path although the rest takes the fast path.
    pub parts: Vec<OffloadedPart>,
    /// Notes for the user.
    pub notes: Vec<String>,
    /// How many rules of nftables the router evaluates itself.
    pub rules: usize,
    /// How many routes there are.
    pub routes: RouteCounts,
    /// Ports without an XDP program: no traffic from or to these ports could take the fast path.
    #[serde(default)]
    pub not_attached: Vec<String>,
    /// Packets that devices counted before any program was attached, if the counts
    /// distinguish the paths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<PathTraffic>,
    /// Packets by path; none before a program is attached.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub counts: Option<PathCounts>,
}

/// Why tracked connections are the kernel's while it has to count exactly.
const EXACT_COUNTERS: &str = "the kernel counts packets of connections (net.netfilter.nf_conntrack_acct = 1), and \
                              --exact-counters leaves all connections to it";

impl Offload {
    /// Leaves the families whose connections the kernel tracks to the kernel, which has to count exactly.
    pub(super) fn leave_connections(&mut self) {
        let why = || Why { reason: "exact_counters".to_owned(), why: EXACT_COUNTERS.to_owned() };
        let Tracked { ipv4, ipv6 } = std::mem::take(&mut self.tracked);
        if ipv4.is_some() {
            self.general.ipv4.push(why());
            self.links.iter_mut().for_each(|link| link.ipv4_fast = false);
        }
        if ipv6.is_some() {
            self.general.ipv6.push(why());
            self.links.iter_mut().for_each(|link| link.ipv6_fast = false);
        }
        // The kernel's counts lack nothing.
        self.notes.retain(|note| !note.contains("nf_conntrack_acct"));
    }
}

/// For which rule the kernel tracks the connections of each family, where established ones take the fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tracked {
    /// IPv4.
    pub ipv4: Option<String>,
    /// IPv6.
    pub ipv6: Option<String>,
}

/// Why traffic of each family takes the kernel path; empty if it takes the fast path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reasons {
    /// IPv4.
    pub ipv4: Vec<Why>,
    /// IPv6.
    pub ipv6: Vec<Why>,
}

/// Why traffic takes the kernel path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Why {
    /// The reason, as a keyword for programs.
    pub reason: String,
    /// The reason in words.
    pub why: String,
}

/// A link with its offload.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadedLink {
    /// Its name.
    pub link: String,
    /// The link's port: the link itself, or the port, or the bridge, that carries it.
    pub port: String,
    /// Whether it is a bridge of ports: packets arrive by any of these, and leave by them.
    #[serde(default)]
    pub is_bridge: bool,
    /// The VRF that it is in.
    pub vrf: Option<String>,
    /// Whether it is up.
    pub up: bool,
    /// Whether IPv4 takes the fast path in both directions, with the reasons for all links
    /// considered.
    pub ipv4_fast: bool,
    /// The same for IPv6.
    pub ipv6_fast: bool,
    /// Why traffic that arrives on the link takes the kernel path, apart from the reasons for all
    /// links.
    pub arrives: Reasons,
    /// Why traffic that would exit by the link takes the kernel path, likewise.
    pub leaves: Reasons,
    /// Of a port of a bridge: what becomes of the frames that the bridge forwards.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bridged: Option<OffloadedFrames>,
}

/// What becomes of frames that a bridge forwards from a port, or to it: those from known hosts to known hosts, if nothing here
/// says otherwise, are fast.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadedFrames {
    /// The bridge.
    pub bridge: String,
    /// Why all of them take the kernel path.
    pub all: Vec<Why>,
    /// Why those with packets of a family do.
    pub packets: Reasons,
    /// Why tagged ones do.
    pub tagged: Vec<Why>,
}

/// An exception: its packets take the kernel path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct OffloadedPart {
    /// What it is.
    pub what: String,
    /// Why.
    pub why: String,
}

/// The numbers of routes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct RouteCounts {
    /// IPv4.
    pub ipv4: u64,
    /// IPv6.
    pub ipv6: u64,
}

/// Packets that devices have counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathTraffic {
    /// Received at ports.
    pub received: Shares,
    /// Sent by ports.
    pub sent: Shares,
    /// Traffic of devices that are not ports; it takes the kernel path.
    pub others: Vec<Other>,
}

/// Packets that ports have counted, split by what is known of their path.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Shares {
    /// All packets.
    pub packets: u64,
    /// Packets on links where all traffic in this direction takes the kernel path.
    pub kernel: u64,
    /// Packets on links where one of IPv4 and IPv6 does.
    pub either: u64,
}

/// Traffic of a device that is not a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Other {
    /// The device.
    pub device: String,
    /// Packets received.
    pub received: u64,
    /// Packets sent.
    pub sent: u64,
}

/// Packets by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PathCounts {
    /// The counts of each port.
    pub ports: Vec<PortPaths>,
    /// Packets that the user path has handed to the kernel, by reason.
    pub punts: BTreeMap<String, u64>,
}

impl PathCounts {
    /// Packets that arrived while a program was attached.
    #[must_use]
    pub fn arrived(&self) -> u64 {
        let of_port = |port: &PortPaths| port.xdp + port.user + port.kernel.values().sum::<u64>();
        self.ports.iter().map(of_port).sum()
    }

    /// Those of them that took the kernel path, by reason.
    #[must_use]
    pub fn kernel(&self) -> BTreeMap<&str, u64> {
        let mut sums = BTreeMap::new();
        let of_ports = self.ports.iter().flat_map(|port| &port.kernel);
        for (reason, count) in of_ports.chain(&self.punts) {
            *sums.entry(reason.as_str()).or_default() += count;
        }
        sums
    }
}

/// Packets that arrived at a port, by path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortPaths {
    /// The port.
    pub port: String,
    /// Packets that the XDP program has forwarded.
    pub xdp: u64,
    /// Packets that the XDP program has redirected to the user path.
    pub user: u64,
    /// Packets of connections that the programs have forwarded or dropped by their entries, and their bytes from the IP
    /// header on. The kernel's counts of connections lack these.
    #[serde(default)]
    pub connections: [u64; 2],
    /// Packets that the XDP program has passed to the kernel, by reason; without those that came back from the user
    /// path.
    pub kernel: BTreeMap<String, u64>,
}

impl From<&offload::Offload> for Offload {
    fn from(offload: &offload::Offload) -> Self {
        let ports = offload.links.iter().filter(|link| link.ifindex == link.port);
        let idle =
            ports.clone().filter(|port| !port.is_on_bridge && offload.idle(port.ifindex).is_some());
        let not_attached = idle.map(|port| port.name.clone()).collect();
        let ports: BTreeMap<_, _> = ports.map(|port| (port.ifindex, &port.name)).collect();
        let link = |link: &offload::Link| {
            let reasons = [&offload.general, &link.arrives, &link.leaves];
            let fast =
                PerFamily::each(|family| reasons.iter().all(|all| all.of(family).is_empty()));
            OffloadedLink {
                link: link.name.clone(),
                port: ports.get(&link.port).map_or_else(String::new, |name| (*name).clone()),
                vrf: link.vrf.clone(),
                up: link.up,
                ipv4_fast: fast.v4,
                ipv6_fast: fast.v6,
                arrives: Reasons::from(&link.arrives),
                leaves: Reasons::from(&link.leaves),
                is_bridge: link.ifindex == link.port && link.is_on_bridge,
                bridged: offload
                    .bridged
                    .iter()
                    .find(|bridged| bridged.port.0 == link.ifindex)
                    .map(OffloadedFrames::from),
            }
        };
        let part =
            |part: &offload::Part| OffloadedPart { what: part.what.clone(), why: part.why.clone() };
        Self {
            general: Reasons::from(&offload.general),
            links: offload.links.iter().map(link).collect(),
            tracked: Tracked { ipv4: offload.tracked.v4.clone(), ipv6: offload.tracked.v6.clone() },
            groups: Reasons::from(&offload.groups),
            parts: offload.parts.iter().map(part).collect(),
            notes: offload.notes.iter().map(|note| note.0.clone()).collect(),
            rules: offload.compiled,
            routes: RouteCounts { ipv4: offload.routes.v4, ipv6: offload.routes.v6 },
            not_attached,
            traffic: None,
            counts: None,
        }
    }
}

impl From<offload::Traffic> for PathTraffic {
    fn from(traffic: offload::Traffic) -> Self {
        let shares = |shares: offload::Shares| {
            let offload::Shares { packets, kernel, either } = shares;
            Shares { packets, kernel, either }
        };
        let other = |other: offload::Other| {
            let offload::Counted { received, sent } = other.counted;
            Other { device: other.name, received, sent }
        };
        Self {
            received: shares(traffic.received),
            sent: shares(traffic.sent),
            others: traffic.others.into_iter().map(other).collect(),
        }
    }
}

impl From<&PerFamily<Vec<offload::Reason>>> for Reasons {
    fn from(reasons: &PerFamily<Vec<offload::Reason>>) -> Self {
        let texts = |reasons: &[offload::Reason]| reasons.iter().map(Why::from).collect();
        Self { ipv4: texts(&reasons.v4), ipv6: texts(&reasons.v6) }
    }
}

impl From<&offload::Reason> for Why {
    fn from(reason: &offload::Reason) -> Self {
        Self { reason: reason.key().to_owned(), why: reason.to_string() }
    }
}

impl From<&offload::Bridged> for OffloadedFrames {
    fn from(bridged: &offload::Bridged) -> Self {
        let packets = |packets: &offload::BridgedPackets| match packets {
            offload::BridgedPackets::Kernel(reason) => vec![Why::from(reason)],
            offload::BridgedPackets::Plain | offload::BridgedPackets::Validated => Vec::new(),
        };
        Self {
            bridge: bridged.bridge.1.clone(),
            all: bridged.kernel.iter().map(Why::from).collect(),
            packets: Reasons { ipv4: packets(&bridged.ip.v4), ipv6: packets(&bridged.ip.v6) },
            tagged: bridged.tagged.iter().map(Why::from).collect(),
        }
    }
}

/// The XDP program's counters of each port; empty without counters.
pub(super) fn paths<'a>(
    counts: Option<&CountMap>,
    ports: impl Iterator<Item = &'a str>,
) -> Vec<PortPaths> {
    let Some(counts) = counts else { return Vec::new() };
    let path_counts = |(index, name): (usize, &str)| {
        let counted = counts.port(PortId(index as u16)).unwrap_or_default();
        let passed = PassReason::ALL.iter().map(|reason| (reason, counted.passed(*reason)));
        // What the user path has handed to the kernel arrives a second time; `punts` has it.
        let passed = passed.filter(|(reason, count)| **reason != PassReason::Punted && *count > 0);
        PortPaths {
            port: name.to_owned(),
            xdp: counted.xdp_rx_packets + counted.dropped_packets(),
            user: counted.to_user,
            connections: [counted.connection_packets, counted.connection_bytes],
            kernel: passed.map(|(reason, count)| (reason.name().to_owned(), count)).collect(),
        }
    };
    ports.enumerate().map(path_counts).collect()
}
