//! The ports that belong to bridges: which of their frames the programs forward, and why the kernel forwards the others.
//!
//! A program forwards frames of a known host to a known host as `br_handle_frame`, `br_forward` and `br_netfilter` do. All
//! else is the kernel's: a setting that makes it do anything more with known unicast is a reason here.

use std::collections::BTreeMap;
use std::time::Duration;

use super::probe::ForeignUpper;
use super::reason::BridgeWork;
use super::{Facts, Firewall, Link, PerFamily, Reason, general, idle};
use crate::kernel::{
    BridgePort, BridgePortFlag, BridgePortFlags, BridgePortState, BridgeSettings, Family, Ifindex,
    Netdev, Stp,
};
use tollway_model::Engine;

/// The part of the time that a bridge keeps hosts after which the kernel sees a frame of each host again.
const REFRESHES: u32 = 4;
/// The shortest forward delay of a bridge (`BR_MIN_FORWARD_DELAY`).
const SHORTEST_FORWARD_DELAY: Duration = Duration::from_secs(2);
/// The shortest time between two of these frames: the programs' clock has ticks of 67 ms.
const SHORTEST_REFRESH: Duration = Duration::from_millis(500);
/// With these, bridges show packets in frames of a VLAN, or of PPPoE, to the hooks of IP.
const TAGGED: &str = "net.bridge.bridge-nf-filter-vlan-tagged";
const PPPOE: &str = "net.bridge.bridge-nf-filter-pppoe-tagged";

/// A port that belongs to a bridge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bridged {
    /// Its device, and the device's name.
    pub port: (Ifindex, String),
    /// The bridge.
    pub bridge: (Ifindex, String),
    /// Why the kernel forwards all frames that arrive at the port, or leave by it.
    pub kernel: Vec<Reason>,
    /// What becomes of packets in the frames that are not the kernel's.
    pub ip: PerFamily<BridgedPackets>,
    /// Why the kernel forwards tagged frames, if it does.
    pub tagged: Option<Reason>,
    /// The address of the bridge.
    pub mac: [u8; 6],
    /// The largest packet that leaves by the port, in bytes.
    pub mtu: u32,
    /// The settings of the port.
    pub flags: BridgePortFlags,
    /// Whether the bridge answers neighbour discovery for hosts of some port.
    pub suppresses_nd: bool,
    /// The time after which the kernel sees a frame of each host again.
    pub refresh: Duration,
}

/// What becomes of the packets of a family that a bridge forwards.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum BridgedPackets {
    /// They are frames as all others.
    #[default]
    Plain,
    /// The kernel has no rules for them, but drops malformed ones (`br_netfilter`).
    Validated,
    /// The kernel forwards them.
    Kernel(Reason),
}

impl Bridged {
    /// Whether some frames take the fast path.
    #[must_use]
    pub const fn is_fast(&self) -> bool {
        self.kernel.is_empty()
    }

    /// Whether some do, or would if the port forwarded. A port that has no carrier for a moment keeps its program: many
    /// drivers start their card again for each one.
    fn may_be_fast(&self) -> bool {
        self.obstacle().is_none()
    }

    /// Why no frames take the fast path, whatever the state of the port is.
    pub(super) fn obstacle(&self) -> Option<&Reason> {
        self.kernel.iter().find(|reason| !matches!(reason, Reason::BridgePortState { .. }))
    }
}

/// The ports that belong to bridges, with the links of all ports.
pub(super) fn bridged(facts: &Facts<'_>, links: &[Link]) -> Vec<Bridged> {
    let of_port = |(port, engine): &(Ifindex, Engine)| {
        let netdev = facts.kernel.netdevs.get(port)?;
        let bridge = netdev.master?;
        let master = facts.kernel.netdevs.get(&bridge)?;
        let settings = master.bridge?;
        let link = links.iter().find(|link| link.ifindex == *port)?;
        let of = Member { port: *port, netdev, bridge, master, settings };
        Some(of.bridged(facts, link, *engine))
    };
    facts.ports.iter().filter_map(of_port).collect()
}

