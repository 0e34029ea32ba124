//! The plan: the content of the tables, apart from routes, neighbours and the firewall's rules.
//!
//! When a device, address, rule or setting changes, the controller derives a new [`Plan`] from all
//! that it knows. It compares the plan with the active one. If the [topology](Plan::topology) differs,
//! it rebuilds the tables. It [applies](Plan::apply) everything else to the tables in use.

use std::collections::{BTreeMap, HashMap};
use std::net::{IpAddr, Ipv4Addr};

use tollway_dataplane::id::{LinkId, PortId, VrfId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::bridge::BridgePort;
use tollway_dataplane::stages::ecmp::Hash;
use tollway_dataplane::stages::rule::{PolicyAction, PolicyRule};
use tollway_dataplane::stages::source_check::{Rpf, SourceCheck, SourceLookup};
use tollway_dataplane::tables::{Tables, TablesError};

use super::bridges;
use super::fib_sync::{EgressLink, EgressLinks};
use super::kernel::{Family, Ifindex, Kernel, Netdev};
use super::lookup_chains::{BaseTable, LookupChains, PolicyLine};
use super::offload::{self, Offload, PathKind, PerFamily};
use super::ports::Port;
use super::rib::MAIN;
use super::sysctl::{LinkSysctls, Sysctls};
use tollway_model::{
    self, AfXdpMode, BridgeMember, Choice, KernelRules, Link, LinkIndex, LinkKind, Model,
    PortIndex, PortKind, VrfIndex, XdpPathMode,
};
use tollway_net::{KernelPath, Mac, VlanProtocol};

/// The facts that a plan is derived from.
pub(super) struct Facts<'a> {
    pub(super) ports: &'a [Port],
    pub(super) kernel: &'a Kernel,
    pub(super) sysctls: &'a Sysctls,
    pub(super) offload: &'a Offload,
    pub(super) lookup_chains: &'a LookupChains,
    pub(super) sticky_flags: StickyFlags,
    pub(super) xdp_path: (XdpPathMode, u32),
}

/// States of the kernel that last once they have been entered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct StickyFlags {
    /// There were IPv4 rules other than the first three (`fib_has_custom_rules`).
    pub(super) rules: bool,
    /// An IPv4 local route was added by hand (`fib_has_custom_local_routes`).
    pub(super) local_routes: bool,
    /// There were routes with several next hops.
    pub(super) groups: PerFamily<bool>,
}

/// The content of the tables, apart from routes, neighbours and the firewall's rules.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Plan {
    /// The part that cannot be changed in place.
    pub(super) topology: Topology,
    /// The egress links: those by which packets may be sent.
    pub(super) egress_links: EgressLinks,
    /// The checks of packets, by ingress link.
    links: Vec<Ingress>,
    /// The ports of bridges that forward.
    bridge_ports: BTreeMap<PortId, BridgePort>,
    /// The router's own IPv4 addresses, and its broadcast addresses.
    own4: Vec<Ipv4Addr>,
    broadcast4: Vec<Ipv4Addr>,
    multipath: Multipath,
}

/// How packets are spread over the next hops of a group.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Multipath {
    /// The fields by which the hash distinguishes flows of IPv4, and of IPv6.
    hash4: Hash,
    hash6: Hash,
    /// The seed of the hash.
    seed: u32,
}

/// The part of a plan that cannot be changed in tables that are in use.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Topology {
    /// Ports, links and the VRF devices that they belong to; the model's VRFs are the lookup chains.
    pub(super) model: Model,
    /// The device of each link; none where a port's device has gone.
    pub(super) devices: Vec<Option<Ifindex>>,
    /// The lookup chains, by VRF of the model.
    pub(super) lookup_chains: LookupChains,
}

/// How packets that arrive by a link are checked and looked up.
#[derive(Clone, Debug, Default, PartialEq)]
struct Ingress {
    kernel_path: KernelPath,
    policy: Vec<PolicyRule>,
    source: SourceCheck,
    lookup: SourceLookup,
    redirects: (bool, bool),
    /// Largest IPv6 packet that leaves by the link, if it differs from the link's MTU.
    mtu6: Option<u16>,
}

