//! What is said over the control socket: requests and answers, as both ends know them.

use std::collections::BTreeMap;
use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// The version of the messages; one that changes what was there has another.
pub const VERSION: u64 = 1;

/// What is asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "show", rename_all = "snake_case", deny_unknown_fields)]
pub enum Ask {
    /// Ports with their state and counts.
    Ports,
    /// Links.
    Links,
    /// Routes, in pages.
    Routes {
        /// Of this VRF only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vrf: Option<String>,
        /// Within this prefix only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        within: Option<IpNet>,
        /// The router's own addresses and what is never forwarded as well.
        #[serde(default)]
        all: bool,
    },
    /// The route that an address takes.
    Route {
        /// The address.
        address: IpAddr,
        /// The VRF, by default the main one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        vrf: Option<String>,
    },
    /// Neighbours.
    Neighbours,
    /// Drops by reason.
    Drops,
    /// Punts by reason.
    Punts,
    /// The express lane.
    Express,
    /// The firewall's rules with their counts.
    Filter,
    /// What each stage costs.
    Tolls,
    /// What the kernel's configuration is, and what of it is in force.
    Mirror,
    /// Which traffic takes which road, and why.
    Coverage,
    /// Ports, drops, punts, express and tolls of one moment.
    All,
}

/// An answer or a request as a line, without its end.
pub(super) fn line(body: &impl Serialize) -> String {
    #[derive(Serialize)]
    struct Line<'a, T> {
        v: u64,
        #[serde(flatten)]
        body: &'a T,
    }
    let line = serde_json::to_string(&Line { v: VERSION, body });
    // Keys are strings and numbers are whole or finite: there is nothing that JSON can not say.
    line.unwrap_or_else(|error| refusal(&format!("the answer can not be written: {error}")))
}

/// The answer to a request that can not be met.
pub(super) fn refusal(sentence: &str) -> String {
    json!({"v": VERSION, "error": sentence}).to_string()
}

/// Packets and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames.
    pub packets: u64,
    /// Bytes, Ethernet headers included.
    pub bytes: u64,
}

/// What became of all packets: received = sent + dropped + punted + delivered + held, and
/// transmitted = sent + originated.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Totals {
    /// Received by all ports.
    pub received: u64,
    /// Received and sent on.
    pub sent: u64,
    /// Received and dropped.
    pub dropped: u64,
    /// Received and punted.
    pub punted: u64,
    /// Received for the router itself.
    pub delivered: u64,
    /// Received and waiting for a neighbour now.
    pub held: u64,
    /// Taken by all ports.
    pub transmitted: u64,
    /// Made by the router and taken by a port.
    pub originated: u64,
    /// Made by the router and lost.
    pub originated_lost: u64,
    /// Which sum does not hold; there is nothing here unless Tollway has a defect.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defect: Option<String>,
}

/// A port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PortState {
    /// Its name.
    pub name: String,
    /// The kind that the configuration names.
    pub kind: String,
    /// The device behind it.
    pub device: Option<String>,
    /// How frames come and go.
    pub how: String,
    /// `up`, `down`, `gone` or `not attached`.
    pub state: String,
    /// Why it is not up.
    pub why: Option<String>,
    /// Its Ethernet address.
    pub mac: String,
    /// The largest layer-3 packet of its own link.
    pub mtu: u16,
    /// Received.
    pub rx: Traffic,
    /// Handed over and taken.
    pub tx: Traffic,
    /// Dropped by the kernel before the port could read them.
    pub missed: u64,
}

/// The answer to [`Ask::Ports`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// What became of all packets.
    pub totals: Totals,
    /// The ports.
    pub ports: Vec<PortState>,
}

/// A link.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// The port below it.
    pub port: String,
    /// The link below it, where it is a VLAN's.
    pub parent: Option<String>,
    /// Its VLAN.
    pub vid: Option<u16>,
    /// The tag's protocol: `802.1Q` or `802.1ad`.
    pub protocol: Option<String>,
    /// Its Ethernet address.
    pub mac: String,
    /// The largest layer-3 packet.
    pub mtu: u16,
    /// The VRF that its packets are routed in.
    pub vrf: String,
    /// Its addresses.
    pub addresses: Vec<IpNet>,
}

/// The answer to [`Ask::Links`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Links {
    /// The links.
    pub links: Vec<Link>,
}

/// Where a route leads.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NextHop {
    /// The router to send to; none where the destinations are on the link themselves.
    pub via: Option<IpAddr>,
    /// The egress link.
    pub dev: String,
    /// The next station's Ethernet address, where it is known.
    pub mac: Option<String>,
    /// Its share of the flows, of 256, where there are several.
    pub share: Option<u16>,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Route {
    /// The destinations.
    pub prefix: IpNet,
    /// `unicast`, `connected`, `neighbour`, `local`, or why packets go nowhere: `blackhole`,
    /// `unreachable`, `prohibit`, `ip_invalid_dest`.
    pub kind: String,
    /// Where it leads.
    pub nexthops: Vec<NextHop>,
}

