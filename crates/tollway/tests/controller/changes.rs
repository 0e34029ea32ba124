//! Single changes and their effects.

use std::net::IpAddr;

use tollway_controller::kernel::{Hops, Nexthop, Route, RouteKey};
use tollway_controller::netlink::{Settings, Source};
use tollway_controller::rib::{Choice, Dest, Rib};
use tollway_dataplane::prefix::RoutePrefix;

use crate::ip::veth_pairs;
use crate::model::SyncedModel;
use crate::namespaces::{PATIENCE, ifindex, sh, until};

fn key(dst: &str) -> RouteKey {
    let dst: ipnet::IpNet = dst.parse().unwrap();
    let priority = if dst.addr().is_ipv6() { 1024 } else { 0 };
    RouteKey { table: 254, dst, tos: 0, priority }
}

impl SyncedModel {
    /// The gateways of a prefix's routes; `+` joins the gateways of one route.
    fn gateways(&self, dst: &str) -> String {
        let plain = self.model.plain();
        let Some(aliases) = plain.get(&key(dst)) else { return String::new() };
        let last = |via: Option<IpAddr>| match via {
            Some(IpAddr::V4(v4)) => v4.octets()[3].to_string(),
            Some(IpAddr::V6(v6)) => format!("{:x}", v6.segments()[7]),
            None => "-".to_owned(),
        };
        let one =
            |hops: &Hops| -> Vec<String> { hops.list().iter().map(|hop| last(hop.via)).collect() };
        let all: Vec<_> = aliases.iter().map(|route| one(&route.hops).join("+")).collect();
        all.join(" ")
    }

    fn run_and_read(&mut self, line: &str) {
        sh(line);
        self.read_until_quiet();
    }
}

/// Several routes of one key have the same order as in the kernel.
pub fn order() {
    veth_pairs();
    let mut synced = SyncedModel::new(Settings::default());
    let steps = [
        ("add", "via 10.0.0.2", "2"),
        ("append", "via 10.0.0.3", "2 3"),
        ("prepend", "via 10.0.0.4", "4 2 3"),
        ("replace", "via 10.0.0.5", "5 2 3"),
        ("change", "via 10.0.1.6", "6 2 3"),
        ("append", "nexthop via 10.0.0.7 nexthop via 10.0.1.8 weight 5", "6 2 3 7+8"),
        ("del", "via 10.0.0.2", "6 3 7+8"),
        ("del", "", "3 7+8"),
        ("replace", "via 10.0.0.9", "9 7+8"),
    ];
    for (what, to, expected) in steps {
        synced.run_and_read(&format!("ip route {what} 192.0.2.0/24 {to}"));
        assert_eq!(synced.gateways("192.0.2.0/24"), expected, "after {what} {to}");
        synced.assert_agrees();
    }
    // The result is still the same after that many more lists.
    for _ in 0..3 {
        synced.source.resync();
        synced.assert_agrees();
        assert_eq!(synced.gateways("192.0.2.0/24"), "9 7+8");
    }
    assert_eq!(synced.source.stats().resyncs, 4);
}

/// IPv6: routes with a gateway join the route of their key; others stay separate.
pub fn siblings() {
    veth_pairs();
    let mut synced = SyncedModel::new(Settings::default());
    let two = "nexthop via fd00:0::2 nexthop via fd00:1::3";
    let steps = [
        ("add", "via fd00:0::2", "2"),
        ("append", "via fd00:1::3", "2+3"),
        ("append", "via fd00:2::4", "2+3+4"),
        ("append", "nexthop via fd00:0::5 nexthop via fd00:1::6", "2+3+4+5+6"),
        ("del", "via fd00:1::3", "2+4+5+6"),
        ("append", "dev a2", "2+4+5+6 -"),
        ("replace", "via fd00:3::7", "7 -"),
        ("del", "dev a2", "7"),
        ("replace", two, "2+3"),
        ("replace", "dev a2", "-"),
        ("replace", "via fd00:0::9", "9"),
        ("append", two, "9+2+3"),
        ("del", "", ""),
        ("add", two, "2+3"),
        ("replace", "nexthop via fd00:1::3 nexthop via fd00:0::2", "3+2"),
    ];
    for (what, to, expected) in steps {
        synced.run_and_read(&format!("ip -6 route {what} 2001:db8::/48 {to}"));
        let known = synced.gateways("2001:db8::/48");
        println!("{what} {to}: {known}");
        synced.assert_agrees();
        assert_eq!(known, expected, "after {what} {to}");
    }
}

