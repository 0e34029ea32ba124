//! Why traffic takes the kernel path, in words.

use std::fmt;

use super::probe::Watch;
use crate::kernel::{BridgePortState, Family};

/// Why traffic takes the kernel path.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Reason {
    /// The kernel does not forward arriving packets, because of this sysctl.
    ForwardingOff(String),
    /// The device does not have the family.
    NoFamily(Family, String),
    /// The device belongs to another device, its master.
    Member {
        /// The device.
        device: String,
        /// The master's kind.
        kind: String,
        /// The master's name.
        master: String,
    },
    /// Another device takes frames of this one first.
    Upper {
        /// The device.
        device: String,
        /// The kind of the other device.
        kind: String,
        /// The name of the other device.
        upper: String,
    },
    /// A device in another network namespace takes frames of this one first.
    UpperElsewhere {
        /// The device.
        device: String,
        /// The kind of the other device.
        kind: String,
        /// The name of the other device there.
        upper: String,
        /// The number of that namespace.
        namespace: i32,
    },
    /// The device is of a kind that takes the kernel path.
    Kind {
        /// The device.
        device: String,
        /// Its kind.
        kind: String,
    },
    /// Its frames are not Ethernet frames.
    NotEthernet(String),
    /// A tunnel by which packets leave: only the kernel answers for what it cannot carry.
    Tunnel(String),
    /// Its neighbours need no resolution (`IFF_NOARP`).
    NoArp(String),
    /// It has another XDP program.
    OtherXdp(String),
    /// Filters of tc(8) inspect arriving packets.
    FiltersIn(String),
    /// Filters of tc(8) inspect leaving packets.
    FiltersOut(String),
    /// A queueing discipline has been configured for leaving packets.
    Qdisc {
        /// The device.
        device: String,
        /// The discipline.
        kind: String,
    },
    /// The device removes VLAN tags before XDP sees the frames.
    StripsTags(String),
    /// A veth whose peer passes VLAN tags beside the frames, where XDP does not see them.
    PeerTags {
        /// The device.
        device: String,
        /// Its peer, if that is a device of this namespace.
        peer: Option<String>,
    },
    /// A veth whose peer leaves checksums to a network card, which does not exist.
    PeerChecksums {
        /// The device.
        device: String,
        /// Its peer, if that is a device of this namespace.
        peer: Option<String>,
    },
    /// The peer of a veth has an XDP program in generic mode, which does not see what a tc program redirects.
    PeerXdp {
        /// The veth.
        device: String,
        /// Its peer.
        peer: String,
        /// The number of the peer's namespace, if that is another one.
        namespace: Option<i32>,
    },
    /// A TAP device whose owner may leave checksums to a network card (`vnet_hdr`).
    OwnerChecksums(String),
    /// A VLAN device that keeps tags in the frames that its taps see.
    KeepsTags(String),
    /// A VLAN device that has an Ethernet address of its own.
    OwnMac(String),
    /// A VLAN device that writes priorities into tags.
    EgressQos(String),
    /// A VLAN device that gives packets priorities by their tags.
    IngressQos(String),
    /// A VLAN device on more tags than the router parses.
    TooManyTags(String),
    /// Its packets may be larger than the buffers.
    LargeMtu {
        /// The device.
        device: String,
        /// The size of its largest packet, in bytes.
        mtu: u32,
        /// The largest packet that a buffer has room for, in bytes.
        most: u32,
    },
    /// A tunnel device whose packets bring, or are given, the other end's address (`external`, or gre without a remote
    /// one).
    External(String),
    /// The device has a tc program, which decides about none of its packets.
    Engine {
        /// The device.
        device: String,
        /// What the program does not do, as the end of a sentence.
        what: &'static str,
    },
    /// The engine of a bridge's port has no program for such ports.
    BridgeEngine {
        /// The device.
        device: String,
        /// The engine's name.
        engine: &'static str,
    },
    /// 127/8 is routed.
    RouteLocalnet(String),
    /// The kernel follows redirects.
    Redirected(Family, String),
    /// Path MTUs that the host has learnt hold for forwarded packets.
    PathMtu,
    /// The kernel answers for neighbours, and consumes their messages.
    ProxyNdp,
    /// The kernel evaluates IPsec policies for packets; their number.
    Xfrm(u64),
    /// The kernel drops packets without a matching IPsec policy.
    XfrmBlocks,
    /// The kernel tracks connections, or does something similar; the cause, if it is known.
    Conntrack(Option<String>),
    /// A listener receives which connections are tracked; its name.
    Watched(Watch),
    /// There are virtual services.
    Ipvs,
    /// Chains of iptables-legacy have an effect.
    Legacy(Vec<String>),
    /// A security module inspects all packets.
    Labels,
    /// Netfilter calls an unknown function.
    Hook(String),
    /// The rules of nftables are unknown.
    RulesUnread(String),
    /// The router cannot execute the firewall's rules at all, and why.
    Rules(String),
    /// Devices of a kind take other devices' frames, and the kernel does not show whose.
    Hidden {
        /// The kind.
        kind: String,
        /// One of them.
        device: String,
    },
    /// Frames of a device have a hash of their own, by which the kernel chooses among several next hops.
    OwnHash(String),
    /// The kernel chooses among several next hops differently from the router.
    Multipath(String),
    /// A port of a bridge does not forward.
    BridgePortState {
        /// The port's device.
        device: String,
        /// Its state.
        state: BridgePortState,
    },
    /// A bridge does more than forward.
    Bridge {
        /// The bridge.
        bridge: String,
        /// What it does.
        work: BridgeWork,
    },
    /// No other port of the bridge forwards by Tollway.
    OnlyBridgePort(String),
    /// This sysctl has a bridge show tagged frames to the rules for IP.
    BridgeSysctl(String),
    /// There are chains of nftables for frames of bridges, or of a device.
    FrameRules,
    /// A table of ebtables-legacy has been loaded.
    Ebtables,
    /// Bridges show packets of the family to its rules (`br_netfilter`).
    BridgedRules(Family),
    /// A query failed: what, and the system's error.
    Unknown(&'static str, String),
}