impl Plan {
    /// The plan that follows from the facts.
    pub(super) fn of(facts: &Facts<'_>) -> Self {
        let mut build = Build { facts, model: Model::default(), devices: Vec::new() };
        build.links();
        let Build { mut model, devices, .. } = build;
        (model.xdp_path, model.xdp_flows) = facts.xdp_path;
        model.vrfs = lookup_chains(facts);
        let links = model.links.iter_mut().zip(&devices).map(|(link, device)| {
            let ingress = device.map_or_else(Ingress::absent, |device| ingress(facts, device));
            // This is set in place, so it is no part of the topology.
            link.kernel_path = KernelPath::default();
            ingress
        });
        let links: Vec<_> = links.collect();
        // Beside links and VRFs, the compiler of rules needs these.
        model.kernel_rules = Some(KernelRules { vrf_devices: vrf_devices(facts.kernel, &links) });
        let egress_links = egress_links(facts, &devices);
        let topology = Topology {
            model,
            devices,
            lookup_chains: LookupChains { links: BTreeMap::new(), ..facts.lookup_chains.clone() },
        };
        let (own4, broadcast4) = addresses(facts.kernel);
        let global = &facts.sysctls.global;
        let hash = |policy| if policy == 0 { Hash::L3 } else { Hash::L4 };
        let multipath = Multipath {
            hash4: hash(global.multipath4),
            hash6: hash(global.multipath6),
            seed: global.multipath_seed.unwrap_or_default(),
        };
        let bridge_ports = bridges::ports(&topology.model, facts.ports, &facts.offload.bridged);
        Self { topology, egress_links, links, bridge_ports, own4, broadcast4, multipath }
    }

    /// The model for the dispatcher: it names the traffic of the kernel path, and these addresses of the host.
    pub(super) fn model(&self, own: Vec<IpAddr>) -> Model {
        let mut model = Model { own, ..self.topology.model.clone() };
        for (link, ingress) in model.links.iter_mut().zip(&self.links) {
            link.kernel_path = ingress.kernel_path;
        }
        model
    }

    /// Sets all that is not part of the topology, where it differs from `has`, the plan that the tables have.
    pub(super) fn apply(&self, tables: &mut Tables, has: Option<&Self>) -> Result<(), TablesError> {
        let bare = Ingress::default();
        for (index, link) in self.links.iter().enumerate() {
            let Ok(id) = u16::try_from(index).map(LinkId) else { break };
            let had = has.and_then(|has| has.links.get(index)).unwrap_or(&bare);
            if link.kernel_path != had.kernel_path {
                tables.set_kernel_link(id, link.kernel_path.v4, link.kernel_path.v6)?;
            }
            if link.policy != had.policy {
                tables.set_policy(id, link.policy.clone())?;
            }
            if link.source != had.source {
                tables.set_source(id, link.source)?;
            }
            if link.lookup != had.lookup {
                tables.set_source_lookup(id, link.lookup)?;
            }
            if link.mtu6 != had.mtu6 {
                let mtu = self.topology.model.links.get(index).map_or(0, |link| link.mtu);
                tables.set_mtu6(id, link.mtu6.unwrap_or(mtu))?;
            }
            if link.redirects != had.redirects {
                tables.set_redirects(id, link.redirects.0, link.redirects.1)?;
            }
        }
        let had = has.map(|has| &has.bridge_ports);
        for (port, forwards) in bridges::changes(had, &self.bridge_ports) {
            tables.set_bridge_port(port, forwards)?;
        }
        if has.is_none_or(|has| has.own4 != self.own4) {
            tables.set_own_addresses(&self.own4);
        }
        if has.is_none_or(|has| has.broadcast4 != self.broadcast4) {
            tables.set_broadcast_addresses(&self.broadcast4);
        }
        if has.is_none_or(|has| has.multipath != self.multipath) {
            let Multipath { hash4, hash6, seed } = self.multipath;
            tables.set_multipath(hash4, hash6);
            tables.set_multipath_seed(seed);
        }
        Ok(())
    }
}

