//! The rows: what each measures.

use super::super::conntrack::{Connections, Protocol, Tracking};
use super::super::program::Setup;
use super::super::sink::SinkHook;

/// A row.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// What its figure begins with, in place of the name.
    pub(super) stem: &'static str,
    pub(super) title: &'static str,
    pub(super) kind: Kind,
    /// Whether it is measured only on request.
    pub(super) extra: bool,
}

/// What a row measures.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Frames of flows through a small table; Tollway has a configuration file.
    Flows(FlowCase),
    /// Frames to random destinations of a full Internet table.
    FullTable { v6: bool, flows: u32 },
    /// Frames of which each begins a flow, under so many rules.
    Flood { rules: usize },
    /// Frames of established connections that the kernel tracks.
    Connections(Connections),
    /// The same, where the kernel alone has a flowtable for them.
    BesideFlowtable(Connections),
    /// Frames that one rule drops; of 256 flows, or each of a new one.
    Drops { flood: bool },
    /// Frames of 65,536 flows through VLANs and a VRF under 100 rules.
    Features,
    /// Frames that a rule leaves to the kernel.
    KernelRule,
    /// Frames between hosts of a bridge, to so many of them, with `br_netfilter` or without.
    Bridged { hosts: u32, calls: bool },
    /// Packets that a bridge hands up, routed from there to another device.
    BridgeRouted,
    /// So many TCP connections between real sockets.
    Streams { count: usize, rules: SocketRules },
    /// Datagrams between real sockets.
    Sockets { rules: SocketRules },
    /// TCP connections between real sockets, each for a request and a response.
    Transactions { rules: SocketRules },
}

/// Frames of flows through a router with a configuration file.
#[derive(Clone, Copy)]
pub(super) struct FlowCase {
    pub(super) flows: u32,
    pub(super) setup: Setup,
    /// Where frames are counted, for the kernel as well as for Tollway.
    pub(super) sink: SinkHook,
}

/// The rules of a router between sockets.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SocketRules {
    None,
    /// So many rules, none of which matches.
    Drops(usize),
    /// Address translation, which leaves everything to the kernel.
    Masquerade,
    /// A firewall that lets A open connections, and address translation.
    Firewall,
}

impl Case {
    /// The name of its figure.
    pub(super) fn figure(&self) -> String {
        let unit = if self.is_percent() { "percent" } else { "ratio" };
        format!("{}_{unit}", self.stem.replace('-', "_"))
    }

    /// The name of the figure about processor time, if the row measures that.
    pub(super) fn processor_figure(&self) -> String {
        format!("{}_processor_ratio", self.stem.replace('-', "_"))
    }

    /// Whether its figure is a part of the kernel's, in percent.
    pub(super) fn is_percent(&self) -> bool {
        matches!(self.kind, Kind::KernelRule)
    }

    /// The unit of its rates.
    pub(super) fn unit(&self) -> &'static str {
        match self.kind {
            Kind::Streams { .. } => "Gbit/s",
            Kind::Transactions { .. } => "k/s",
            _ => "Mpps",
        }
    }
}

const XDP_PATH: Setup = Setup {
    kind: "af_xdp",
    xdp_path: true,
    features: false,
    own_processors: true,
    xdp_flows: None,
};

/// A row that is always measured.
const fn case(name: &'static str, title: &'static str, kind: Kind) -> Case {
    Case { name, stem: name, title, kind, extra: false }
}

const fn flows(flows: u32, setup: Setup, sink: SinkHook) -> Kind {
    Kind::Flows(FlowCase { flows, setup, sink })
}

