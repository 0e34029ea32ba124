use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use proptest::collection::vec;
use proptest::prelude::*;
use tollway_dataplane::next_hops::Action;
use tollway_dataplane::verdict::{DropReason, PuntReason};

use super::*;
use crate::*;
use tollway_firewall::ir::{Base, Chain, Family, Hook, LinkPattern, Policy, Ruleset};
use tollway_net::{KernelPath, Mac, VlanProtocol};

/// What happens to a packet, in the model's terms.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Outcome {
    Local,
    Invalid,
    NoRoute,
    Blackhole,
    Unreachable,
    Prohibit,
    /// Link, neighbour, and whether its Ethernet address is known.
    Neigh(usize, IpAddr, bool),
    Glean(usize),
    Spread(BTreeSet<Outcome>),
}

/// Looks up an address in the model: scans all routes from end to end.
fn naive(model: &Model, vrf: usize, address: IpAddr) -> Outcome {
    let mut best: Option<((u8, u8, u64), Outcome)> = None;
    // Longest first, then local before main, then metric, then order.
    let mut offer = |net: IpNet, class: u8, metric: u64, outcome: Outcome| {
        let rank = (128 - net.prefix_len(), class, metric);
        if net.contains(&address) && best.as_ref().is_none_or(|(old, _)| rank < *old) {
            best = Some((rank, outcome));
        }
    };
    let standing = [
        ("0.0.0.0/32", Outcome::Invalid),
        ("127.0.0.0/8", Outcome::Invalid),
        ("224.0.0.0/4", Outcome::Local),
        ("255.255.255.255/32", Outcome::Local),
        ("::/128", Outcome::Invalid),
        ("::1/128", Outcome::Invalid),
        ("fe80::/10", Outcome::Local),
        ("ff00::/8", Outcome::Local),
    ];
    for (net, outcome) in standing {
        let net: IpNet = net.parse().unwrap();
        if net.contains(&address) {
            return outcome;
        }
    }
    for (index, link) in model.links.iter().enumerate().filter(|(_, link)| link.vrf.0 == vrf) {
        for net in &link.addresses {
            offer(IpNet::from(net.addr()), 0, 0, Outcome::Local);
            match net {
                IpNet::V4(v4) if v4.prefix_len() <= 30 => {
                    offer(IpNet::from(IpAddr::V4(v4.broadcast())), 0, 0, Outcome::Local);
                    offer(*net, 1, 0, Outcome::Glean(index));
                }
                IpNet::V4(_) => offer(*net, 1, 0, Outcome::Glean(index)),
                IpNet::V6(_) => offer(*net, 1, 512, Outcome::Glean(index)),
            }
        }
    }
    for route in model.routes.iter().filter(|route| route.vrf.0 == vrf) {
        let outcome = match &route.target {
            RouteTarget::NextHops(hops) => spread(model, hops),
            RouteTarget::Group(group) => spread(model, &model.groups[group.0].members),
            RouteTarget::Blackhole => Outcome::Blackhole,
            RouteTarget::Unreachable => Outcome::Unreachable,
            RouteTarget::Prohibit => Outcome::Prohibit,
        };
        offer(route.dst, 1, u64::from(route.metric) * 2 + 1, outcome);
    }
    match best {
        None => Outcome::NoRoute,
        Some((_, Outcome::Glean(link))) if known(model, link, address) => {
            Outcome::Neigh(link, address, true)
        }
        Some((_, outcome)) => outcome,
    }
}

fn known(model: &Model, link: usize, address: IpAddr) -> bool {
    model.neighs.iter().any(|neigh| neigh.link.0 == link && neigh.address == address)
}

fn spread(model: &Model, hops: &[NextHop]) -> Outcome {
    let outcome = |hop: &NextHop| match hop.via {
        Some(via) => Outcome::Neigh(hop.link.0, via, known(model, hop.link.0, via)),
        None => Outcome::Glean(hop.link.0),
    };
    match hops {
        [only] => outcome(only),
        _ => Outcome::Spread(hops.iter().map(outcome).collect()),
    }
}