/// IPv6: siblings that differ in more than their next hops are one route, as the kernel lists and
/// deletes them.
pub fn different_siblings() {
    const STEPS: [&str; 18] = [
        "add via fd00:0::2",
        "append via fd00:1::3 pref high",
        "append via fd00:2::4 proto 99 mtu 1400",
        "append via fd00:3::5 expires 600",
        "del via fd00:2::4",
        "del via fd00:3::5",
        "del via fd00:0::2",
        "append via fd00:2::4 pref low",
        "del via fd00:1::3",
        "del via fd00:2::4",
        "add via fd00:0::2 proto ra",
        "append via fd00:1::3 proto ra",
        "del via fd00:0::2",
        "del via fd00:1::3",
        "add via fd00:0::2",
        "append via fd00:1::3 proto ra",
        "del via fd00:1::3",
        "del via fd00:0::2",
    ];
    veth_pairs();
    for lists in [false, true] {
        let mut source = Source::open(Settings::default()).unwrap();
        let mut followed = Rib::new();
        assert!(source.read_all(PATIENCE, &mut |event| followed.apply(&event)).unwrap());
        for step in STEPS {
            let (what, to) = step.split_once(' ').unwrap();
            sh(&format!("ip -6 route {what} 2001:db8::/48 {to}"));
            while source.read(&mut |event| followed.apply(&event)).unwrap() {}
            let mut listed = Rib::new();
            let mut lister = Source::open(Settings::default()).unwrap();
            assert!(lister.read_all(PATIENCE, &mut |event| listed.apply(&event)).unwrap());
            let [known, kernels] = [&followed, &listed].map(chosen);
            println!("{step}: {known:?}");
            assert!(known == kernels || known == Chosen::Kernel, "{known:?}, not {kernels:?}");
            let doubts = followed.doubts();
            assert!(doubts || known == kernels, "it stays {known:?}, and not {kernels:?}");
            if doubts || lists {
                source.resync();
                assert!(source.read_all(PATIENCE, &mut |event| followed.apply(&event)).unwrap());
                assert_eq!(chosen(&followed), kernels, "after {step}, and a list");
            }
        }
        assert_eq!(chosen(&followed), Chosen::Nothing);
    }
}

/// What applies to the prefix of the different siblings.
#[derive(Debug, PartialEq)]
enum Chosen {
    Nothing,
    Kernel,
    Route(Route),
}

fn chosen(rib: &Rib) -> Chosen {
    let address: IpAddr = "2001:db8::".parse().unwrap();
    match rib.choice(Dest { table: 254, prefix: RoutePrefix::new(address, 48) }) {
        Choice::Nothing => Chosen::Nothing,
        Choice::Kernel => Chosen::Kernel,
        Choice::Is(id) => Chosen::Route(rib.attrs(id).route.clone()),
    }
}

/// Next-hop objects that the kernel deletes without a message.
pub fn implicit_deletes() {
    veth_pairs();
    for (id, device) in [(1, 0), (2, 1), (3, 1)] {
        sh(&format!("ip nexthop add id {id} via 10.0.{device}.9 dev a{device}"));
    }
    sh("ip nexthop add id 10 group 1/2,3");
    sh("ip nexthop add id 11 group 2/3");
    sh("ip nexthop add id 12 group 1,2/2,5 type resilient buckets 32");
    sh("ip nexthop add id 13 blackhole");
    let mut synced = SyncedModel::new(Settings::default());
    synced.assert_agrees_but_for_routes();
    assert_eq!(synced.model.kernel.nexthops.len(), 7);
    // The carrier goes, and a moment later the kernel deletes the objects that need it.
    sh("ip link set b1 down");
    until("next hops to go", || sh("ip -oneline nexthop").lines().count() == 4);
    synced.read_until_quiet();
    synced.assert_agrees_but_for_routes();
    let nexthops = &synced.model.kernel.nexthops;
    assert_eq!(nexthops[&10], Nexthop::Group { members: vec![(1, 1)], resilient: false });
    assert_eq!(nexthops.len(), 4, "{nexthops:?}");
    synced.run_and_read("ip link set b1 up");
    synced.run_and_read("ip nexthop add id 2 via 10.0.1.9 dev a1");
    synced.run_and_read("ip nexthop replace id 10 group 1/2");
    synced.assert_agrees_but_for_routes();
    synced.run_and_read("ip nexthop del id 1");
    synced.assert_agrees_but_for_routes();
    synced.run_and_read("ip link del a1");
    synced.assert_agrees_but_for_routes();
    let nexthops = &synced.model.kernel.nexthops;
    assert_eq!(nexthops.keys().collect::<Vec<_>>(), [&13]);
}

/// Events about settings, and the settings that a device reports.
pub fn settings() {
    veth_pairs();
    let mut synced = SyncedModel::new(Settings::default());
    let a1 = ifindex("a1");
    let expect = |synced: &mut SyncedModel, line: &str, expected: &str| {
        synced.model.events.clear();
        synced.run_and_read(line);
        let found = synced.model.events.iter().any(|event| event == expected);
        assert!(found, "{line}: {expected} is not in {:#?}", synced.model.events);
    };
    for (setting, expected) in [
        ("ipv4.conf.a1.forwarding=1", format!("Sysctl(V4, Some({a1}))")),
        ("ipv4.conf.a1.rp_filter=2", format!("Sysctl(V4, Some({a1}))")),
        ("ipv4.conf.all.rp_filter=1", "Sysctl(V4, None)".to_owned()),
        ("ipv6.conf.a1.forwarding=1", format!("Sysctl(V6, Some({a1}))")),
    ] {
        expect(&mut synced, &format!("sysctl -qw net.{setting}"), &expected);
    }
    let tc = format!("Tc(Some({a1}))");
    expect(&mut synced, "tc qdisc add dev a1 root pfifo limit 9", &tc);
    assert_eq!(synced.model.kernel.netdevs[&a1].qdisc, "pfifo");
    expect(&mut synced, "tc qdisc replace dev a1 root bfifo limit 9999", &tc);
    assert_eq!(synced.model.kernel.netdevs[&a1].qdisc, "bfifo");
    expect(&mut synced, "tc qdisc add dev a1 clsact", &tc);
    expect(&mut synced, "tc qdisc del dev a1 root", &tc);
    assert_eq!(synced.model.kernel.netdevs[&a1].qdisc, "noqueue");
    synced.assert_agrees();
}
