//! Compares what the controller reads from messages with what ip(8) shows.

use std::collections::BTreeMap;
use std::net::IpAddr;

use serde_json::Value;
use tollway_controller::kernel::{Family, Hop, Hops, Kernel, Nexthop, Route, RouteKey, RuleAction};
use tollway_controller::netlink::Settings;

use crate::bridges;
use crate::ip::{batch, veth_pairs};
use crate::model::SyncedModel;
use crate::namespaces::sh;

const ROUTES: &str = "\
nexthop add id 5 via 10.0.0.5 dev a0
nexthop add id 6 via 10.0.1.6 dev a1
nexthop add id 7 group 5/6
nexthop add id 8 blackhole
nexthop add id 9 via fd00:2::9 dev a2
route add default via 10.0.0.2
route add 192.0.2.0/25 via 10.0.0.3 metric 77 proto static
route add 192.0.2.0/25 via 10.0.1.3 metric 78 proto bgp src 10.0.0.1
route add 192.0.2.128/25 dev a2 mtu 1300 table 100
route add 198.51.100.0/24 nexthop via 10.0.0.4 weight 3 nexthop via 10.0.1.4 dev a1 weight 256
route add 198.51.100.1 via 10.9.9.9 dev a1 onlink
route add 203.0.113.0/24 via inet6 fd00:3::8 dev a3
route add 203.0.113.128/26 nexthop via inet6 fd00:3::8 dev a3 nexthop via 10.0.1.4
route add 10.1.0.0/16 nhid 5
route add 10.2.0.0/16 nhid 7 table 70000
route add 10.3.0.0/16 nhid 8
route add blackhole 10.4.0.0/16
route add unreachable 10.5.0.0/16 metric 4294967295
route add prohibit 10.6.0.0/16 table 9
route add throw 10.7.0.0/16 table 9
route add local 10.8.0.0/16 dev lo table 9
route add 10.9.0.0/16 tos 0x10 via 10.0.0.9
route add ::/0 via fd00::2
route add 2001:db8::/33 via fd00::3 metric 5 mtu 1290
route add 2001:db8:8000::/33 nexthop via fd00:0::4 weight 2 nexthop via fd00:1::4 weight 7
route add 2001:db8:1::/48 dev a3 src fd00:3::1 table 12345
route add 2001:db8:2::/48 nhid 9
route add blackhole 2001:db8:3::/48
route add unreachable 2001:db8:4::/48
route add prohibit 2001:db8:5::/48
route add throw 2001:db8:6::/48
";

/// Odd routes, in the syntax of `ip`.
const ODD: &str = "\
route add 172.16.1.0/24 via 10.0.0.2 realm 7
route add 172.16.2.0/24 via 10.0.0.2 mtu lock 1400
route add 2001:db8:11::/48 via fd00::2 expires 1000
route add 2001:db8:12::/48 from 2001:db8::/32 via fd00::2
route add 2001:db8:13::/48 via fd00::2 pref high
";

type Words = BTreeMap<String, Vec<String>>;

pub fn routes() {
    veth_pairs();
    let mut synced = SyncedModel::new(Settings::default());
    batch(&(ROUTES.to_owned() + ODD));
    synced.assert_agrees();
    let (mut own, mut shown) = (Words::new(), Words::new());
    for (key, routes) in synced.model.plain() {
        let routes = routes.iter().map(|route| route_words(&synced.model.kernel, route));
        own.insert(key_words(&key), routes.collect());
    }
    for command in ["ip -j -d -4 route show table all", "ip -j -d -6 route show table all"] {
        for route in json(command) {
            let words = shown_words(&route, command.contains("-6"));
            shown.entry(words.0).or_default().push(words.1);
        }
    }
    assert_eq!(own.len(), shown.len());
    for (key, routes) in &own {
        assert_eq!(shown.get(key), Some(routes), "{key}");
    }
    let lines = (ROUTES.to_owned() + ODD).lines().filter(|line| line.contains("route add")).count();
    assert!(own.len() > lines, "some were refused: {own:#?}");
    let unsupported = |dst: &str| {
        let found = synced.model.routes.iter().find(|(key, _)| key.dst.to_string() == dst);
        found.unwrap().1[0].0.unsupported
    };
    for line in ODD.lines() {
        let dst = line.split_whitespace().find(|word| word.contains('/')).unwrap();
        assert!(unsupported(dst), "{line}");
    }
    let count =
        synced.model.routes.values().flatten().filter(|(route, _)| route.unsupported).count();
    assert_eq!(count, ODD.lines().count());
}