impl Ingress {
    /// For a port whose device has gone.
    fn absent() -> Self {
        let kernel_path = KernelPath { v4: true, v6: true, ..KernelPath::default() };
        Self { kernel_path, ..Self::default() }
    }
}

/// Ports and links under construction.
struct Build<'a> {
    facts: &'a Facts<'a>,
    model: Model,
    devices: Vec<Option<Ifindex>>,
}

impl Build<'_> {
    fn links(&mut self) {
        for (index, port) in self.facts.ports.iter().enumerate() {
            let device = port.name.clone();
            let Choice { engine, because } = port.choice.clone();
            let kind = PortKind::AfXdp { device, mode: AfXdpMode::Best, engine, because };
            self.model.ports.push(tollway_model::Port { name: port.name.clone(), kind });
            let member = port.device.and_then(|device| {
                let (bridge, _) = self.facts.kernel.bridge_of(device)?;
                Some((PortIndex(index), BridgeMember { device, bridge }))
            });
            self.model.bridge_ports.extend(member);
            let kind = LinkKind::Port(PortIndex(index));
            // Rules use the device's present name.
            let device = port.device.and_then(|device| self.facts.kernel.netdevs.get(&device));
            let name = device.map_or(&port.name, |device| &device.name).clone();
            self.push(name, kind, (port.mac, port.mtu), port.device);
        }
        for link in &self.facts.offload.links {
            if link.ifindex != link.port {
                self.vlan(link);
            } else if link.is_on_bridge {
                self.bridge(link);
            }
        }
    }

    fn bridge(&mut self, link: &offload::Link) {
        let Some(netdev) = self.facts.kernel.netdevs.get(&link.ifindex) else { return };
        let kind = LinkKind::Bridge { device: link.ifindex };
        let mac = Mac(netdev.mac.unwrap_or_default());
        self.push(link.name.clone(), kind, (mac, netdev.mtu), Some(link.ifindex));
    }

    fn vlan(&mut self, link: &offload::Link) {
        let Some(netdev) = self.facts.kernel.netdevs.get(&link.ifindex) else { return };
        let Netdev { vlan: Some((vid, protocol)), lower, mac, mtu, .. } = netdev else { return };
        let Some(parent) = self.devices.iter().position(|device| *device == *lower) else { return };
        let protocol = match *protocol == VlanProtocol::Dot1ad.ethertype() {
            true => VlanProtocol::Dot1ad,
            false => VlanProtocol::Dot1q,
        };
        let kind = LinkKind::Vlan { parent: LinkIndex(parent), vid: *vid, protocol };
        let mac = mac.map_or(self.model.links[parent].mac, Mac);
        self.push(link.name.clone(), kind, (mac, *mtu), Some(link.ifindex));
    }

    fn push(&mut self, name: String, kind: LinkKind, of: (Mac, u32), device: Option<Ifindex>) {
        let lookup_chain = device.and_then(|device| self.facts.lookup_chains.links.get(&device));
        self.model.links.push(Link {
            name,
            kind,
            mac: of.0,
            mac_given: true,
            mtu: u16::try_from(of.1).unwrap_or(u16::MAX),
            vrf: VrfIndex(lookup_chain.map_or(0, |ingress| ingress.lookup_chain)),
            addresses: Vec::new(),
            kernel_path: KernelPath::default(),
        });
        self.devices.push(device);
    }
}

