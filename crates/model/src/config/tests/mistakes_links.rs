//! Mistakes in the file itself, in ports, VLAN links, VRFs and addresses.

use super::{assert_after_base, assert_alone, assert_only};

#[test]
fn syntax_errors() {
    assert_alone(&[
        ("[ports.wan]\nkind = \"memory\"\nmtu = = 1", 3, &["t.toml:3: "]),
        ("[ports.wan\nkind = \"memory\"", 1, &["TOML wants"]),
        ("[ports.wan]\nkind = memory", 2, &["string"]),
        ("[ports.wan]\nkind = \"memory\"\nmtu = 1500\nmtu = 1400", 4, &["already given above"]),
        ("[ports.wan]\nkind = \"memory\"\n[ports.wan]\nmtu = 1400", 3, &["already given"]),
    ]);
}

#[test]
fn unknown_keys() {
    assert_alone(&[
        ("control = 7\n[ports.a]\nkind = \"memory\"", 1, &["control", "not a string", "quotes"]),
        ("control = \"\"\n[ports.a]\nkind = \"memory\"", 1, &["control", "not a file name"]),
        ("[port.wan]\nkind = \"memory\"\n[ports]", 1, &["unknown key \"port\"", "ports?"]),
        ("[ports.wan]\nkind = \"memory\"\nadresses = []", 3, &["adresses", "addresses?"]),
        ("[ports.wan]\nkind = \"memory\"\ncolour = 1", 3, &["colour", "the keys here are kind"]),
    ]);
    assert_after_base(&[
        ("[neighbors]", 1, &["did you mean neighbours?"]),
        ("[vrfs.blue]\ntable = 5", 2, &["vrf blue", "table"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = 5\nid = 5", 4, &["VLAN link x", "vid?"]),
        ("[[routes]]\nto = \"10.0.0.0/8\"\nvia = \"192.0.2.2\"\ngateway = 1", 4, &["via?"]),
        ("[groups.g]\nnexthops = [{ dev = \"lan\" }]\nnexthop = 1", 3, &["nexthop"]),
        // The mistyped key hides that a key is missing.
        ("[[routes]]\nto = \"10.0.0.0/8\"\ngateway = \"192.0.2.2\"", 3, &["via?"]),
        ("[vlans.x]\nparnt = \"lan\"\nvid = 5", 2, &["parent?"]),
        ("[groups.g]\nnexthop = []", 2, &["nexthops?"]),
        ("[groups.g]\nnexthops = [{ dev = \"lan\", wieght = 1 }]", 2, &["weight?"]),
        (
            "[[neighbours]]\ndev = \"lan\"\naddress = \"192.0.2.7\"\nmac = \"02:00:00:00:00:07\"\nlladdr = 1",
            5,
            &["mac?"],
        ),
    ]);
}

#[test]
fn wrong_types() {
    assert_alone(&[
        ("ports = 5", 1, &["ports", "not a table", "[ports.NAME]"]),
        ("[[ports]]\nkind = \"memory\"", 1, &["a list, not a table"]),
        ("[ports]\nwan = \"memory\"", 2, &["ports.wan is a string, not a table"]),
        ("[ports.wan]\nkind = 5", 2, &["kind of port wan is a whole number, not a string"]),
        ("[ports.wan]\nkind = \"memory\"\nmtu = \"1500\"", 3, &["not a whole", "mtu = 1500"]),
        ("[ports.wan]\nkind = \"memory\"\nmtu = 1.5", 3, &["with a fraction"]),
        ("[ports.wan]\nkind = \"memory\"\naddresses = \"10.0.0.1/8\"", 3, &["not a list"]),
        ("[ports.wan]\nkind = \"memory\"\naddresses = [5]", 3, &["an address is not a string"]),
    ]);
    assert_after_base(&[
        ("[routes]\nto = \"10.0.0.0/8\"", 1, &["a table, not a list"]),
        ("[groups.g]\nnexthops = [\"10.0.10.2\"]", 2, &["holds a string, not a table"]),
    ]);
}

#[test]
fn missing_keys() {
    assert_alone(&[
        ("", 1, &["the configuration has no ports", "[ports.NAME]"]),
        ("[ports.wan]", 1, &["port wan has no kind", "af_packet"]),
        ("[ports.wan]\nkind = \"capture\"", 1, &["has no input or output"]),
    ]);
    assert_after_base(&[
        ("[vlans.\"lan.20\"]\nvid = 20", 1, &["lan.20 has no parent"]),
        ("[vlans.\"lan.20\"]\nparent = \"lan\"", 1, &["has no vid", "vid = 20"]),
        ("[groups.g]", 1, &["group g has no nexthops"]),
        ("[[routes]]\nvia = \"192.0.2.2\"", 1, &["this route has no to"]),
        ("[[routes]]\nto = \"10.0.0.0/8\"", 1, &["this route has no next hop"]),
        ("[groups.g]\nnexthops = [{ weight = 2 }]", 2, &["has no via or dev"]),
        ("[[neighbours]]\ndev = \"lan\"\naddress = \"192.0.2.7\"", 1, &["has no mac"]),
        ("[[neighbours]]\ndev = \"lan\"\nmac = \"02:00:00:00:00:07\"", 1, &["has no address"]),
        ("[[neighbours]]\naddress = \"192.0.2.7\"\nmac = \"02:00:00:00:00:07\"", 1, &["no dev"]),
    ]);
}

#[test]
fn ways_to_fail() {
    let file = |line: &str| format!("{line}\n[ports.wan]\nkind = \"memory\"");
    let words: &[&str] = &["\"shut\" is not a known way to fail", "write one of closed, open"];
    assert_only(&file("fail = \"shut\""), 1, words);
    assert_only(&file("fail = \"opne\""), 1, &["did you mean open?"]);
    assert_only(&file("fail = true"), 1, &["fail of the configuration is true or false"]);
}

#[test]
fn the_xdp_path() {
    let file = |line: &str| format!("{line}\n[ports.wan]\nkind = \"memory\"");
    let cases: [(&str, &[&str]); 5] = [
        ("xdp = \"yes\"", &["\"yes\" is not a known mode of the XDP path", "auto, on, off"]),
        ("xdp = \"atuo\"", &["did you mean auto?"]),
        ("xdp = true", &["xdp of the configuration is true or false, not a string"]),
        ("xdp = [\"on\"]", &["is a list, not a string"]),
        ("xpd = \"on\"", &["unknown key \"xpd\"", "did you mean xdp?"]),
    ];
    for (line, words) in cases {
        assert_only(&file(line), 1, words);
    }
    // A port does not have this key.
    let text = "[ports.wan]\nkind = \"memory\"\nxdp = \"on\"";
    assert_only(text, 3, &["unknown key \"xdp\""]);
}

#[test]
fn ports() {
    assert_alone(&[
        ("[ports.wan]\nkind = \"af_pakcet\"", 2, &["\"af_pakcet\"", "did you mean af_packet?"]),
        ("[ports.wan]\nkind = \"dpdk\"", 2, &["one of memory, capture, tap, af_packet, af_xdp"]),
        ("[ports.wan]\nkind = \"xdp\"", 2, &["did you mean af_xdp?"]),
        ("[ports.wan]\nkind = \"af_xdp\"\nmode = \"zerocopy\"", 3, &["did you mean zero-copy?"]),
        ("[ports.wan]\nkind = \"af_xdp\"\nmode = \"fast\"", 3, &["auto, zero-copy, copy, generic"]),
        ("[ports.wan]\nkind = \"af_xdp\"\nmode = 4", 3, &["not a string"]),
        (
            "[ports.wan]\nkind = \"af_packet\"\nmode = \"copy\"",
            3,
            &["mode does not apply", "af_xdp"],
        ),
        ("[ports.wan]\nkind = \"af_xdp\"\ninput = \"a\"", 3, &["input does not apply"]),
        ("[ports.wan]\nkind = \"memory\"\ndevice = \"eth0\"", 3, &["device does not apply", "tap"]),
        ("[ports.wan]\nkind = \"tap\"\ninput = \"a\"", 3, &["input does not apply", "capture"]),
        ("[ports.wan]\nkind = \"af_packet\"\noutput = \"a\"", 3, &["output does not apply"]),
        ("[ports.wan]\nkind = \"capture\"\ninput = \"\"", 3, &["input is not a file name"]),
        ("[ports.wan]\nkind = \"tap\"\ndevice = \"0123456789abcdef\"", 3, &["16 bytes"]),
        ("[ports.wan]\nkind = \"tap\"\ndevice = \"a/b\"", 3, &["kernel refuses", "'/'"]),
        ("[ports.wan]\nkind = \"tap\"\ndevice = \"a b\"", 3, &["kernel refuses"]),
        ("[ports.wan]\nkind = \"tap\"\ndevice = \"tap%d\"", 3, &["kernel refuses", "'%'"]),
        ("[ports.wan]\nkind = \"tap\"\ndevice = \"a\\u0000\"", 3, &["control characters"]),
        ("[ports.wan]\nkind = \"tap\"\ndevice = \"..\"", 3, &["\"..\""]),
        ("[ports.wan]\nkind = \"tap\"\ndevice = \"\"", 3, &["is empty"]),
        ("[ports.\"a:b\"]\nkind = \"memory\"", 1, &["link name \"a:b\""]),
        (
            "[ports.a]\nkind = \"tap\"\n[ports.b]\nkind = \"af_packet\"\ndevice = \"a\"",
            5,
            &["line 1"],
        ),
        (
            "[ports.a]\nkind = \"capture\"\ninput = \"x\"\n[ports.b]\nkind = \"capture\"\noutput = \"x\"",
            6,
            &["\"x\" is already read", "line 3"],
        ),
        (
            "[ports.a]\nkind = \"capture\"\noutput = \"x\"\n[ports.b]\nkind = \"capture\"\noutput = \"x\"",
            6,
            &["\"x\" is already written", "line 3"],
        ),
    ]);
}

#[test]
fn ethernet_addresses() {
    let cases = [
        ("", "not an Ethernet address"),
        ("02:00:00:00:00", "not an Ethernet address"),
        ("02:00:00:00:00:01:02", "not an Ethernet address"),
        ("02:00:00:00:00:+1", "not an Ethernet address"),
        ("02:00:00-00:00:01", "not an Ethernet address"),
        ("00:00:00:00:00:00", "all zero"),
        ("01:00:5e:00:00:01", "multicast"),
        ("ff:ff:ff:ff:ff:ff", "multicast"),
    ];
    for (mac, words) in cases {
        let text = format!("[ports.wan]\nkind = \"memory\"\nmac = \"{mac}\"");
        assert_only(&text, 3, &[words]);
    }
}

#[test]
fn mtus() {
    assert_alone(&[
        ("[ports.wan]\nkind = \"memory\"\nmtu = 67", 3, &["67", "from 68 to 16000"]),
        ("[ports.wan]\nkind = \"memory\"\nmtu = 16001", 3, &["16001", "16000"]),
        ("[ports.wan]\nkind = \"memory\"\nmtu = -1", 3, &["-1, out of range"]),
        ("[ports.wan]\nkind = \"memory\"\nmtu = 99999999999999999999", 3, &["out of range"]),
        (
            "[ports.wan]\nkind = \"memory\"\nmtu = 1279\naddresses = [\"2001:db8::1/64\"]",
            3,
            &["mtu 1279", "IPv6", "1280"],
        ),
    ]);
    assert_after_base(&[
        ("[vlans.x]\nparent = \"lan\"\nvid = 5\nmtu = 1501", 4, &["above the 1500", "lan"]),
        (
            "[vlans.x]\nparent = \"dmz\"\nvid = 5\naddresses = [\"2001:db8::1/64\"]",
            4,
            &["mtu 1000 from its parent", "IPv6"],
        ),
    ]);
}

#[test]
fn addresses_by_themselves() {
    let cases = [
        ("wan", "not an address", "192.0.2.1/24"),
        ("10.0.0.1", "not an address with a prefix length", "\"10.0.0.1/24\""),
        ("fd00::1", "not an address with a prefix length", "\"fd00::1/64\""),
        ("10.0.0.1/33", "not an address", "0 to 32"),
        ("fd00::1/129", "not an address", "0 to 128"),
        ("10.0.0.0/24", "network address of 10.0.0.0/24", "between"),
        ("10.0.0.255/24", "broadcast address", "between"),
        ("10.0.0.3/30", "broadcast address", "between"),
        ("224.0.0.1/24", "multicast", "unicast"),
        ("ff02::1/64", "multicast", "unicast"),
        ("127.0.0.1/8", "loopback", "unicast"),
        ("::1/128", "loopback", "unicast"),
        ("0.0.0.0/0", "unspecified", "unicast"),
        ("::/64", "unspecified", "unicast"),
        ("0.1.2.3/8", "this network", "unicast"),
        ("240.0.0.1/24", "reserved", "unicast"),
        ("255.255.255.255/32", "reserved", "unicast"),
        ("::ffff:10.0.0.1/120", "IPv4-mapped", "unicast"),
        ("10.0.0.1/0", "every address", "prefix length"),
    ];
    for (address, what, remedy) in cases {
        let text = format!("[ports.wan]\nkind = \"memory\"\naddresses = [\n\"{address}\"]");
        assert_only(&text, 4, &[what, remedy]);
    }
}

#[test]
fn addresses_of_different_links() {
    assert_after_base(&[
        (
            "[ports.x]\nkind = \"memory\"\naddresses = [\"192.0.2.1/32\"]",
            3,
            &["192.0.2.1 is already an address of lan (line 7)"],
        ),
        (
            "[ports.x]\nkind = \"memory\"\naddresses = [\"10.9.0.1/24\", \"10.9.0.1/16\"]",
            3,
            &["10.9.0.1 is already an address of x"],
        ),
        (
            "[ports.x]\nkind = \"memory\"\naddresses = [\"fe80::1/64\", \"fe80::1/64\"]",
            3,
            &["fe80::1 is already an address of x"],
        ),
        (
            "[ports.x]\nkind = \"memory\"\naddresses = [\"192.0.2.130/25\"]",
            3,
            &["192.0.2.130/25 overlaps 192.0.2.1/24 of lan (line 7) in vrf main"],
        ),
        (
            "[ports.x]\nkind = \"memory\"\naddresses = [\"2001:db8:1::9/48\"]",
            3,
            &["overlaps 2001:db8:1::1/64 of wan (line 3)"],
        ),
        (
            "[ports.x]\nkind = \"memory\"\nvrf = \"red\"\naddresses = [\"10.0.10.129/25\"]",
            4,
            &["of lan.10 (line 17) in vrf red"],
        ),
    ]);
}

#[test]
fn vlans() {
    assert_after_base(&[
        ("[vlans.x]\nparent = \"lan\"\nvid = 0", 3, &["VLAN 0", "1 to 4094"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = 4095", 3, &["VLAN 4095", "reserved"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = 4096", 3, &["12 bits"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = -1", 3, &["VLAN -1", "1 to 4094"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = 18446744073709551616", 3, &["12 bits", "1 to 4094"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = -1", 3, &["out of range"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = 5\nprotocol = \"802.1q\"", 4, &["802.1Q?"]),
        ("[vlans.x]\nparent = \"lan\"\nvid = 5\nprotocol = \"qinq\"", 4, &["802.1Q, 802.1ad"]),
        (
            "[vlans.x]\nparent = \"lan\"\nvid = 10",
            3,
            &["VLAN 10 of lan is already lan.10 (line 13)"],
        ),
        ("[vlans.x]\nparent = \"lam\"\nvid = 5", 2, &["parent \"lam\"", "did you mean lan?"]),
        ("[vlans.x]\nparent = \"nowhere\"\nvid = 5", 2, &["not a link", "name a port"]),
        ("[vlans.x]\nparent = \"x\"\nvid = 5", 2, &["x is its own parent"]),
        (
            "[vlans.x]\nparent = \"y\"\nvid = 5\n[vlans.y]\nparent = \"x\"\nvid = 5",
            2,
            &["x, y form a loop", "end at a port"],
        ),
        (
            "[vlans.w]\nparent = \"x\"\nvid = 6\n[vlans.x]\nparent = \"y\"\nvid = 5\n[vlans.y]\nparent = \"x\"\nvid = 5",
            5,
            &["x, y form a loop"],
        ),
        (
            "[vlans.x]\nparent = \"lan.10\"\nvid = 5\n[vlans.y]\nparent = \"x\"\nvid = 5\n[vlans.z]\nparent = \"y\"\nvid = 5",
            5,
            &["y would carry more than two VLAN tags"],
        ),
        (
            "[vlans.wan]\nparent = \"lan\"\nvid = 5",
            1,
            &["name wan is already that of a link", "line 1"],
        ),
        ("[vlans.\"0123456789abcdef\"]\nparent = \"lan\"\nvid = 5", 1, &["16 bytes"]),
    ]);
}

#[test]
fn vrfs() {
    assert_after_base(&[
        ("[vrfs.main]", 1, &["main is always there", "remove"]),
        ("[vrfs.\"a b\"]", 1, &["vrf name \"a b\""]),
        ("[vrfs.lan]", 1, &["name lan is already that of a vrf", "line 5"]),
        ("[ports.x]\nkind = \"memory\"\nvrf = \"rde\"", 3, &["vrf \"rde\"", "red?"]),
        ("[ports.x]\nkind = \"memory\"\nvrf = \"blue\"", 3, &["not defined", "[vrfs.blue]"]),
    ]);
}

#[test]
fn wrong_engines() {
    assert_alone(&[
        ("[ports.wan]\nkind = \"af_xdp\"\nengine = \"ebpf\"", 3, &["engine", "auto"]),
        (
            "[ports.wan]\nkind = \"af_xdp\"\nmode = \"copy\"\nengine = \"tc\"",
            3,
            &["no mode", "remove mode"],
        ),
        ("[ports.wan]\nkind = \"tap\"\nengine = \"tc\"", 3, &["engine", "af_xdp"]),
    ]);
    let rules = "filter = \"rules.nft\"\n[ports.wan]\nkind = \"af_xdp\"\nengine = \"tc\"";
    let found = super::mistakes(rules);
    let is_it = |text: String| text.contains("does not know the rules");
    assert!(found.iter().any(|mistake| is_it(mistake.to_string())), "{found:?}");
}