fn json(command: &str) -> Vec<Value> {
    serde_json::from_str(&sh(command)).unwrap()
}

fn key_words(RouteKey { table, dst, tos, priority }: &RouteKey) -> String {
    format!("{dst} table {table} tos {tos} metric {priority}")
}

fn route_words(kernel: &Kernel, route: &Route) -> String {
    let Route { kind, hops, protocol, prefsrc, mtu, .. } = route;
    let kind = format!("{kind:?}").to_lowercase();
    let one = |hop: &Hop| {
        let via = hop.via.map_or("-".to_owned(), |via| via.to_string());
        let onlink = if hop.flags & 4 != 0 { " onlink" } else { "" };
        format!("[{via} {} {}{onlink}]", kernel.netdevs[&hop.ifindex].name, hop.weight)
    };
    let hops = match hops {
        Hops::Object(id) => format!("nhid {id}"),
        hops => hops.list().iter().map(one).collect(),
    };
    format!("{kind} proto {protocol} src {prefsrc:?} mtu {mtu} {hops}")
}

/// The same for a route that `ip` shows.
fn shown_words(route: &Value, v6: bool) -> (String, String) {
    let text = |name: &str| route[name].as_str();
    let number = |name: &str| route[name].as_u64().unwrap_or(0);
    let dst = match text("dst").unwrap() {
        "default" if v6 => "::/0".to_owned(),
        "default" => "0.0.0.0/0".to_owned(),
        host if !host.contains('/') => format!("{host}/{}", if v6 { 128 } else { 32 }),
        prefix => prefix.to_owned(),
    };
    let table = match text("table") {
        None | Some("main") => 254,
        Some("local") => 255,
        Some(number) => number.parse().unwrap(),
    };
    let tos = u8::from_str_radix(text("tos").unwrap_or("0").trim_start_matches("0x"), 16).unwrap();
    // Routes for some sources have keys of their own (`RouteKey::OF_SOURCES`).
    let tos = if text("from").is_some() { 1 } else { tos };
    let key = format!("{dst} table {table} tos {tos} metric {}", number("metric"));
    let kind = text("type").unwrap();
    let protocol = match text("protocol").unwrap() {
        "kernel" => 2,
        "boot" => 3,
        "static" => 4,
        "bgp" => 186,
        other => panic!("protocol {other}"),
    };
    let prefsrc: Option<IpAddr> = text("prefsrc").map(|text| text.parse().unwrap());
    let mtu = route["metrics"][0]["mtu"].as_u64();
    let locked = || route["metrics"][0]["mtu"].as_str().is_some();
    let mtu = mtu.unwrap_or(if locked() { 1400 } else { 0 });
    let hops = match (route["nhid"].as_u64(), route["nexthops"].as_array()) {
        (Some(id), _) => format!("nhid {id}"),
        (None, Some(all)) => all.iter().map(shown_hop).collect(),
        // Routes of these types have a device that means nothing; for IPv6 `ip` shows it.
        _ if ["blackhole", "unreachable", "prohibit", "throw"].contains(&kind) => String::new(),
        _ => shown_hop(route),
    };
    (key, format!("{kind} proto {protocol} src {prefsrc:?} mtu {mtu} {hops}"))
}

fn shown_hop(hop: &Value) -> String {
    let via = hop["gateway"].as_str().or_else(|| hop["via"]["host"].as_str()).unwrap_or("-");
    let weight = hop["weight"].as_u64().unwrap_or(1);
    let flags = hop["flags"].as_array().unwrap();
    let onlink = if flags.iter().any(|flag| flag == "onlink") { " onlink" } else { "" };
    format!("[{via} {} {weight}{onlink}]", hop["dev"].as_str().unwrap())
}

