//! The links, and why packets that arrive or leave by each take the kernel path.

use std::collections::BTreeMap;

use super::probe::{Checksums, Device, ForeignUpper, QueryResult, Tags};
use super::{Facts, Firewall, Link, PerFamily, Reason, general, peers};
use crate::kernel::{Family, Ifindex, Netdev};
use crate::sysctl::LinkSysctls;
use tollway_firewall::ir::Hook;
use tollway_model::Engine;

/// `IFF_UP`, `IFF_NOARP`, `IFF_LOWER_UP`.
const UP: u32 = 1;
const NOARP: u32 = 1 << 7;
const LOWER_UP: u32 = 1 << 16;
/// The most VLAN tags.
const MOST_TAGS: usize = 2;
/// More devices than are ever stacked. This limit ends the walk if devices refer to each other in a circle.
const MOST_STACKED: usize = 8;
/// Kinds of devices that work as ports like a network card, which has no kind.
const PORTS: [&str; 4] = ["veth", "tun", "dummy", "netdevsim"];
/// Kinds of devices that refer to a lower device and take none of its frames, except packets to the host:
/// VLANs, tunnels, and the two ends of a veth.
const HARMLESS: [&str; 16] = [
    "vlan",
    "veth",
    "gre",
    "gretap",
    "erspan",
    "ipip",
    "sit",
    "vti",
    "vti6",
    "ip6tnl",
    "ip6gre",
    "ip6gretap",
    "ip6erspan",
    "vxlan",
    "geneve",
    "xfrm",
];

/// The links with their offload: each port, followed by the VLAN devices on it, each behind the one that
/// carries it; then each bridge of ports, likewise.
pub(super) fn links(facts: &Facts<'_>) -> Vec<Link> {
    let (uppers, peers) = (uppers(facts), peers::with_xdp(facts));
    let mut links = Vec::new();
    for (port, engine) in facts.ports {
        let has_tc = *engine == Engine::Tc;
        // What limits packets that are routed does not limit frames of bridges.
        let is_routed = facts.kernel.bridge_of(*port).is_none();
        let has_xdp = is_routed && matches!(engine, Engine::Auto | Engine::Xdp);
        let bottom = Bottom::Port { has_tc };
        let known = BottomFacts { uppers: &uppers, peers: &peers, bottom, has_tc, has_xdp };
        links.extend(stacks(facts, *port).iter().map(|stack| link(facts, stack, known)));
    }
    for (bridge, engines) in bridges(facts) {
        let has_tc = engines.contains(&Engine::Tc);
        let has_xdp = engines.iter().any(|engine| matches!(engine, Engine::Auto | Engine::Xdp));
        let bottom = Bottom::Bridge;
        let known = BottomFacts { uppers: &uppers, peers: &peers, bottom, has_tc, has_xdp };
        links.extend(stacks(facts, bridge).iter().map(|stack| link(facts, stack, known)));
    }
    links
}

/// The bridges of ports that are no ports themselves, each with what decides about packets of its ports.
fn bridges(facts: &Facts<'_>) -> BTreeMap<Ifindex, Vec<Engine>> {
    let mut bridges: BTreeMap<Ifindex, Vec<Engine>> = BTreeMap::new();
    for (port, engine) in facts.ports {
        let bridge = facts.kernel.bridge_of(*port).map(|(bridge, _)| bridge);
        let is_port = |bridge: &Ifindex| facts.ports.iter().any(|(port, _)| port == bridge);
        if let Some(bridge) = bridge.filter(|bridge| !is_port(bridge)) {
            bridges.entry(bridge).or_default().push(*engine);
        }
    }
    bridges
}

/// The stacks of all links on a port, or on a bridge; the lowest come first.
fn stacks<'a>(facts: &Facts<'a>, bottom: Ifindex) -> Vec<Vec<Layer<'a>>> {
    let stacks = facts.kernel.netdevs.keys().filter_map(|ifindex| stack(facts, *ifindex, bottom));
    let mut stacks: Vec<_> = stacks.collect();
    // A stable sort: devices of one height stay in the order of their numbers.
    stacks.sort_by_key(Vec::len);
    stacks
}