/// One of the answers to [`Ask::Routes`]: routes of one VRF and one family, in the order of their
/// addresses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RoutesPage {
    /// The VRF; none in the last page.
    pub vrf: Option<String>,
    /// The routes; none in the last page.
    pub routes: Vec<Route>,
    /// Another page follows.
    pub more: bool,
}

/// The answer to [`Ask::Route`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Found {
    /// The VRF.
    pub vrf: String,
    /// The address.
    pub address: IpAddr,
    /// The route that it takes; none where there is no route.
    pub route: Option<Route>,
}

/// A neighbour.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neigh {
    /// The link it is on.
    pub dev: String,
    /// Its address.
    pub address: IpAddr,
    /// Its Ethernet address, where it is known.
    pub mac: Option<String>,
    /// As `ip neigh` says it; where somebody else keeps the neighbour, `known` or `wanted`.
    pub state: String,
}

/// The answer to [`Ask::Neighbours`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Neighbours {
    /// The neighbours.
    pub neighbours: Vec<Neigh>,
}

/// The answer to [`Ask::Drops`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drops {
    /// What became of all packets.
    pub totals: Totals,
    /// Packets by reason, those that there were.
    pub drops: BTreeMap<String, u64>,
}

/// The answer to [`Ask::Punts`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Punts {
    /// What became of all packets.
    pub totals: Totals,
    /// Packets by reason, those that there were.
    pub punts: BTreeMap<String, u64>,
}

/// The answer to [`Ask::Express`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Express {
    /// Whether there is an express lane.
    pub on: bool,
    /// Why there is none.
    pub why: Option<String>,
    /// What it counts, by name.
    pub counts: BTreeMap<String, u64>,
}

/// The answer to [`Ask::Filter`].
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Filter {
    /// Whether there are rules; without, every packet goes on.
    pub on: bool,
    /// Chains in the order of the rules' file.
    pub chains: Vec<FilterChain>,
    /// Counters that have a name.
    pub counters: Vec<FilterCounter>,
    /// Sets and maps that have a name.
    pub sets: Vec<FilterSet>,
}

/// A chain of the firewall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterChain {
    /// Its name, with its table's.
    pub name: String,
    /// `ip`, `ip6`, `inet`, `netdev` or `bridge`.
    pub family: String,
    /// The hook that it hangs at; none where it is only jumped to.
    pub hook: Option<String>,
    /// Devices that it is for, where its hook is that of devices.
    pub devices: Vec<String>,
    /// Lower runs earlier.
    pub priority: Option<i32>,
    /// `accept` or `drop`, for packets that come to its end.
    pub policy: Option<String>,
    /// Its rules.
    pub rules: Vec<FilterRule>,
}

/// A rule of the firewall.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterRule {
    /// The file that it is in, where that is known.
    pub file: Option<String>,
    /// Its line, where that is known.
    pub line: Option<usize>,
    /// nft's handle, or ipfw's number.
    pub handle: Option<u64>,
    /// The rule as its language writes it.
    pub text: String,
    /// `compiled`, or `elsewhere` where its packets are not on this router's way.
    pub verdict: String,
    /// Packets that it has counted; none where it does not count.
    pub packets: Option<u64>,
    /// Their bytes of layer 3.
    pub bytes: Option<u64>,
}

/// A counter with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterCounter {
    /// Its name, with its table's.
    pub name: String,
    /// Packets.
    pub packets: u64,
    /// Their bytes of layer 3.
    pub bytes: u64,
}

/// A set or map with a name.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct FilterSet {
    /// Its name, with its table's.
    pub name: String,
    /// How many elements it has.
    pub elements: usize,
}

/// What a stage costs.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageToll {
    /// The stage.
    pub stage: String,
    /// Clocks for each packet that went into it; none where nothing was sampled.
    pub clocks_per_packet: Option<f64>,
    /// The same in nanoseconds.
    pub ns_per_packet: Option<f64>,
    /// Packets in the samples.
    pub packets: u64,
    /// Bursts in the samples.
    pub bursts: u64,
}

/// The answer to [`Ask::Tolls`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Tolls {
    /// The clock's rate.
    pub tsc_mhz: f64,
    /// The stages in the path's order.
    pub tolls: Vec<StageToll>,
}

/// The answer to [`Ask::All`]: one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct All {
    /// The time since the router began to listen, ns.
    pub uptime_ns: u64,
    /// Ports, and what became of all packets.
    #[serde(flatten)]
    pub ports: Ports,
    /// Drops by reason.
    pub drops: BTreeMap<String, u64>,
    /// Punts by reason.
    pub punts: BTreeMap<String, u64>,
    /// The express lane.
    pub express: Express,
    /// Tolls.
    #[serde(flatten)]
    pub tolls: Tolls,
}