const SMALL: &str = "\
link set a2 mtu 1400 address 02:00:00:00:00:a2
link add bridge0 type bridge
link set bridge0 up
link set b2 master bridge0
link set bridge0 type bridge ageing_time 4200 forward_delay 600 nf_call_ip6tables 1
link set b2 type bridge_slave isolated on neigh_suppress on flood off
link set a3 down
address add 10.7.0.1/16 brd 10.7.255.255 dev a1
address add 10.7.0.2 peer 10.7.0.9/32 dev a1
address add fd07::1/64 dev a1 nodad
nexthop add id 1 via 10.0.0.9 dev a0
nexthop add id 2 dev a1
nexthop add id 3 group 1,200/2,50
nexthop add id 4 group 1/2 type resilient buckets 32
nexthop add id 5 blackhole
nexthop add id 6 via fd00:2::9 dev a2 onlink
nexthop add id 7 via 10.0.0.8 fdb
rule add pref 100 from 192.0.2.0/24 table 100
rule add pref 100 to 192.0.2.0/24 table 101
rule add pref 101 iif a1 fwmark 0x10/0xff table 102
rule add pref 102 fwmark 7 blackhole
rule add pref 103 from 10.0.0.0/8 to 10.0.0.0/9 prohibit
rule add pref 104 unreachable
rule add pref 105 goto 32766
rule add pref 106 nop
rule add pref 107 oif a2 table 5
rule add pref 108 ipproto tcp dport 80-90 table 5
rule add pref 109 not from 10.0.0.0/8 table 5
rule add pref 110 table main suppress_prefixlength 0
rule add pref 111 tos 0x10 table 6
";

pub fn small() {
    veth_pairs();
    let mut synced = SyncedModel::new(Settings::default());
    batch(SMALL);
    sh("ip -6 rule add pref 50 from 2001:db8::/32 table 60");
    sh("ip -6 rule add pref 51 uidrange 5-6 table 61");
    // The kernel sends no messages about what it deleted with `a3`.
    synced.assert_agrees_but_for_routes();
    let kernel = &synced.model.kernel;
    links(kernel);
    bridges::assert_as_shown(kernel);
    addresses(kernel);
    rules(kernel);
    let hop = |via: Option<&str>, ifindex, flags| {
        let via = via.map(|via| via.parse().unwrap());
        Nexthop::Hop(Hop { via, ifindex, weight: 1, flags, encap: false })
    };
    let index = |name: &str| *kernel.netdevs.iter().find(|(_, dev)| dev.name == name).unwrap().0;
    let expected = [
        (1, hop(Some("10.0.0.9"), index("a0"), 0)),
        (2, hop(None, index("a1"), 0)),
        (3, Nexthop::Group { members: vec![(1, 200), (2, 50)], resilient: false }),
        (4, Nexthop::Group { members: vec![(1, 1), (2, 1)], resilient: true }),
        (5, Nexthop::Blackhole),
        (6, hop(Some("fd00:2::9"), index("a2"), 4)),
        (7, Nexthop::Other),
    ];
    assert_eq!(kernel.nexthops, expected.into_iter().collect());
}