/// A device of a link, with all that is known of it.
struct Layer<'a> {
    ifindex: Ifindex,
    netdev: &'a Netdev,
    /// `None` if the device is new and no query covers it yet.
    found: Option<&'a Device>,
}

/// The devices from a link down to a port, or a bridge, if the link is on that.
fn stack<'a>(facts: &Facts<'a>, ifindex: Ifindex, bottom: Ifindex) -> Option<Vec<Layer<'a>>> {
    let mut stack: Vec<Layer<'a>> = Vec::new();
    let mut next = ifindex;
    while stack.len() < MOST_STACKED {
        let netdev = facts.kernel.netdevs.get(&next)?;
        stack.push(Layer { ifindex: next, netdev, found: facts.probes.devices.get(&next) });
        if next == bottom {
            return Some(stack);
        }
        netdev.vlan?;
        next = netdev.lower?;
    }
    None
}

/// What the links of a stack are on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Bottom {
    /// A port, which has a tc program, or else an XDP program or a socket.
    Port { has_tc: bool },
    /// A bridge. Its ports have the programs, and the reasons about their devices are in [`super::Bridged`].
    Bridge,
}

/// What is the same for all links of a port, or of a bridge.
#[derive(Clone, Copy)]
struct BottomFacts<'a> {
    /// By device, why other devices take its frames first.
    uppers: &'a Reasons,
    /// By device, why its peers must not get packets from a tc program.
    peers: &'a Reasons,
    bottom: Bottom,
    /// The port, or one of the bridge, has a tc program.
    has_tc: bool,
    /// It, or one of the bridge, may have an XDP program that decides about packets to route.
    has_xdp: bool,
}

fn link(facts: &Facts<'_>, stack: &[Layer<'_>], known: BottomFacts<'_>) -> Link {
    let BottomFacts { uppers, peers, bottom, has_tc, has_xdp } = known;
    let (Some(top), Some(port)) = (stack.first(), stack.last()) else { return Link::default() };
    let vrf = vrf(facts, top.netdev);
    let sysctls = facts.sysctls.link(&top.netdev.name);
    let both_ways = both_ways(facts, stack, bottom);
    let incoming = incoming(facts, stack, (uppers, bottom, has_tc));
    let mut outgoing = outgoing(stack);
    // Of a bridge, each port has this reason for itself.
    if has_tc && bottom != Bottom::Bridge {
        outgoing.extend(peers.get(&port.ifindex).into_iter().flatten().cloned());
    }
    let of_family = |way: &[Reason], own: Vec<Reason>| [&both_ways, way, &own].concat();
    let is_of_frames = |reason: &Reason| !matches!(reason, Reason::Member { .. });
    let frames = [&both_ways[..], &incoming, &outgoing].concat();
    let frames = frames.into_iter().filter(is_of_frames).collect();
    let mut arrives =
        PerFamily::each(|family| of_family(&incoming, arrives(&top.netdev.name, family, &sysctls)));
    for family in [Family::V4, Family::V6] {
        let found =
            port.found.and_then(|found| general::own_hash(facts, family, &port.netdev.name, found));
        arrives.of_mut(family).extend(found);
    }
    if has_tc {
        for family in [Family::V4, Family::V6] {
            arrives.of_mut(family).extend(limit_of_tc(facts, stack, family));
        }
    }
    let tc_exits = if has_xdp { limits_beside(facts, stack) } else { Vec::new() };
    Link {
        ifindex: top.ifindex,
        name: top.netdev.name.clone(),
        port: port.ifindex,
        is_on_bridge: bottom == Bottom::Bridge,
        vrf: vrf.map(str::to_owned),
        up: stack.iter().all(|layer| layer.netdev.flags & (UP | LOWER_UP) == UP | LOWER_UP),
        is_new: stack.iter().any(|layer| layer.found.is_none()),
        arrives,
        leaves: PerFamily::each(|family| {
            of_family(&outgoing, leaves(&top.netdev.name, family, &sysctls))
        }),
        tc_exits,
        frames,
    }
}