/// What a bridge does that the programs leave to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum BridgeWork {
    /// It tells VLANs apart (`vlan_filtering 1`).
    Vlans,
    /// It shows all frames to somebody (`tcpdump -i br0`, a macvlan).
    Copies,
    /// It learns nothing (`ageing_time 0`), or for so short that each frame counts.
    Ageing,
    /// Its ports send into tunnels (`vlan_tunnel on`).
    Tunnels,
}

impl Reason {
    /// The reason as a key for programs.
    #[must_use]
    pub const fn key(&self) -> &'static str {
        match self {
            Self::ForwardingOff(_) => "forwarding_off",
            Self::NoFamily(..) => "no_family",
            Self::Member { .. } => "member",
            Self::Upper { .. } | Self::UpperElsewhere { .. } => "upper",
            Self::Kind { .. } => "kind",
            Self::NotEthernet(_) => "not_ethernet",
            Self::Tunnel(_) => "tunnel",
            Self::NoArp(_) => "no_arp",
            Self::OtherXdp(_) => "other_xdp",
            Self::FiltersIn(_) => "filters_in",
            Self::FiltersOut(_) => "filters_out",
            Self::Qdisc { .. } => "qdisc",
            Self::StripsTags(_) => "strips_tags",
            Self::PeerTags { .. } => "peer_tags",
            Self::PeerChecksums { .. } => "peer_checksums",
            Self::PeerXdp { .. } => "peer_xdp",
            Self::OwnerChecksums(_) => "owner_checksums",
            Self::KeepsTags(_) => "keeps_tags",
            Self::OwnMac(_) => "own_mac",
            Self::EgressQos(_) => "egress_qos",
            Self::IngressQos(_) => "ingress_qos",
            Self::TooManyTags(_) => "too_many_tags",
            Self::LargeMtu { .. } => "large_mtu",
            Self::External(_) => "external",
            Self::Engine { .. } | Self::BridgeEngine { .. } => "engine",
            Self::RouteLocalnet(_) => "route_localnet",
            Self::Redirected(..) => "accept_redirects",
            Self::PathMtu => "path_mtu",
            Self::ProxyNdp => "proxy_ndp",
            Self::Xfrm(_) => "xfrm",
            Self::XfrmBlocks => "xfrm_blocks",
            Self::Conntrack(_) => "conntrack",
            Self::Watched(_) => "conntrack",
            Self::Ipvs => "ipvs",
            Self::Legacy(_) => "legacy",
            Self::Labels => "labels",
            Self::Hook(_) => "hook",
            Self::RulesUnread(_) => "rules_unread",
            Self::Rules(_) => "rules",
            Self::Hidden { .. } => "hidden",
            Self::OwnHash(_) => "own_hash",
            Self::Multipath(_) => "multipath",
            Self::BridgePortState { .. } => "bridge_port_state",
            Self::Bridge { .. } => "bridge",
            Self::OnlyBridgePort(_) => "only_bridge_port",
            Self::BridgeSysctl(_) => "bridge_sysctl",
            Self::FrameRules => "frame_rules",
            Self::Ebtables => "ebtables",
            Self::BridgedRules(_) => "bridged_rules",
            Self::Unknown(..) => "unknown",
        }
    }
}