/// The lookup chains with names for people: after the VRF or table that is their base.
fn lookup_chains(facts: &Facts<'_>) -> Vec<tollway_model::Vrf> {
    let vrfs = facts.kernel.netdevs.values();
    let vrfs: HashMap<u32, &str> =
        vrfs.filter_map(|dev| Some((dev.vrf_table?, dev.name.as_str()))).collect();
    let mut names: Vec<tollway_model::Vrf> = Vec::new();
    for (number, lookup_chain) in facts.lookup_chains.lookup_chains.iter().enumerate() {
        let base = lookup_chain.v4.or(lookup_chain.v6).map(|item| item.base);
        let mut name = match base {
            Some(BaseTable::Table(MAIN)) => "main".to_owned(),
            Some(BaseTable::Table(table)) => match vrfs.get(&table) {
                Some(vrf) => (*vrf).to_owned(),
                None => format!("table {table}"),
            },
            Some(BaseTable::All(_)) | None => format!("view {number}"),
        };
        if names.iter().any(|other| other.name == name) {
            name = format!("{name} (view {number})");
        }
        names.push(tollway_model::Vrf { name });
    }
    names
}

fn egress_links(facts: &Facts<'_>, devices: &[Option<Ifindex>]) -> EgressLinks {
    let works = |device| {
        let link = facts.offload.links.iter().find(|link| link.ifindex == device);
        let Some(offload::Link { port, is_on_bridge, .. }) = link else { return false };
        let is_on = |own: Ifindex| {
            let bridge = || facts.kernel.bridge_of(own).map(|(bridge, _)| bridge);
            own == *port || *is_on_bridge && bridge() == Some(*port)
        };
        facts.ports.iter().any(|own| own.works && own.device.is_some_and(is_on))
    };
    let may =
        |device, family| facts.offload.leaves(device, family) == PathKind::Fast && works(device);
    let links = devices.iter().enumerate().filter_map(|(index, device)| {
        let (device, link) = ((*device)?, LinkId(u16::try_from(index).ok()?));
        let is_layer3 = facts.kernel.netdevs.get(&device).is_some_and(|netdev| netdev.is_layer3);
        let (v4, v6) = (may(device, Family::V4), may(device, Family::V6));
        let egress_link = EgressLink { link, v4, v6, is_layer3 };
        Some((device, egress_link))
    });
    EgressLinks {
        links: links.collect(),
        kernel_groups4: !facts.offload.groups.v4.is_empty(),
        kernel_groups6: !facts.offload.groups.v6.is_empty(),
    }
}

fn ingress(facts: &Facts<'_>, device: Ifindex) -> Ingress {
    let takes_kernel_path = |family| facts.offload.arrives(device, family) == PathKind::Kernel;
    let Some(netdev) = facts.kernel.netdevs.get(&device) else { return Ingress::absent() };
    let sysctls = facts.sysctls.link(&netdev.name);
    let policy = facts.lookup_chains.links.get(&device).map(|ingress| ingress.policy.as_slice());
    // IPv6 has no source check.
    let mut rules = facts.kernel.rules.iter().filter(|rule| rule.family == Family::V4);
    let by_input = rules.any(|rule| rule.iif.is_some());
    Ingress {
        kernel_path: KernelPath {
            v4: takes_kernel_path(Family::V4),
            v6: takes_kernel_path(Family::V6),
            fragments4: facts.offload.fragments.v4.is_some(),
            fragments6: facts.offload.fragments.v6.is_some(),
            tc_exits: facts.offload.keeps_tc_exits(device),
            tracked4: facts.offload.tracked.v4.is_some(),
            tracked6: facts.offload.tracked.v6.is_some(),
        },
        policy: policy.unwrap_or_default().iter().map(rule).collect(),
        source: SourceCheck {
            own: !sysctls.accept_local,
            rpf: rpf(facts, &sysctls, device),
            martians_to_kernel: sysctls.log_martians,
        },
        lookup: SourceLookup {
            mark: sysctls.src_valid_mark,
            by_input,
            vrf_device: facts.kernel.vrf_of(netdev).map(|(index, _)| index),
        },
        redirects: (sysctls.redirects4, sysctls.redirects6),
        mtu6: sysctls.mtu6.filter(|mtu| *mtu < netdev.mtu).and_then(|mtu| u16::try_from(mtu).ok()),
    }
}