/// Why a tc program beside the XDP program of a link forwards nothing: what limits tc programs, limits it.
fn limits_beside(facts: &Facts<'_>, stack: &[Layer<'_>]) -> Vec<Reason> {
    let limits = [Family::V4, Family::V6].map(|family| limit_of_tc(facts, stack, family));
    let qos = stack.iter().filter_map(|layer| {
        let name = || layer.netdev.name.clone();
        match layer.found {
            Some(found) => found.ingress_qos.then(|| Reason::IngressQos(name())),
            None => Some(Reason::Unknown("priorities", format!("{} is new", name()))),
        }
    });
    limits.into_iter().flatten().chain(qos).collect()
}

/// Why a tc program decides about nothing of a family that arrives by a link.
fn limit_of_tc(facts: &Facts<'_>, stack: &[Layer<'_>], family: Family) -> Option<Reason> {
    let device = stack.first()?.netdev.name.clone();
    let is_egress = |(hook, _): &(Hook, String)| *hook == Hook::Egress;
    // The kernel evaluates them when the program has sent a packet.
    let has_egress =
        matches!(facts.firewall, Firewall::Read(rules) if rules.at_devices.iter().any(is_egress));
    let what = if has_egress {
        "leaves chains of nftables at the hook egress to the kernel"
    } else if layer3_port(stack).is_some()
        && matches!(facts.firewall, Firewall::Read(rules) if rules.of_ethernet)
    {
        "takes all packets for Ethernet's in rules about its header"
    } else if family == Family::V4 && facts.sysctls.global.keeps_priority {
        "sets priorities by the type of service (net.ipv4.ip_fwd_update_priority is 0)"
    } else {
        return None;
    };
    Some(Reason::Engine { device, what })
}

/// The VRF that a device is in.
fn vrf<'a>(facts: &Facts<'a>, netdev: &Netdev) -> Option<&'a str> {
    facts.kernel.vrf_of(netdev).map(|(_, vrf)| vrf.name.as_str())
}

/// The reasons about arriving packets that hold for both families.
fn incoming(
    facts: &Facts<'_>,
    stack: &[Layer<'_>],
    (uppers, bottom, has_tc): (&Reasons, Bottom, bool),
) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let port = stack.last().map(|port| port.ifindex);
    for layer in stack {
        reasons.extend(uppers.get(&layer.ifindex).into_iter().flatten().cloned());
        let name = || layer.netdev.name.clone();
        // At a port, the tc program lets those of others see the packets first.
        let is_behind = bottom == Bottom::Port { has_tc: true };
        let comes_last = is_behind && port == Some(layer.ifindex);
        let filters = layer.found.map(|found| match comes_last {
            true => &found.filters_behind,
            false => &found.filters_in,
        });
        add_if(filters, "tc filters", || Reason::FiltersIn(name()), &mut reasons);
        // The program runs before the VLAN device sets the priority that qdiscs go by.
        if has_tc && layer.found.is_some_and(|found| found.ingress_qos) {
            reasons.push(Reason::IngressQos(name()));
        }
    }
    if let Err(why) = &facts.probes.foreign_uppers {
        reasons.push(Reason::Unknown("devices in other network namespaces", why.0.clone()));
    }
    reasons
}

/// The reasons about arriving packets of a device for one family.
fn arrives(name: &str, family: Family, sysctls: &LinkSysctls) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let (has, forwards, sysctl) = match family {
        Family::V4 => {
            (sysctls.has4, sysctls.forward4, format!("net.ipv4.conf.{name}.forwarding = 0"))
        }
        Family::V6 => {
            (sysctls.has6, sysctls.forward6, "net.ipv6.conf.all.forwarding = 0".to_owned())
        }
    };
    if !has {
        reasons.push(Reason::NoFamily(family, name.to_owned()));
    } else if !forwards {
        reasons.push(Reason::ForwardingOff(sysctl));
    }
    if family == Family::V4 && sysctls.route_localnet {
        reasons.push(Reason::RouteLocalnet(name.to_owned()));
    }
    reasons
}

/// The port of a link, if that is a layer-3 device.
fn layer3_port<'a>(stack: &[Layer<'a>]) -> Option<&'a Netdev> {
    stack.last().map(|port| port.netdev).filter(|netdev| netdev.is_layer3)
}