/// A clause without a full stop.
impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::ForwardingOff(sysctl) => write!(f, "the kernel does not forward it: {sysctl}"),
            Self::NoFamily(family, device) => write!(f, "{device} has no {}", family_name(*family)),
            Self::Member { device, kind, master } => {
                write!(f, "{device} belongs to the {kind} {master}")
            }
            Self::BridgePortState { device, state } => {
                write!(f, "{device} is {state} (bridge link show dev {device})")
            }
            Self::Bridge { bridge, work } => write!(f, "{bridge} {work}"),
            Self::OnlyBridgePort(bridge) => {
                write!(f, "no other port of {bridge} is one that Tollway forwards by")
            }
            Self::BridgeSysctl(sysctl) => write!(f, "{sysctl} is set"),
            Self::FrameRules => {
                f.write_str("nftables has chains of family bridge, or at devices, which see frames")
            }
            Self::Ebtables => {
                f.write_str("a table of ebtables-legacy may have rules (lsmod lists ebtable_filter, _nat or _broute)")
            }
            Self::BridgedRules(family) => {
                let (family, which) = match family {
                    Family::V4 => ("IPv4", "iptables"),
                    Family::V6 => ("IPv6", "ip6tables"),
                };
                write!(
                    f,
                    "bridges show {family} packets to the rules (net.bridge.bridge-nf-call-{which} is 1)"
                )
            }
            Self::Upper { device, kind, upper } => {
                write!(f, "{upper}, a {kind} on {device}, takes frames first")
            }
            Self::UpperElsewhere { device, kind, upper, namespace } => {
                write!(
                    f,
                    "{upper}, a {kind} on {device} that is in another network namespace (number \
                     {namespace}: ip netns list-id), takes frames first"
                )
            }
            Self::Kind { device, kind } => {
                write!(f, "{device} is a {kind}; devices of this kind take the kernel path")
            }
            Self::NotEthernet(device) => write!(f, "{device} is not Ethernet"),
            Self::Tunnel(device) => {
                write!(f, "only the kernel tells senders what the tunnel {device} cannot carry")
            }
            Self::NoArp(device) => write!(f, "{device} has noarp set"),
            Self::OtherXdp(device) => {
                write!(f, "{device} has another XDP program attached (ip link show dev {device})")
            }
            Self::FiltersIn(device) => {
                write!(
                    f,
                    "tc filters on {device} inspect what arrives (tc filter show dev {device} ingress)"
                )
            }
            Self::FiltersOut(device) => {
                write!(
                    f,
                    "tc filters on {device} inspect what leaves (tc filter show dev {device} egress)"
                )
            }
            Self::Qdisc { device, kind } => {
                write!(
                    f,
                    "{device} has a configured queueing discipline, {kind} (tc qdisc show dev {device})"
                )
            }
            Self::StripsTags(device) => {
                write!(
                    f,
                    "{device} removes VLAN tags before XDP sees them; run ethtool -K {device} rxvlan off \
                     rx-vlan-stag-hw-parse off"
                )
            }
            Self::PeerTags { device, peer: Some(peer) } => {
                write!(
                    f,
                    "the peer of {device} passes VLAN tags beside the frames, where XDP does not see them; \
                     run ethtool -K {peer} txvlan off tx-vlan-stag-hw-insert off"
                )
            }
            Self::PeerTags { device, peer: None } => {
                write!(
                    f,
                    "the peer of {device} may pass VLAN tags beside the frames, where XDP does not see them; \
                     run ethtool -K PEER txvlan off tx-vlan-stag-hw-insert off in its namespace, and ethtool -K \
                     {device} rxvlan off here to say so"
                )
            }
            Self::PeerChecksums { device, peer: Some(peer) } => {
                write!(
                    f,
                    "the peer of {device} leaves checksums unfinished, for a network card that is not there; \
                     run ethtool -K {peer} tx off"
                )
            }
            Self::PeerChecksums { device, peer: None } => {
                write!(
                    f,
                    "the peer of {device} may leave checksums unfinished, for a network card that is not there; \
                     run ethtool -K PEER tx off in its namespace, and ethtool -K {device} rx off here to say so"
                )
            }
            Self::PeerXdp { device, peer, namespace } => {
                write!(f, "the peer of {device}, {peer}")?;
                if let Some(namespace) = namespace {
                    write!(f, " in another network namespace (number {namespace}: ip netns list-id)")?;
                }
                f.write_str(
                    ", has an XDP program in generic mode, which does not see what a tc program sends"
                )
            }
            Self::OwnerChecksums(device) => {
                write!(
                    f,
                    "the owner of {device} may leave checksums unfinished (vnet_hdr); have it open the device \
                     without vnet_hdr, as QEMU does with -netdev tap,vnet_hdr=off"
                )
            }
            Self::KeepsTags(device) => write!(f, "{device} has reorder_hdr off"),
            Self::OwnMac(device) => {
                write!(f, "{device} has another Ethernet address than its port")
            }
            Self::EgressQos(device) => {
                write!(f, "{device} writes priorities into tags (egress-qos-map)")
            }
            Self::IngressQos(device) => {
                write!(f, "{device} gives packets priorities by their tags (ingress-qos-map)")
            }
            Self::TooManyTags(device) => write!(f, "frames of {device} have more than two VLAN tags"),
            Self::LargeMtu { device, mtu, most } => {
                write!(
                    f,
                    "{device} has an MTU of {mtu}, and frames have room for {most}; if the MTU was raised, \
                     restart tollway"
                )
            }
            Self::External(device) => {
                write!(f, "{device} has no fixed other end (external, or gre without a remote address)")
            }
            Self::Engine { device, what } => {
                write!(f, "the tc program {what}, and decides about nothing from {device}")
            }
            Self::BridgeEngine { device, engine } => write!(
                f,
                "the engine {engine} of {device} forwards no frames of bridges, as xdp and tc do"
            ),
            Self::RouteLocalnet(device) => {
                write!(
                    f,
                    "127.0.0.0/8 is routed (net.ipv4.conf.{device}.route_localnet, or that of all)"
                )
            }
            Self::Redirected(family, device) => {
                let (name, of) = match family {
                    Family::V4 => ("ipv4", "all"),
                    Family::V6 => ("ipv6", device.as_str()),
                };
                write!(
                    f,
                    "redirects that {device} receives change the next hops of forwarded packets; run sysctl \
                     net.{name}.conf.{of}.accept_redirects=0"
                )
            }
            Self::PathMtu => {
                f.write_str("learnt path MTUs apply to forwarded packets (net.ipv4.ip_forward_use_pmtu)")
            }
            Self::ProxyNdp => {
                f.write_str("the kernel answers for neighbours (net.ipv6.conf.all.proxy_ndp)")
            }
            Self::Xfrm(1) => f.write_str("there is an IPsec policy (ip xfrm policy)"),
            Self::Xfrm(count) => write!(f, "there are {count} IPsec policies (ip xfrm policy)"),
            Self::XfrmBlocks => {
                f.write_str("IPsec drops packets without a policy (ip xfrm policy getdefault)")
            }
            Self::Conntrack(None) => f.write_str(
                "the kernel tracks connections (nf_conntrack), or did: `conntrack -F` deletes those that remain"
            ),
            Self::Conntrack(Some(need)) => {
                write!(f, "the kernel has to see all packets, for {need}")
            }
            Self::Watched(listener) => {
                write!(f, "the kernel tracks connections and reports all of them ({listener})")
            }
            Self::Ipvs => f.write_str("there are virtual services (ipvsadm -L)"),
            Self::Legacy(chains) => {
                write!(f, "iptables-legacy has rules or a policy in {}", chains.join(", "))
            }
            Self::Labels => {
                f.write_str("a security module inspects every packet (always_check_network)")
            }
            Self::Hook(function) if function == "nf_hook_run_bpf" => {
                f.write_str("netfilter calls a BPF program (bpftool link)")
            }
            Self::Hook(function) => {
                write!(f, "netfilter calls {function}, which Tollway does not know (nft list hooks)")
            }
            Self::RulesUnread(why) => write!(f, "Tollway does not know the rules of nftables: {why}"),
            Self::Rules(why) => write!(f, "the rules of nftables take the kernel path: {why}"),
            Self::Hidden { kind, device } => {
                write!(
                    f,
                    "{device} is a {kind}, and the kernel does not show whose frames it takes"
                )
            }
            Self::OwnHash(device) => write!(
                f,
                "packets from {device} may already have a hash, by which the kernel chooses among several \
                 next hops; run ethtool -K {device} rxhash off and switch RPS off there, or, as for a veth, choose \
                 by addresses (fib_multipath_hash_policy = 0)"
            ),
            Self::Multipath(why) => f.write_str(why),
            Self::Unknown(what, why) => write!(f, "{what} cannot be queried: {why}"),
        }
    }
}

/// The name of a family for people.
pub(super) const fn family_name(family: Family) -> &'static str {
    match family {
        Family::V4 => "IPv4",
        Family::V6 => "IPv6",
    }
}

/// A clause: the bridge is named before it.
impl fmt::Display for BridgeWork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Vlans => "tells VLANs apart (vlan_filtering 1)",
            Self::Copies => {
                "shows all of its frames to somebody (promiscuous: a capture, a macvlan)"
            }
            Self::Ageing => "forgets hosts at once, or too soon (ageing_time)",
            Self::Tunnels => "sends into tunnels by VLAN (vlan_tunnel on)",
        })
    }
}