/// Adds to the links of bridges what leaves to the kernel all that is routed from there, or to there.
pub(super) fn limit(links: &mut [Link], bridged: &[Bridged]) {
    for link in links.iter_mut().filter(|link| link.is_on_bridge) {
        let ports: Vec<_> = bridged.iter().filter(|of| of.bridge.0 == link.port).collect();
        let fast = || ports.iter().filter(|of| of.may_be_fast());
        let obstacle =
            ports.first().and_then(|of| of.obstacle()).filter(|_| fast().next().is_none());
        let tagged = ports.first().and_then(|of| of.tagged.as_ref());
        let tagged =
            tagged.filter(|_| link.ifindex != link.port && fast().all(|of| of.tagged.is_some()));
        for family in [Family::V4, Family::V6] {
            let arrives = link.arrives.of_mut(family);
            arrives.extend(obstacle.or(tagged).cloned());
            link.leaves.of_mut(family).extend(obstacle.cloned());
            // There, the kernel calls the rules of prerouting a second time (`ip_sabotage_in`).
            if let Some(BridgedPackets::Kernel(reason)) = ports.first().map(|of| of.ip.of(family))
                && link.vrf.is_some()
                && link.ifindex == link.port
            {
                link.arrives.of_mut(family).push(reason.clone());
            }
        }
    }
}

/// Leaves to the kernel the ports whose programs would forward nothing that is worth them.
pub(super) fn leave_needless(
    bridged: &mut [Bridged],
    links: &[Link],
    general: &PerFamily<Vec<Reason>>,
) {
    let mut fast: BTreeMap<Ifindex, usize> = BTreeMap::new();
    for of in bridged.iter().filter(|of| of.may_be_fast()) {
        *fast.entry(of.bridge.0).or_default() += 1;
    }
    let is_routed = |bridge: Ifindex| {
        let mut is_link = links.iter().filter(|link| link.is_on_bridge);
        if !is_link.any(|link| link.port == bridge) {
            return false;
        }
        let mut families = [Family::V4, Family::V6].into_iter();
        families.any(|family| idle::could_be_fast(links, general, bridge, family))
    };
    for of in bridged.iter_mut().filter(|of| of.may_be_fast() && !is_routed(of.bridge.0)) {
        if let (BridgedPackets::Kernel(reason), BridgedPackets::Kernel(_)) = (&of.ip.v4, &of.ip.v6)
        {
            of.kernel.push(reason.clone());
        } else if fast[&of.bridge.0] < 2 {
            of.kernel.push(Reason::OnlyBridgePort(of.bridge.1.clone()));
        }
    }
}

/// What a bridge leaves to the kernel, whatever its ports are.
fn of_bridge(facts: &Facts<'_>, master: &Netdev, settings: &BridgeSettings) -> Vec<Reason> {
    let work = |work| Reason::Bridge { bridge: master.name.clone(), work };
    let mut reasons = Vec::new();
    reasons.extend(settings.vlan_filtering.then(|| work(BridgeWork::Vlans)));
    reasons.extend(master.is_promiscuous.then(|| work(BridgeWork::Copies)));
    reasons.extend((refresh(settings) < SHORTEST_REFRESH).then(|| work(BridgeWork::Ageing)));
    reasons.extend(rules_of_frames(facts));
    reasons.extend(facts.probes.ebtables.then_some(Reason::Ebtables));
    let pppoe = || Reason::BridgeSysctl(PPPOE.to_owned());
    reasons.extend(facts.sysctls.global.bridge_filters_pppoe.then(pppoe));
    reasons
}

/// A port and its bridge.
struct Member<'a> {
    port: Ifindex,
    netdev: &'a Netdev,
    bridge: Ifindex,
    master: &'a Netdev,
    settings: BridgeSettings,
}