/// The reasons about leaving packets that hold for both families.
fn outgoing(stack: &[Layer<'_>]) -> Vec<Reason> {
    let mut reasons = Vec::new();
    // `icmp_send` needs the packet's route (`skb_rtable`), which it does not have behind a program. To a tun device,
    // the kernel sends no such answers.
    if let Some(netdev) = layer3_port(stack).filter(|netdev| netdev.kind.as_deref() != Some("tun"))
    {
        reasons.push(Reason::Tunnel(netdev.name.clone()));
    }
    for Layer { netdev, found, .. } in stack {
        let name = || netdev.name.clone();
        let filters = found.map(|found| &found.filters_out);
        add_if(filters, "tc filters", || Reason::FiltersOut(name()), &mut reasons);
        match found.map(|found| &found.qdisc) {
            Some(Ok(Some(kind))) => {
                reasons.push(Reason::Qdisc { device: name(), kind: kind.clone() });
            }
            Some(Err(why)) => reasons.push(Reason::Unknown("queueing disciplines", why.0.clone())),
            Some(Ok(None)) | None => {}
        }
        if found.is_some_and(|found| found.egress_qos) {
            reasons.push(Reason::EgressQos(name()));
        }
    }
    reasons
}

/// The reasons about leaving packets of a device for one family.
fn leaves(name: &str, family: Family, sysctls: &LinkSysctls) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let has = match family {
        Family::V4 => sysctls.has4,
        Family::V6 => sysctls.has6,
    };
    if !has {
        reasons.push(Reason::NoFamily(family, name.to_owned()));
    }
    let follows = match family {
        Family::V4 => sysctls.redirected4,
        Family::V6 => sysctls.redirected6,
    };
    if follows {
        reasons.push(Reason::Redirected(family, name.to_owned()));
    }
    reasons
}

/// Adds a reason if the query found something, or failed.
fn add_if(
    result: Option<&QueryResult<bool>>,
    what: &'static str,
    reason: impl Fn() -> Reason,
    reasons: &mut Vec<Reason>,
) {
    match result {
        Some(Ok(true)) => reasons.push(reason()),
        Some(Err(why)) => reasons.push(Reason::Unknown(what, why.0.clone())),
        Some(Ok(false)) | None => {}
    }
}

/// The reasons that hold for both directions.
fn both_ways(facts: &Facts<'_>, stack: &[Layer<'_>], bottom: Bottom) -> Vec<Reason> {
    let mut reasons = Vec::new();
    let room = stack.last().and_then(|port| facts.rooms.get(&port.ifindex));
    let most = room.copied().unwrap_or(u32::MAX).min(facts.most_mtu);
    for layer in stack {
        device(facts, layer, (bottom, most), &mut reasons);
    }
    if let (Some(top), Some(port)) = (stack.first(), stack.last()) {
        if top.netdev.mac != port.netdev.mac {
            reasons.push(Reason::OwnMac(top.netdev.name.clone()));
        }
        if stack.len() > MOST_TAGS + 1 {
            reasons.push(Reason::TooManyTags(top.netdev.name.clone()));
        }
    }
    reasons
}

/// Adds the reasons about one device of a link.
fn device(
    facts: &Facts<'_>,
    layer: &Layer<'_>,
    (bottom, most): (Bottom, u32),
    reasons: &mut Vec<Reason>,
) {
    let has_tc = bottom == Bottom::Port { has_tc: true };
    let Layer { netdev, found, .. } = layer;
    let name = || netdev.name.clone();
    let Some(found) = found else {
        reasons.push(Reason::Unknown("what is on the device", format!("{} is new", name())));
        return;
    };
    if let Some(master) = netdev.master {
        reasons.extend(member(facts, netdev, master));
    }
    let kind = netdev.kind.as_deref();
    let is_link = netdev.vlan.is_some()
        || bottom == Bottom::Bridge
        || kind.is_none_or(|kind| PORTS.contains(&kind) || has_tc && Engine::suits_tc(kind));
    let is_layer3 = has_tc && netdev.is_layer3;
    if !found.ethernet && !is_layer3 {
        reasons.push(Reason::NotEthernet(name()));
    } else if let Some(kind) = kind.filter(|_| !is_link) {
        reasons.push(Reason::Kind { device: name(), kind: kind.to_owned() });
    }
    if netdev.flags & NOARP != 0 && !is_layer3 {
        reasons.push(Reason::NoArp(name()));
    }
    if found.keeps_tags {
        reasons.push(Reason::KeepsTags(name()));
    }
    if found.external {
        reasons.push(Reason::External(name()));
    }
    match bottom {
        Bottom::Port { has_tc: false } => device_of_xdp((netdev, found), most, reasons),
        // A tc program sees the tag of a frame, the state of its checksum, and frames of any length.
        Bottom::Port { has_tc: true } => {}
        Bottom::Bridge => other_xdp((netdev, found), reasons),
    }
}

