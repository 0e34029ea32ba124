//! Configurations without mistakes, and the complete model of each.

use std::path::PathBuf;

use super::super::parse;
use super::super::values::derived_mac;
use super::{BASE, mistakes};
use crate::{
    Engine, FailMode, GroupIndex, Link, LinkIndex, LinkKind, Model, Neigh, NextHop, NextHopGroup,
    Port, PortIndex, PortKind, Route, RouteTarget, Vrf, VrfIndex, XdpPathMode,
};
use tollway_net::{KernelPath, Mac, VlanProtocol};

const EXAMPLE: &str = include_str!("../../../../../examples/three-ports.toml");

fn model(text: &str) -> Model {
    match parse(text, "dir/t.toml") {
        Ok(loaded) => loaded.model,
        Err(mistakes) => panic!("in\n{text}\n{mistakes:#?}"),
    }
}

fn hop(via: &str, link: usize, weight: u16) -> NextHop {
    NextHop { via: Some(via.parse().expect("address")), link: LinkIndex(link), weight }
}

fn route(vrf: usize, dst: &str, metric: u32, target: RouteTarget) -> Route {
    Route { vrf: VrfIndex(vrf), dst: dst.parse().expect("prefix"), metric, target }
}

fn link(name: &str, kind: LinkKind, mtu: u16, vrf: usize, addresses: &[&str]) -> Link {
    Link {
        name: name.to_owned(),
        kind,
        mac: derived_mac(name),
        mac_given: false,
        mtu,
        vrf: VrfIndex(vrf),
        addresses: addresses.iter().map(|a| a.parse().expect("address")).collect(),
        kernel_path: KernelPath::default(),
    }
}

fn neigh(link: usize, address: &str, last: u8) -> Neigh {
    let mac = Mac([2, 0, 0x5e, 0, 0x53, last]);
    Neigh { link: LinkIndex(link), address: address.parse().expect("address"), mac }
}

fn vlan(parent: usize, vid: u16, protocol: VlanProtocol) -> LinkKind {
    LinkKind::Vlan { parent: LinkIndex(parent), vid, protocol }
}

fn example_links() -> Vec<Link> {
    let port = |index| LinkKind::Port(PortIndex(index));
    let mut dmz = link("dmz", port(2), 1500, 0, &["192.0.2.129/26"]);
    (dmz.mac, dmz.mac_given) = (Mac([2, 0, 0, 0, 0, 3]), true);
    let red = ["10.0.10.1/24", "fd00:10::1/64"];
    let mut vlan = link("lan.10", vlan(1, 10, VlanProtocol::Dot1q), 1500, 1, &red);
    vlan.mac = derived_mac("lan");
    vec![
        link("wan", port(0), 1500, 0, &["198.51.100.1/24", "2001:db8:0:1::1/64"]),
        link("lan", port(1), 9000, 0, &["192.0.2.1/25", "2001:db8:0:2::1/64"]),
        dmz,
        vlan,
    ]
}

fn example_routes() -> Vec<Route> {
    let hops = RouteTarget::NextHops;
    let dmz = || hops(vec![hop("192.0.2.190", 2, 1)]);
    vec![
        route(0, "0.0.0.0/0", 0, RouteTarget::Group(GroupIndex(0))),
        route(0, "::/0", 0, hops(vec![hop("fe80::1", 0, 1)])),
        route(0, "203.0.113.0/24", 0, dmz()),
        route(0, "203.0.113.0/24", 1000, RouteTarget::Blackhole),
        route(1, "10.1.0.0/16", 0, hops(vec![hop("10.0.10.2", 3, 1), hop("10.0.10.3", 3, 1)])),
        route(1, "203.0.113.0/24", 0, dmz()),
    ]
}