fn links(kernel: &Kernel) {
    let shown = json("ip -j -d link show");
    assert_eq!(kernel.netdevs.len(), shown.len());
    for link in shown {
        let index = u32::try_from(link["ifindex"].as_u64().unwrap()).unwrap();
        let own = &kernel.netdevs[&index];
        let other = |name: &str| {
            let name = link[name].as_str()?;
            kernel.netdevs.iter().find(|(_, dev)| dev.name == name).map(|(index, _)| *index)
        };
        assert_eq!(own.name, link["ifname"].as_str().unwrap());
        assert_eq!(own.kind.as_deref(), link["linkinfo"]["info_kind"].as_str());
        assert_eq!(u64::from(own.mtu), link["mtu"].as_u64().unwrap());
        assert_eq!(own.qdisc, link["qdisc"].as_str().unwrap());
        assert_eq!(own.lower, other("link"), "{own:?}");
        assert_eq!(own.master, other("master"), "{own:?}");
        let flags = link["flags"].as_array().unwrap();
        for (name, bit) in [("UP", 1), ("LOWER_UP", 1 << 16), ("LOOPBACK", 8), ("MULTICAST", 4096)]
        {
            assert_eq!(own.flags & bit != 0, flags.iter().any(|flag| flag == name), "{own:?}");
        }
        let mac = own.mac.map(|mac| mac.map(|byte| format!("{byte:02x}")).join(":"));
        assert_eq!(mac.as_deref(), link["address"].as_str());
    }
}

fn addresses(kernel: &Kernel) {
    let mut own: Vec<String> = kernel
        .addresses
        .iter()
        .map(|own| {
            let (peer, broadcast) = (own.peer, own.broadcast);
            format!("{} {} {peer:?} {broadcast:?}", own.ifindex, own.address)
        })
        .collect();
    let mut shown = Vec::new();
    for link in json("ip -j address show") {
        for address in link["addr_info"].as_array().unwrap() {
            let ip = |name: &str| -> Option<IpAddr> {
                address[name].as_str().map(|text| text.parse().unwrap())
            };
            let (local, len) = (ip("local").unwrap(), address["prefixlen"].as_u64().unwrap());
            let broadcast: Option<std::net::Ipv4Addr> =
                address["broadcast"].as_str().map(|text| text.parse().unwrap());
            let peer = ip("address");
            shown.push(format!("{} {local}/{len} {peer:?} {broadcast:?}", link["ifindex"]));
        }
    }
    own.sort();
    shown.sort();
    assert_eq!(own, shown);
}

fn rules(kernel: &Kernel) {
    let prefix = |text: &str| Some(text.parse::<ipnet::IpNet>().unwrap());
    let of = |family, priority| {
        let all = kernel.rules.iter();
        all.filter(|rule| rule.family == family && rule.priority == priority).collect::<Vec<_>>()
    };
    let v4 = |priority| of(Family::V4, priority)[0];
    let order: Vec<_> = of(Family::V4, 100).iter().map(|rule| rule.action).collect();
    assert_eq!(order, [RuleAction::Table(100), RuleAction::Table(101)]);
    assert_eq!((v4(100).src, v4(100).dst), (prefix("192.0.2.0/24"), None));
    assert_eq!((v4(101).iif.as_deref(), v4(101).mark), (Some("a1"), Some((0x10, 0xff))));
    assert_eq!((v4(102).mark, v4(102).action), (Some((7, u32::MAX)), RuleAction::Blackhole));
    assert_eq!((v4(103).src, v4(103).dst), (prefix("10.0.0.0/8"), prefix("10.0.0.0/9")));
    let actions = [103, 104, 105, 106].map(|priority| v4(priority).action);
    let expected =
        [RuleAction::Prohibit, RuleAction::Unreachable, RuleAction::Goto(32766), RuleAction::Nop];
    assert_eq!(actions, expected);
    assert!((100..107).all(|priority| v4(priority).unsupported.is_none()));
    let unsupported: Vec<_> =
        (107..112).filter_map(|priority| v4(priority).unsupported.as_deref()).collect();
    let expected =
        ["oif a2", "dport 80-90, ipproto 6", "not", "suppress_prefixlength 0", "tos 0x10"];
    assert_eq!(unsupported, expected);
    assert_eq!(of(Family::V6, 50)[0].action, RuleAction::Table(60));
    assert!(
        of(Family::V6, 51)[0]
            .unsupported
            .as_deref()
            .is_some_and(|words| words.starts_with("uidrange"))
    );
    for (family, priority, table) in [(Family::V4, 0, 255), (Family::V4, 32766, 254)] {
        assert_eq!(of(family, priority)[0].action, RuleAction::Table(table));
        assert_eq!(of(family, priority)[0].unsupported, None);
    }
}