/// The rows in the order of the report.
pub(super) const CASES: [Case; 42] = [
    case("xdp-256", "XDP path", flows(256, XDP_PATH, SinkHook::Xdp)),
    case("xdp-64k", "XDP path, 65,536 flows", flows(1 << 16, XDP_PATH, SinkHook::Xdp)),
    case(
        "xdp-1m",
        "XDP path, 1,048,576 flows",
        // Room for twice as many: the table evicts only approximately the least recently used flow.
        flows(1 << 20, Setup { xdp_flows: Some(1 << 21), ..XDP_PATH }, SinkHook::Xdp),
    ),
    case(
        "xdp-features",
        "VLAN, VRF, 100 rules; kernel plain",
        flows(256, Setup { features: true, ..XDP_PATH }, SinkHook::Xdp),
    ),
    case(
        "af-xdp",
        "user path, two cores",
        // Both routers send kernel packets (`sk_buff`). An XDP sink would copy only Tollway's.
        flows(256, Setup { xdp_path: false, ..XDP_PATH }, SinkHook::Tc),
    ),
    Case {
        name: "af-packet",
        stem: "af-packet",
        title: "packet sockets, two cores",
        kind: flows(256, Setup { kind: "af_packet", xdp_path: false, ..XDP_PATH }, SinkHook::Tc),
        extra: true,
    },
    full("xdp-full4-256", "full IPv4 table", false, 256),
    full("xdp-full4-64k", "IPv4, 65,536 flows", false, 1 << 16),
    full("xdp-full4-1m", "IPv4, 1,048,576 flows", false, 1 << 20),
    full("xdp-full6-256", "full IPv6 table", true, 256),
    full("xdp-full6-64k", "IPv6, 65,536 flows", true, 1 << 16),
    full("xdp-full6-1m", "IPv6, 1,048,576 flows", true, 1 << 20),
    case("flood", "new flows only", Kind::Flood { rules: 0 }),
    case("flood-100-rules", "new flows, 100 rules", Kind::Flood { rules: 100 }),
    case("flood-1000-rules", "new flows, 1,000 rules", Kind::Flood { rules: 1000 }),
    tracked("stateful", "established UDP", Tracking::Stateful, 256),
    tracked("stateful-64k", "65,536 connections", Tracking::Stateful, 1 << 16),
    tracked("stateful-1m", "1,048,576 connections", Tracking::Stateful, 1 << 20),
    tracked("nat", "masqueraded UDP", Tracking::Translated, 256),
    tracked("nat-64k", "65,536 connections", Tracking::Translated, 1 << 16),
    tracked("nat-1m", "1,048,576 connections", Tracking::Translated, 1 << 20),
    Case { stem: "nat-tcp-256", ..tracked_tcp("nat-tcp", "masqueraded TCP", 256) },
    tracked_tcp("nat-tcp-64k", "65,536 connections", 1 << 16),
    tracked_tcp("nat-tcp-1m", "1,048,576 connections", 1 << 20),
    case("nat-flowtable", "UDP; kernel by flowtable", Kind::BesideFlowtable(MASQUERADED)),
    case("drop", "a rule drops all", Kind::Drops { flood: false }),
    case("drop-flood", "all of new flows", Kind::Drops { flood: true }),
    case("features", "VLAN, VRF, 100 rules", Kind::Features),
    case("kernel-rule-delivered", "the kernel's rule", Kind::KernelRule),
    case("bridge", "bridge, br_netfilter", Kind::Bridged { hosts: 256, calls: true }),
    case("bridge-64k", "65,536 hosts", Kind::Bridged { hosts: 1 << 16, calls: true }),
    case("bridge-plain", "bridge, no br_netfilter", Kind::Bridged { hosts: 256, calls: false }),
    case("bridge-routed", "routed from a bridge", Kind::BridgeRouted),
    streams("tcp-stream", "TCP goodput", 1, SocketRules::None),
    streams("tcp-stream-8", "8 connections", 8, SocketRules::None),
    streams("nat-stream", "firewall, masquerade", 1, SocketRules::Firewall),
    streams("nat-stream-8", "8 connections", 8, SocketRules::Firewall),
    case("nat-crr", "new connections", Kind::Transactions { rules: SocketRules::Firewall }),
    sockets("socket", "64-byte UDP", SocketRules::None),
    sockets("socket-100-rules", "64-byte, 100 rules", SocketRules::Drops(100)),
    streams("nothing-offloaded-tcp", "masquerade, TCP", 1, SocketRules::Masquerade),
    sockets("nothing-offloaded-socket", "masquerade, 64-byte", SocketRules::Masquerade),
];

/// As in row `nat`.
const MASQUERADED: Connections =
    Connections { protocol: Protocol::Udp, tracking: Tracking::Translated, count: 256 };

const fn tracked(name: &'static str, title: &'static str, tracking: Tracking, count: u32) -> Case {
    case(name, title, Kind::Connections(Connections { protocol: Protocol::Udp, tracking, count }))
}

const fn tracked_tcp(name: &'static str, title: &'static str, count: u32) -> Case {
    let (protocol, tracking) = (Protocol::Tcp, Tracking::Translated);
    case(name, title, Kind::Connections(Connections { protocol, tracking, count }))
}

const fn full(name: &'static str, title: &'static str, v6: bool, flows: u32) -> Case {
    case(name, title, Kind::FullTable { v6, flows })
}

const fn streams(
    name: &'static str,
    title: &'static str,
    count: usize,
    rules: SocketRules,
) -> Case {
    case(name, title, Kind::Streams { count, rules })
}

const fn sockets(name: &'static str, title: &'static str, rules: SocketRules) -> Case {
    case(name, title, Kind::Sockets { rules })
}