/// Looks up an address in the compiled tables.
fn compiled(tables: &Tables, vrf: usize, address: IpAddr) -> Outcome {
    let next = tables.lookup(VrfId(vrf as u16), address);
    let single = |next| {
        let hop = tables.next_hop(next);
        let link = usize::from(hop.link.0);
        match (hop.action, hop.neigh) {
            (Action::Forward, Some(via)) => Outcome::Neigh(link, via, true),
            (Action::Resolve, Some(via)) => Outcome::Neigh(link, via, false),
            (Action::Glean, None) => Outcome::Glean(link),
            (Action::Local, _) => Outcome::Local,
            (Action::Drop(DropReason::IpInvalidDest), _) => Outcome::Invalid,
            (Action::Drop(DropReason::Blackhole), _) => Outcome::Blackhole,
            (Action::Punt(PuntReason::NoRoute), _) => Outcome::NoRoute,
            (Action::Punt(PuntReason::Unreachable), _) => Outcome::Unreachable,
            (Action::Punt(PuntReason::Prohibit), _) => Outcome::Prohibit,
            other => panic!("no such next hop: {other:?}"),
        }
    };
    if !next.is_group() {
        return single(next);
    }
    let group = next.0 & !NextHopId::GROUP;
    // The narrowest share is 1 of 513, about 4 million of 31 bits. The steps between these hashes
    // are smaller, so every share is found.
    const STEP_BITS: u32 = 21;
    let hashes = (0..1_u32 << (31 - STEP_BITS)).map(|step| step << STEP_BITS);
    Outcome::Spread(hashes.map(|hash| single(tables.routes.groups.select(group, hash))).collect())
}

/// Addresses with few random bits, so that prefixes often contain addresses.
fn address() -> impl Strategy<Value = IpAddr> {
    let v4 = prop_oneof![
        6 => (0..4_u8, 0..4_u8, 0..8_u8).prop_map(|(b, c, d)| Ipv4Addr::new(10, b, c, d)),
        1 => any::<[u8; 4]>().prop_map(Ipv4Addr::from),
        1 => (0..4_u8).prop_map(|d| Ipv4Addr::new(224, 0, 0, d)),
    ];
    let v6 = prop_oneof![
        6 => (0..4_u16, 0..4_u16, 0..8_u16)
            .prop_map(|(b, c, d)| Ipv6Addr::new(0x2001, b, 0, c << 14, 0, 0, 0, d)),
        1 => any::<[u8; 16]>().prop_map(Ipv6Addr::from),
        1 => (0..4_u16).prop_map(|d| Ipv6Addr::new(0xfe80, 0, 0, 0, 0, 0, 0, d)),
    ];
    prop_oneof![v4.prop_map(IpAddr::V4), v6.prop_map(IpAddr::V6)]
}

fn net() -> impl Strategy<Value = IpNet> {
    (address(), prop_oneof![0..=32_u8, 24..=32_u8], any::<bool>()).prop_map(
        |(address, len, deep)| {
            let len = if address.is_ipv6() && deep { 96 + len } else { len };
            IpNet::new(address, len).unwrap()
        },
    )
}

fn hop(links: usize) -> impl Strategy<Value = NextHop> {
    (proptest::option::weighted(0.8, address()), 0..links, 1..=256_u16)
        .prop_map(|(via, link, weight)| NextHop { via, link: LinkIndex(link), weight })
}

const LINKS: usize = 5;
const VRFS: usize = 2;

fn target() -> impl Strategy<Value = RouteTarget> {
    prop_oneof![
        4 => vec(hop(LINKS), 1..4).prop_map(RouteTarget::NextHops),
        1 => (0..2_usize).prop_map(|group| RouteTarget::Group(GroupIndex(group))),
        1 => Just(RouteTarget::Blackhole),
        1 => Just(RouteTarget::Unreachable),
        1 => Just(RouteTarget::Prohibit),
    ]
}

prop_compose! {
    fn model()(
        addresses in vec((vec(net(), 0..3), 0..VRFS), LINKS),
        routes in vec((0..VRFS, net(), prop_oneof![Just(0_u32), 0..4_u32, 200..300_u32], target()), 0..12),
        groups in vec(vec(hop(LINKS), 1..4), 2),
        neighs in vec((0..LINKS, address()), 0..8),
    ) -> Model {
        let mut model = small_model();
        for (link, (addresses, vrf)) in model.links.iter_mut().zip(addresses) {
            (link.addresses, link.vrf) = (addresses, VrfIndex(vrf));
        }
        for (vrf, dst, metric, target) in routes {
            let vrf = VrfIndex(vrf);
            model.routes.push(Route { vrf, dst: dst.trunc(), metric, target });
        }
        for members in groups {
            model.groups.push(NextHopGroup { name: "g".to_owned(), members });
        }
        for (link, address) in neighs {
            model.neighs.push(Neigh { link: LinkIndex(link), address, mac: Mac([2; 6]) });
        }
        model
    }
}