#[test]
fn the_example_gives_this_model() {
    let port = |name: &str, kind| Port { name: name.to_owned(), kind };
    let device = |name: &str| PortKind::AfPacket { device: name.to_owned() };
    let expected = Model {
        control: None,
        ports: vec![
            port("wan", device("eth0")),
            port("lan", device("eth1")),
            port("dmz", PortKind::Tap { device: "dmz".to_owned() }),
        ],
        links: example_links(),
        vrfs: vec![Vrf { name: "main".to_owned() }, Vrf { name: "red".to_owned() }],
        routes: example_routes(),
        groups: vec![NextHopGroup {
            name: "uplinks".to_owned(),
            members: vec![hop("198.51.100.253", 0, 2), hop("198.51.100.254", 0, 1)],
        }],
        neighs: vec![neigh(0, "198.51.100.254", 0xfe), neigh(3, "fd00:10::2", 2)],
        bridge_ports: std::collections::BTreeMap::new(),
        bridges: Vec::new(),
        xdp_path: XdpPathMode::Auto,
        own: Vec::new(),
        xdp_flows: 1 << 18,
        filter: None,
        connections: None,
        fail: FailMode::Closed,
        kernel_rules: None,
        filter_log: None,
    };
    assert_eq!(model(EXAMPLE), expected);
}

#[test]
fn the_shortest_configuration_has_one_port() {
    let expected = Model {
        ports: vec![Port { name: "p".to_owned(), kind: PortKind::Memory }],
        links: vec![link("p", LinkKind::Port(PortIndex(0)), 1500, 0, &[])],
        vrfs: vec![Vrf { name: "main".to_owned() }],
        own: Vec::new(),
        xdp_flows: 1 << 18,
        ..Model::default()
    };
    assert_eq!(model("[ports.p]\nkind = \"memory\""), expected);
}

#[test]
fn rules_fail_as_configured() {
    let mode = |line: &str| model(&format!("{line}\n[ports.p]\nkind = \"memory\"")).fail;
    assert_eq!(mode(""), FailMode::Closed);
    assert_eq!(mode("fail = \"closed\""), FailMode::Closed);
    assert_eq!(mode("fail = \"open\""), FailMode::Open);
}

#[test]
fn the_xdp_path_is_where_it_is_wanted() {
    let mode = |line: &str| model(&format!("{line}\n[ports.p]\nkind = \"memory\"")).xdp_path;
    assert_eq!(mode(""), XdpPathMode::Auto);
    assert_eq!(mode("xdp = \"auto\""), XdpPathMode::Auto);
    assert_eq!(mode("xdp = \"on\""), XdpPathMode::On);
    assert_eq!(mode("xdp = \"off\""), XdpPathMode::Off);
    for (mode, zero_copy, copy) in [
        (XdpPathMode::Auto, false, true),
        (XdpPathMode::On, true, true),
        (XdpPathMode::Off, false, false),
    ] {
        assert_eq!((mode.is_on(true), mode.is_on(false)), (zero_copy, copy), "{mode:?}");
    }
}

#[test]
fn capture_files_are_beside_the_configuration() {
    let text = "[ports.p]\nkind = \"capture\"\ninput = \"in.pcap\"\noutput = \"/tmp/out.pcap\"";
    let (input, output) = (PathBuf::from("dir/in.pcap"), PathBuf::from("/tmp/out.pcap"));
    let kind = PortKind::Capture { input: Some(input), output: Some(output) };
    assert_eq!(model(text).ports[0].kind, kind);
}

#[test]
fn the_control_socket_is_beside_the_configuration() {
    let port = "[ports.p]\nkind = \"memory\"";
    assert_eq!(model(port).control, None);
    let named = |path: &str| model(&format!("control = \"{path}\"\n{port}")).control;
    assert_eq!(named("a.sock"), Some(PathBuf::from("dir/a.sock")));
    assert_eq!(named("/run/a.sock"), Some(PathBuf::from("/run/a.sock")));
}

#[test]
fn parents_come_before_their_vlan_links_and_file_order_holds_otherwise() {
    let text = "[vlans.inner]\nparent = \"outer\"\nvid = 7\n\
                [vlans.outer]\nparent = \"p\"\nvid = 5\nprotocol = \"802.1ad\"\nmtu = 1400\n\
                mac = \"02-00-00-00-00-AA\"\n\
                [vlans.a]\nparent = \"p\"\nvid = 5\n\
                [ports.p]\nkind = \"memory\"\n[ports.b]\nkind = \"memory\"\n";
    let links = model(text).links;
    let names: Vec<&str> = links.iter().map(|link| link.name.as_str()).collect();
    assert_eq!(names, ["p", "b", "outer", "inner", "a"]);
    assert_eq!(links[2].kind, vlan(0, 5, VlanProtocol::Dot1ad));
    assert_eq!(links[3].kind, vlan(2, 7, VlanProtocol::Dot1q));
    let mac = Mac([2, 0, 0, 0, 0, 0xaa]);
    assert_eq!((links[2].mac, links[2].mac_given), (mac, true));
    assert_eq!((links[3].mac, links[3].mac_given, links[3].mtu), (mac, false, 1400));
}