/// For each link the VRF device that its device belongs to, if any.
fn vrf_devices(kernel: &Kernel, links: &[Ingress]) -> Vec<Option<String>> {
    let vrf = |link: &Ingress| {
        let vrf = kernel.netdevs.get(&link.lookup.vrf_device?)?;
        Some(vrf.name.clone())
    };
    links.iter().map(vrf).collect()
}

/// The mode of reverse path filtering, as `__fib_validate_source` finds it for packets of a device.
fn rpf(facts: &Facts<'_>, sysctls: &LinkSysctls, device: Ifindex) -> Rpf {
    let mut addresses = facts.kernel.addresses.iter();
    let has_address =
        addresses.any(|address| address.ifindex == device && address.address.addr().is_ipv4());
    match sysctls.rp_filter {
        0 if facts.sticky_flags.rules || facts.sticky_flags.local_routes => Rpf::Kind,
        0 => Rpf::Off,
        _ if !has_address => Rpf::Unnumbered,
        2 => Rpf::Loose,
        _ => Rpf::Strict,
    }
}

fn rule(line: &PolicyLine) -> PolicyRule {
    let prefix = |net: ipnet::IpNet| RoutePrefix::new(net.addr(), net.prefix_len());
    let family = line.family.map(|family| RoutePrefix::all(family == Family::V4));
    let (src, dst) = (line.src.map(prefix), line.dst.map(prefix));
    PolicyRule {
        src,
        dst: dst.or(family.filter(|_| src.is_none())),
        mark: line.mark,
        action: match u16::try_from(line.lookup_chain) {
            Ok(lookup_chain) => PolicyAction::View(VrfId(lookup_chain)),
            Err(_) => PolicyAction::Punt,
        },
    }
}

/// The host's own IPv4 addresses, and its broadcast addresses, each once.
fn addresses(kernel: &Kernel) -> (Vec<Ipv4Addr>, Vec<Ipv4Addr>) {
    let own = kernel.addresses.iter().filter_map(|address| match address.address.addr() {
        IpAddr::V4(v4) => Some(v4),
        IpAddr::V6(_) => None,
    });
    let broadcast = kernel.addresses.iter().filter_map(|address| address.broadcast);
    let once = |mut addresses: Vec<Ipv4Addr>| {
        addresses.sort_unstable();
        addresses.dedup();
        addresses
    };
    (once(own.collect()), once(broadcast.collect()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_model::Engine;

    /// The plan of a router with one port, whose device belongs to a VRF device or to none. No rule
    /// looks up tables of VRFs.
    fn plan(vrf: Option<Ifindex>) -> Plan {
        let mut kernel = Kernel::default();
        let netdev = |name: &str| Netdev { name: name.to_owned(), ..Netdev::default() };
        let port = Netdev { master: vrf, ..netdev("port") };
        let ports = [Port::new(2, &port, Choice::selected(Engine::Auto))];
        kernel.netdevs.insert(2, port);
        for (index, name) in [(8, "red"), (9, "blue")] {
            kernel.netdevs.insert(index, Netdev { vrf_table: Some(index), ..netdev(name) });
        }
        Plan::of(&Facts {
            ports: &ports,
            kernel: &kernel,
            sysctls: &Sysctls::default(),
            offload: &Offload::default(),
            lookup_chains: &LookupChains::of(&kernel, [2], |_, _| true),
            sticky_flags: StickyFlags::default(),
            xdp_path: (XdpPathMode::Off, 0),
        })
    }

    #[test]
    fn another_vrf_device_of_a_link_rebuilds_the_rules() {
        let shapes = [None, Some(8), Some(9)].map(plan);
        let devices = shapes.each_ref().map(|plan| {
            let rules = plan.topology.model.kernel_rules.as_ref().unwrap();
            rules.vrf_devices.clone()
        });
        let named = |name: &str| vec![Some(name.to_owned())];
        assert_eq!(devices, [vec![None], named("red"), named("blue")]);
        assert!(
            shapes[0].topology != shapes[1].topology && shapes[1].topology != shapes[2].topology
        );
        assert_eq!(shapes[1], plan(Some(8)));
    }
}
