//! Mistakes in routes, groups and neighbours.

use super::{BASE, BASE_LINES, assert_after_base, assert_only};

/// Checks the mistakes of one route, given its keys, the line among them, and the words.
fn assert_route(cases: &[(&str, usize, &[&str])]) {
    for (keys, line, words) in cases {
        assert_only(&format!("{BASE}[[routes]]\n{keys}"), BASE_LINES + 1 + line, words);
    }
}

#[test]
fn destinations() {
    assert_route(&[
        (
            "to = \"10.0.0.1/8\"\nvia = \"192.0.2.2\"",
            1,
            &["host bits", "\"10.0.0.0/8\"", "10.0.0.1/32"],
        ),
        ("to = \"fd00::1/64\"\nvia = \"2001:db8:2::2\"", 1, &["host bits", "\"fd00::/64\""]),
        ("to = \"10.0.0.0\"\nvia = \"192.0.2.2\"", 1, &["not a prefix", "add the prefix length"]),
        ("to = \"10.0.0.0/40\"\nvia = \"192.0.2.2\"", 1, &["not a prefix", "0 to 32"]),
        ("to = \"internet\"\nvia = \"192.0.2.2\"", 1, &["not a prefix", "192.0.2.0/24"]),
        ("to = \"224.0.0.0/8\"\nvia = \"192.0.2.2\"", 1, &["multicast", "never forwarded"]),
        ("to = \"ff00::/8\"\nvia = \"2001:db8:2::2\"", 1, &["multicast"]),
        ("to = \"127.0.0.0/8\"\nvia = \"192.0.2.2\"", 1, &["loopback"]),
        ("to = \"::1/128\"\nvia = \"2001:db8:2::2\"", 1, &["loopback"]),
        ("to = \"fe80::/64\"\nvia = \"2001:db8:2::2\"", 1, &["link-local"]),
        ("to = \"0.0.0.0/8\"\nvia = \"192.0.2.2\"", 1, &["this network"]),
        ("to = \"255.255.255.255/32\"\nvia = \"192.0.2.2\"", 1, &["limited broadcast"]),
        ("to = \"default\"\ndev = \"wan\"", 1, &["IPv4 or IPv6", "::/0"]),
        ("to = \"default\"\ntype = \"blackhole\"", 1, &["IPv4 or IPv6"]),
        (
            "to = \"192.0.2.0/24\"\nvia = \"198.51.100.2\"",
            1,
            &["connected to lan already (line 5)"],
        ),
    ]);
}

#[test]
fn vrf_and_metric() {
    assert_route(&[
        (
            "vrf = \"blue\"\nto = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"",
            1,
            &["vrf \"blue\"", "not defined"],
        ),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"\nmetric = -1", 3, &["metric", "out of range"]),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"\nmetric = 4294967296", 3, &["4294967295"]),
    ]);
    assert_after_base(&[(
        "[[routes]]\nto = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"\n[[routes]]\nto = \"10.0.0.0/8\"\nmetric = 0\ntype = \"prohibit\"",
        5,
        &["10.0.0.0/8 with metric 0 has a route already (line 26)", "another metric"],
    )]);
}

#[test]
fn targets() {
    assert_route(&[
        ("to = \"10.0.0.0/8\"\ntype = \"reject\"", 2, &["\"reject\"", "blackhole, unreachable"]),
        (
            "to = \"10.0.0.0/8\"\ntype = \"blackhole\"\nvia = \"192.0.2.2\"",
            3,
            &["discards", "has via"],
        ),
        ("to = \"10.0.0.0/8\"\ndev = \"lan\"\ntype = \"prohibit\"", 2, &["discards", "has dev"]),
        ("to = \"10.0.0.0/8\"\ntype = \"unreachable\"\ngroup = \"uplinks\"", 3, &["has group"]),
        (
            "to = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"\ngroup = \"uplinks\"",
            3,
            &["both via and group"],
        ),
        (
            "to = \"10.0.0.0/8\"\ngroup = \"uplinks\"\nnexthops = []",
            3,
            &["both group and nexthops"],
        ),
        ("to = \"10.0.0.0/8\"\nnexthops = []", 2, &["empty list"]),
        ("to = \"10.0.0.0/8\"\ngroup = \"uplink\"", 2, &["no group \"uplink\"", "uplinks?"]),
        ("to = \"10.0.0.0/8\"\ngroup = \"x\"", 2, &["[groups.NAME]"]),
        (
            "vrf = \"red\"\nto = \"10.8.0.0/16\"\ngroup = \"uplinks\"",
            3,
            &["another vrf", "line 22"],
        ),
    ]);
}