/// Three ports, two VLAN links (one of them QinQ) and two VRFs, without anything else.
pub(crate) fn small_model() -> Model {
    let link = |name: &str, kind| Link {
        name: name.to_owned(),
        kind,
        mac: Mac([2, 0, 0, 0, 0, name.len() as u8]),
        mac_given: true,
        mtu: 1500,
        vrf: VrfIndex::MAIN,
        addresses: Vec::new(),
        kernel_path: KernelPath::default(),
    };
    let port = |name: &str| Port { name: name.to_owned(), kind: PortKind::Memory };
    let vlan = |parent, protocol| LinkKind::Vlan { parent: LinkIndex(parent), vid: 10, protocol };
    Model {
        ports: ["a", "b", "c"].map(port).to_vec(),
        links: vec![
            link("a", LinkKind::Port(PortIndex(0))),
            link("b", LinkKind::Port(PortIndex(1))),
            link("c", LinkKind::Port(PortIndex(2))),
            link("a.s", vlan(0, VlanProtocol::Dot1ad)),
            link("a.s.c", vlan(3, VlanProtocol::Dot1q)),
        ],
        vrfs: ["main", "red"].map(|name| Vrf { name: name.to_owned() }).to_vec(),
        ..Model::default()
    }
}

proptest! {
    #[test]
    fn lookups_equal_a_scan_of_the_model(model in model(), probes in vec(address(), 32)) {
        let Compiled { tables, .. } = compile(&model).unwrap();
        let own = model.links.iter().flat_map(|link| &link.addresses);
        let own = own.flat_map(|net| [net.addr(), net.broadcast(), net.network()]);
        let far = model.routes.iter().flat_map(|route| [route.dst.addr(), route.dst.broadcast()]);
        let near = model.neighs.iter().map(|neigh| neigh.address);
        for address in probes.iter().copied().chain(own).chain(far).chain(near) {
            for vrf in 0..VRFS {
                let (is, should) = (compiled(&tables, vrf, address), naive(&model, vrf, address));
                prop_assert_eq!(is, should, "VRF {} address {}", vrf, address);
            }
        }
    }
}

#[test]
fn links_keep_their_positions_and_tags() {
    let Compiled { tables, .. } = compile(&small_model()).unwrap();
    let tags: Vec<_> = tables.routes.links.iter().map(|link| link.tags.len()).collect();
    assert_eq!(tags, [0, 0, 0, 1, 2]);
    assert_eq!(tables.routes.links[LinkId(4)].tags[0].0, 0x88a8);
    assert_eq!(tables.routes.links[LinkId(4)].port.0, 0);
    assert_eq!(tables.ports.len(), 3);
}

#[test]
fn errors_name_the_object() {
    let mut model = small_model();
    model.links[1].vrf = VrfIndex(9);
    let error = compile(&model).err().unwrap();
    assert_eq!(error.to_string(), "the port b refers to an object that does not exist");

    let mut model = small_model();
    let dst = "10.0.0.0/8".parse().unwrap();
    let target = RouteTarget::NextHops(Vec::new());
    model.routes.push(Route { vrf: VrfIndex::MAIN, dst, metric: 0, target });
    let error = compile(&model).err().unwrap();
    assert_eq!(error.to_string(), "the route to 10.0.0.0/8 has no next hop or too many");
    assert!(error.remedy().contains("256"));
}

#[test]
fn rules_on_the_kernel_path_need_a_kernel_that_has_them() {
    let mut chain = Chain::new("netdev t c", Family::Netdev);
    let mut base = Base::new(Hook::Ingress, 0, Policy::Accept);
    // This port carries two tags above it.
    base.devices = vec![LinkPattern::Name("a".to_owned())];
    chain.base = Some(base);
    let rules = Ruleset { chains: vec![chain], ..Ruleset::default() };
    let mut model = Model { filter: Some(Arc::new(rules)), ..small_model() };
    let error = compile(&model).err().unwrap();
    assert_eq!(error.error, Problem::Tagged);
    model.kernel_rules = Some(KernelRules::default());
    let filter = compile(&model).unwrap().tables.filter.clone().unwrap();
    assert!(filter.leaves_to_kernel());
}

#[test]
fn rules_know_the_vrf_devices_of_links() {
    let mut model = small_model();
    let vrf_devices = vec![None, Some("blue".to_owned())];
    model.kernel_rules = Some(KernelRules { vrf_devices });
    let devices: Vec<_> = rule_links(&model).into_iter().map(|link| link.vrf_device).collect();
    assert_eq!(devices, [None, Some("blue".to_owned()), None, None, None]);
}