#[test]
fn a_device_gives_its_address_to_all_that_follow_it() {
    let mut model = model(
        "[ports.p]\nkind = \"af_packet\"\n[ports.q]\nkind = \"af_packet\"\n\
         [vlans.a]\nparent = \"p\"\nvid = 1\n[vlans.b]\nparent = \"a\"\nvid = 1\n\
         [vlans.c]\nparent = \"p\"\nvid = 2\nmac = \"02:00:00:00:00:0c\"\n\
         [vlans.d]\nparent = \"c\"\nvid = 2\n",
    );
    let device = Mac([0, 1, 2, 3, 4, 5]);
    model.adopt_mac(PortIndex(0), device);
    let own = Mac([2, 0, 0, 0, 0, 12]);
    let macs: Vec<Mac> = model.links.iter().map(|link| link.mac).collect();
    assert_eq!(macs, [device, derived_mac("q"), device, device, own, own]);
}

#[test]
fn made_addresses_are_unicast_local_and_different() {
    let macs: std::collections::HashSet<Mac> =
        (0..10_000).map(|i| derived_mac(&format!("port{i}"))).collect();
    assert_eq!(macs.len(), 10_000);
    assert!(macs.iter().all(|mac| mac.0[0] == 2));
}

#[test]
fn unusual_but_right() {
    let accepted = [
        // Point-to-point and host prefixes.
        "[ports.x]\nkind = \"memory\"\naddresses = [\"10.9.0.0/31\", \"10.9.1.0/32\"]",
        "[[routes]]\nto = \"0.0.0.0/0\"\nvia = \"192.0.2.2\"\nmetric = 4294967295",
        // Two subnets of one link may nest, and VRFs may have the same ones.
        "[ports.x]\nkind = \"memory\"\naddresses = [\"10.9.0.1/16\", \"10.9.1.1/24\"]",
        "[ports.x]\nkind = \"memory\"\nvrf = \"red\"\naddresses = [\"192.0.2.1/24\"]",
        // Each link has its own link-local addresses.
        "[ports.x]\nkind = \"memory\"\naddresses = [\"fe80::1/64\"]\n\
         [ports.y]\nkind = \"memory\"\naddresses = [\"fe80::1/64\"]\n\
         [[neighbours]]\ndev = \"x\"\naddress = \"fe80::2\"\nmac = \"02:00:00:00:00:02\"",
        // A next hop on the link itself, and one outside the VRF.
        "[[routes]]\nto = \"10.0.0.0/8\"\ndev = \"dmz\"",
        "[[routes]]\nto = \"10.8.0.0/16\"\nvia = \"10.0.10.2\"\ndev = \"lan.10\"",
        "[[routes]]\nvrf = \"main\"\nto = \"10.0.0.0/8\"\ntype = \"unicast\"\ngroup = \"uplinks\"",
        // A discard of destinations that are never forwarded, and a second route to a connected
        // prefix.
        "[[routes]]\nto = \"240.0.0.0/4\"\ntype = \"blackhole\"",
        "[[routes]]\nto = \"127.0.0.0/8\"\ntype = \"prohibit\"",
        "[[routes]]\nto = \"192.0.2.0/24\"\ntype = \"unreachable\"\nmetric = 5",
        // The same vid under another protocol.
        "[vlans.x]\nparent = \"lan\"\nvid = 10\nprotocol = \"802.1ad\"",
        "[groups.g]\nnexthops = [{ dev = \"lan\", weight = 256 }, { dev = \"wan\", weight = 1 }]",
        "[ports.x]\nkind = \"memory\"\nmtu = 0x44",
    ];
    for text in accepted {
        assert_eq!(mistakes(&format!("{BASE}{text}")), Vec::new(), "in\n{text}");
    }
}

#[test]
fn a_port_may_have_an_engine() {
    let engine = |line: &str| {
        let model = model(&format!("[ports.p]\nkind = \"af_xdp\"\n{line}"));
        model.ports[0].kind.engine().unwrap()
    };
    assert_eq!(engine(""), Engine::Auto);
    for one in Engine::ALL {
        assert_eq!(engine(&format!("engine = \"{}\"", one.name())), one);
    }
}