#[test]
fn next_hops() {
    assert_route(&[
        ("to = \"10.0.0.0/8\"\nvia = \"gw\"", 2, &["\"gw\", not an IP address"]),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.2/24\"", 2, &["a prefix", "\"192.0.2.2\""]),
        ("to = \"10.0.0.0/8\"\nvia = \"224.0.0.5\"", 2, &["multicast"]),
        ("to = \"10.0.0.0/8\"\nvia = \"127.0.0.1\"", 2, &["loopback"]),
        ("to = \"10.0.0.0/8\"\nvia = \"0.0.0.0\"", 2, &["unspecified"]),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"\ndev = \"lna\"", 3, &["\"lna\"", "lan?"]),
        ("to = \"10.0.0.0/8\"\nvia = \"203.0.113.1\"", 2, &["no connected subnet of vrf main"]),
        ("to = \"10.8.0.0/16\"\nvia = \"10.0.10.2\"", 2, &["vrf main", "dev = \"lan.10\""]),
        (
            "to = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"\ndev = \"wan\"",
            2,
            &["in no subnet of wan", "198.51.100.1/24", "(line 1)", "dev = \"lan\""],
        ),
        ("to = \"10.0.0.0/8\"\nvia = \"203.0.113.1\"\ndev = \"dmz\"", 2, &["no address", "to dmz"]),
        ("to = \"fd00::/8\"\nvia = \"fe80::1\"", 2, &["link-local", "add dev"]),
        ("to = \"fd00::/8\"\nvia = \"fe80::1\"\ndev = \"dmz\"", 2, &["needs IPv6", "mtu 1000"]),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.1\"", 2, &["the router's own, on lan (line 5)"]),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.1\"\ndev = \"wan\"", 2, &["the router's own"]),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.0\"", 2, &["network address of 192.0.2.0/24"]),
        ("to = \"10.0.0.0/8\"\nvia = \"192.0.2.255\"", 2, &["broadcast address"]),
        ("to = \"10.0.0.0/8\"\nvia = \"2001:db8:2::2\"", 2, &["RFC 5549", "not supported"]),
        ("to = \"fd00::/8\"\nvia = \"192.0.2.2\"", 2, &["IPv6 destination", "IPv4 next hop"]),
        ("to = \"fd00::/8\"\ngroup = \"uplinks\"", 2, &["IPv4 next hop 198.51.100.253"]),
        (
            "to = \"10.0.0.0/8\"\nnexthops = [\n{ via = \"192.0.2.2\" },\n{ via = \"192.0.2.2\", dev = \"lan\" }]",
            4,
            &["twice", "larger weight"],
        ),
    ]);
}

#[test]
fn groups() {
    assert_after_base(&[
        ("[groups.g]\nnexthops = []", 2, &["group g has an empty list"]),
        ("[groups.\"\"]\nnexthops = [{ dev = \"lan\" }]", 1, &["group name is empty"]),
        ("[groups.g]\nnexthops = [{ dev = \"lan\", weight = 0 }]", 2, &["weight is 0", "1 to 256"]),
        ("[groups.g]\nnexthops = [{ dev = \"lan\", weight = 257 }]", 2, &["weight is 257"]),
        ("[groups.g]\nnexthops = [{ via = \"203.0.113.1\" }]", 2, &["subnet of any vrf"]),
        (
            "[groups.g]\nnexthops = [{ via = \"192.0.2.2\" },\n{ via = \"2001:db8:2::2\" }]",
            3,
            &["another family", "one group for IPv4"],
        ),
        (
            "[ports.x]\nkind = \"memory\"\nvrf = \"red\"\naddresses = [\"192.0.2.3/24\"]\n[groups.g]\nnexthops = [{ via = \"192.0.2.2\" }]",
            6,
            &["could be on lan or x", "add dev"],
        ),
    ]);
}

#[test]
fn neighbours() {
    let cases = [
        ("lan", "192.0.2.2", "01:00:5e:00:00:01", 4, "multicast Ethernet"),
        ("lan", "192.0.2.2", "00:00:00:00:00:00", 4, "all zero"),
        ("lan", "192.0.2.2", "lan", 4, "not an Ethernet address"),
        ("lan", "198.51.100.2", "02:00:00:00:00:01", 3, "in no subnet of lan"),
        ("lan", "192.0.2.1", "02:00:00:00:00:01", 3, "the router's own"),
        ("lan", "192.0.2.255", "02:00:00:00:00:01", 3, "broadcast address"),
        ("lan", "224.0.0.5", "02:00:00:00:00:01", 3, "multicast"),
        ("lan", "192.0.2.2/24", "02:00:00:00:00:01", 3, "a prefix"),
        ("lo", "192.0.2.2", "02:00:00:00:00:01", 2, "dev \"lo\" is not a link"),
    ];
    for (dev, address, mac, line, words) in cases {
        let text = format!(
            "{BASE}[[neighbours]]\ndev = \"{dev}\"\naddress = \"{address}\"\nmac = \"{mac}\"\n"
        );
        assert_only(&text, BASE_LINES + line, &[words]);
    }
    let one =
        "[[neighbours]]\ndev = \"lan\"\naddress = \"192.0.2.2\"\nmac = \"02:00:00:00:00:02\"\n";
    let words = ["192.0.2.2 on lan is a neighbour already (line 27)"];
    assert_only(&format!("{BASE}{one}{one}"), BASE_LINES + 7, &words);
}