impl Member<'_> {
    fn bridged(&self, facts: &Facts<'_>, link: &Link, engine: Engine) -> Bridged {
        let known = facts.kernel.bridge_ports.get(&self.port);
        let flags = known.map_or_else(BridgePortFlags::default, |port| port.flags);
        let refresh = refresh(&self.settings);
        let mut kernel = self.state(known);
        kernel.extend(of_bridge(facts, self.master, &self.settings));
        let has = |flag| known.is_some_and(|port| port.flags.has(flag));
        let tunnels =
            || Reason::Bridge { bridge: self.master.name.clone(), work: BridgeWork::Tunnels };
        kernel.extend(has(BridgePortFlag::VlanTunnel).then(tunnels));
        kernel.extend(link.frames.iter().cloned());
        if !engine.has_bridge_ports() {
            let (device, engine) = (self.netdev.name.clone(), engine.name());
            kernel.push(Reason::BridgeEngine { device, engine });
        }
        let ip = PerFamily::each(|family| self.packets(facts, family));
        Bridged {
            port: (self.port, self.netdev.name.clone()),
            bridge: (self.bridge, self.master.name.clone()),
            kernel,
            ip,
            tagged: self.tagged(facts),
            mac: self.master.mac.unwrap_or_default(),
            mtu: self.netdev.mtu,
            flags,
            suppresses_nd: self.suppresses_nd(facts),
            refresh,
        }
    }

    /// That the port is in a state in which it forwards nothing, if it is.
    fn state(&self, known: Option<&BridgePort>) -> Vec<Reason> {
        match known.map(|port| port.state) {
            Some(BridgePortState::Forwarding) => Vec::new(),
            state => {
                let state = state.unwrap_or(BridgePortState::Disabled);
                vec![Reason::BridgePortState { device: self.netdev.name.clone(), state }]
            }
        }
    }

    /// What becomes of packets of a family.
    fn packets(&self, facts: &Facts<'_>, family: Family) -> BridgedPackets {
        let called = match family {
            Family::V4 => self.settings.nf_call_iptables,
            Family::V6 => self.settings.nf_call_ip6tables,
        };
        let global = &facts.sysctls.global;
        let by_sysctl = match family {
            Family::V4 => global.bridge_calls4,
            Family::V6 => global.bridge_calls6,
        };
        if !called && !by_sysctl {
            return BridgedPackets::Plain;
        }
        match rules_of_packets(facts, family) {
            Some(reason) => BridgedPackets::Kernel(reason),
            None => BridgedPackets::Validated,
        }
    }

    /// Why tagged frames are the kernel's.
    fn tagged(&self, facts: &Facts<'_>) -> Option<Reason> {
        let is_vlan = |upper: &&Netdev| upper.lower == Some(self.port) && upper.vlan.is_some();
        if let Some(upper) = facts.kernel.netdevs.values().find(is_vlan) {
            let (device, kind) = (self.netdev.name.clone(), "vlan".to_owned());
            return Some(Reason::Upper { device, kind, upper: upper.name.clone() });
        }
        let mut elsewhere = facts.probes.foreign_uppers.iter().flatten();
        let is_vlan = |upper: &&ForeignUpper| upper.lower == self.port && upper.kind == "vlan";
        if let Some(upper) = elsewhere.find(is_vlan) {
            let ForeignUpper { kind, name, namespace, .. } = upper;
            let (device, kind) = (self.netdev.name.clone(), kind.clone());
            let (upper, namespace) = (name.clone(), *namespace);
            return Some(Reason::UpperElsewhere { device, kind, upper, namespace });
        }
        let shows = facts.sysctls.global.bridge_filters_tagged;
        shows.then(|| Reason::BridgeSysctl(TAGGED.to_owned()))
    }

    /// Whether a port of the bridge has the bridge answer for its hosts (`br_recalculate_neigh_suppress_enabled`).
    fn suppresses_nd(&self, facts: &Facts<'_>) -> bool {
        let of_bridge = |port: &Ifindex| {
            facts.kernel.netdevs.get(port).is_some_and(|dev| dev.master == Some(self.bridge))
        };
        let answers = |port: &BridgePort| {
            port.flags.has(BridgePortFlag::NeighSuppress)
                || port.flags.has(BridgePortFlag::NeighVlanSuppress)
        };
        facts.kernel.bridge_ports.iter().any(|(port, known)| of_bridge(port) && answers(known))
    }
}

/// How often the kernel has to see a frame of a host that goes on. While the spanning tree changes, a bridge keeps hosts for
/// its forward delay, or for twice that of the root bridge (`hold_time`, `__br_set_topology_change`), of which nobody is
/// told; and if the protocol is switched off then, for longer.
fn refresh(settings: &BridgeSettings) -> Duration {
    let delay = match settings.stp {
        Stp::Off => settings.forward_delay.max(SHORTEST_FORWARD_DELAY),
        Stp::Kernel | Stp::User => SHORTEST_FORWARD_DELAY,
    };
    settings.ageing_time.min(delay) / REFRESHES
}

/// Why all frames are the kernel's: rules of which nobody knows whether they are about them.
fn rules_of_frames(facts: &Facts<'_>) -> Option<Reason> {
    match facts.firewall {
        Firewall::Unread(why) => Some(Reason::RulesUnread(why.clone())),
        Firewall::Read(rules) => rules.of_frames.then_some(Reason::FrameRules),
    }
}

/// Why packets of a family are the kernel's where bridges show them to the hooks of IP: any rule there, or connections that
/// are tracked.
fn rules_of_packets(facts: &Facts<'_>, family: Family) -> Option<Reason> {
    let Firewall::Read(rules) = facts.firewall else { return None };
    let of_hooks = general::of_netfilter(facts, family).into_iter().next();
    let tracked = || {
        let rule = rules.tracking.of(family).as_ref().or(rules.fragments.of(family).as_ref());
        rule.map(|rule| Reason::Conntrack(Some(rule.clone())))
    };
    let any = || rules.of_forwarded.of(family).then_some(Reason::BridgedRules(family));
    of_hooks.or_else(tracked).or_else(any)
}