/// Adds the reason that somebody else has an XDP program on a device.
fn other_xdp((netdev, found): (&Netdev, &Device), reasons: &mut Vec<Reason>) {
    match &found.own_xdp {
        Err(why) => reasons.push(Reason::Unknown("whose the XDP program is", why.0.clone())),
        Ok(own) if found.xdp != *own => reasons.push(Reason::OtherXdp(netdev.name.clone())),
        Ok(_) => {}
    }
}

/// Adds the reasons about a device that an XDP program, or a socket, would have.
fn device_of_xdp((netdev, found): (&Netdev, &Device), most: u32, reasons: &mut Vec<Reason>) {
    let name = || netdev.name.clone();
    other_xdp((netdev, found), reasons);
    match &found.tags {
        Tags::Kept => {}
        Tags::Stripped => reasons.push(Reason::StripsTags(name())),
        Tags::ByPeer(peer) => {
            reasons.push(Reason::PeerTags { device: name(), peer: Some(peer.clone()) });
        }
        Tags::ByPeerElsewhere => reasons.push(Reason::PeerTags { device: name(), peer: None }),
    }
    match &found.checksums {
        Checksums::Whole => {}
        Checksums::ByPeer(peer) => {
            reasons.push(Reason::PeerChecksums { device: name(), peer: Some(peer.clone()) });
        }
        Checksums::ByPeerElsewhere => {
            reasons.push(Reason::PeerChecksums { device: name(), peer: None });
        }
        Checksums::ByOwner => reasons.push(Reason::OwnerChecksums(name())),
    }
    if netdev.mtu > most {
        reasons.push(Reason::LargeMtu { device: name(), mtu: netdev.mtu, most });
    }
}

/// The reason that the device has a master, unless that is a VRF.
fn member(facts: &Facts<'_>, netdev: &Netdev, master: Ifindex) -> Option<Reason> {
    let known = facts.kernel.netdevs.get(&master);
    if known.is_some_and(|master| master.vrf_table.is_some()) {
        return None;
    }
    let kind = known.and_then(|master| master.kind.clone());
    Some(Reason::Member {
        device: netdev.name.clone(),
        kind: kind.unwrap_or_else(|| "device".to_owned()),
        master: known.map_or_else(|| format!("number {master}"), |master| master.name.clone()),
    })
}

/// Reasons by device.
type Reasons = BTreeMap<Ifindex, Vec<Reason>>;

/// For each device, finds the devices on it that take its frames first: once for all links, for there may be thousands of
/// links, and of devices.
fn uppers(facts: &Facts<'_>) -> Reasons {
    let below = |lower: Ifindex, kind: &str| {
        let netdev = facts.kernel.netdevs.get(&lower).filter(|_| !HARMLESS.contains(&kind));
        netdev.map(|netdev| netdev.name.clone())
    };
    let mut uppers = Reasons::new();
    for upper in facts.kernel.netdevs.values() {
        let Some(lower) = upper.lower else { continue };
        let kind = upper.kind.as_deref().unwrap_or("device");
        if let Some(device) = below(lower, kind) {
            let (kind, upper) = (kind.to_owned(), upper.name.clone());
            uppers.entry(lower).or_default().push(Reason::Upper { device, kind, upper });
        }
    }
    for ForeignUpper { lower, kind, name, namespace, .. } in
        facts.probes.foreign_uppers.iter().flatten()
    {
        if let Some(device) = below(*lower, kind) {
            let (kind, upper, namespace) = (kind.clone(), name.clone(), *namespace);
            let reason = Reason::UpperElsewhere { device, kind, upper, namespace };
            uppers.entry(*lower).or_default().push(reason);
        }
    }
    uppers
}
