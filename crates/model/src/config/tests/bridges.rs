//! Bridges of the file: what is accepted, and every mistake.

use super::super::parse;
use super::{assert_only, mistakes};
use crate::{LearningBridge, LearningPort, PortIndex, StaticEntry};
use tollway_net::Mac;

/// Three ports, a VLAN link and a VRF, on lines 1 to 16.
const BASE: &str = r#"[ports.a]
kind = "memory"
[ports.b]
kind = "memory"
[ports.c]
kind = "memory"
[ports.routed]
kind = "memory"
addresses = ["192.0.2.1/24"]
[ports.trunk]
kind = "memory"
[vlans.v]
parent = "trunk"
vid = 10
[ports.card]
kind = "af_xdp"
"#;

const BASE_LINES: usize = 16;

fn bridges(text: &str) -> Vec<LearningBridge> {
    let text = format!("{BASE}{text}");
    match parse(&text, "t.toml") {
        Ok(loaded) => loaded.model.bridges,
        Err(mistakes) => panic!("{mistakes:#?}"),
    }
}

#[test]
fn names_of_ports_are_enough() {
    let expected = LearningBridge {
        name: "br0".to_owned(),
        ports: vec![LearningPort::new(PortIndex(0)), LearningPort::new(PortIndex(1))],
        ageing_s: 300,
        max_entries: 131_072,
        entries: Vec::new(),
    };
    assert_eq!(bridges("[bridges.br0]\nports = [\"a\", \"b\"]"), [expected]);
    assert_eq!(bridges(""), []);
}

#[test]
fn every_key_is_read() {
    let text = r#"
        [bridges.br0]
        ports = [
            { port = "b", isolated = true, hairpin = true, learning = false, storm_limit = 1000 },
            "a",
        ]
        ageing_s = 10
        max_entries = 5
        [[bridges.br0.entries]]
        mac = "02:00:00:00:00:01"
        port = "a"
        [bridges.br1]
        ports = []
    "#;
    let b = LearningPort {
        port: PortIndex(1),
        is_isolated: true,
        is_hairpin: true,
        learns: false,
        storm_limit: Some(1000),
    };
    let found = bridges(text);
    assert_eq!(found[0].ports, [b, LearningPort::new(PortIndex(0))]);
    assert_eq!((found[0].ageing_s, found[0].max_entries), (10, 5));
    let mac = Mac([2, 0, 0, 0, 0, 1]);
    assert_eq!(found[0].entries, [StaticEntry { mac, port: PortIndex(0) }]);
    assert_eq!((found[1].name.as_str(), found[1].ports.len()), ("br1", 0));
}

#[test]
fn each_mistake_has_its_line_and_remedy() {
    for (text, line, words) in [
        ("[bridges.br0]", 1, &["bridge br0 has no ports", "[\"a\", \"b\"]"][..]),
        ("[bridges.br0]\nport = [\"a\"]", 2, &["did you mean ports?"]),
        ("[bridges.br0]\nports = \"a\"", 2, &["not a list"]),
        ("[bridges.br0]\nports = [5]", 2, &["neither a name nor a table", "isolated = true"]),
        ("[bridges.br0]\nports = [\"aa\"]", 2, &["\"aa\" is not a port", "mean a?"]),
        ("[bridges.br0]\nports = [{ isolated = true }]", 2, &["has no port", "name the port"]),
        ("[bridges.br0]\nports = [{ port = \"a\", isolated = 1 }]", 2, &["not true or false"]),
        ("[bridges.br0]\nports = [{ port = \"a\", storm_limit = 0 }]", 2, &["out of range"]),
        ("[bridges.br0]\nports = [\"a\", \"a\"]", 2, &["belongs to a bridge already (line 18)"]),
        (
            "[bridges.br0]\nports = [\"a\"]\n[bridges.br1]\nports = [\"b\", \"a\"]",
            4,
            &["port a belongs to a bridge already (line 18)"],
        ),
        ("[bridges.br0]\nports = [\"routed\"]", 2, &["has the address 192.0.2.1/24 (line 7)"]),
        ("[bridges.br0]\nports = [\"trunk\"]", 2, &["carries the VLAN link v (line 12)"]),
        ("[bridges.br0]\nports = [\"card\"]", 2, &["kind af_xdp (line 15)", "af_packet"]),
        ("[bridges.a]\nports = []", 1, &["the name a is already that of a link (line 1)"]),
        ("[bridges.\"a/b\"]\nports = []", 1, &["bridge name", "refuses"]),
        ("[bridges.br0]\nports = []\nageing_s = 0", 3, &["from 1 to 1000000"]),
        ("[bridges.br0]\nports = []\nmax_entries = 131073", 3, &["from 1 to 131072"]),
    ] {
        assert_only(&format!("{BASE}{text}"), BASE_LINES + line, words);
    }
}

#[test]
fn entries_are_checked_against_ports() {
    const BRIDGE: &str = "[bridges.br0]\nports = [\"a\"]\n[[bridges.br0.entries]]\n";
    for (text, line, words) in [
        ("port = \"a\"", 3, &["this entry has no mac"][..]),
        ("mac = \"02:00:00:00:00:01\"", 3, &["this entry has no port"]),
        ("mac = \"03:00:00:00:00:01\"\nport = \"a\"", 4, &["multicast"]),
        (
            "mac = \"02:00:00:00:00:01\"\nport = \"b\"",
            5,
            &["port b does not belong to this bridge"],
        ),
        ("mac = \"02:00:00:00:00:01\"\nport = \"x\"", 5, &["\"x\" is not a port"]),
        ("mac = \"02:00:00:00:00:01\"\nport = \"a\"\nvlan = 1", 6, &["unknown key", "mac, port"]),
        (
            "mac = \"02:00:00:00:00:01\"\nport = \"a\"\n[[bridges.br0.entries]]\n\
             mac = \"02:00:00:00:00:01\"\nport = \"a\"",
            7,
            &["02:00:00:00:00:01 has an entry in this bridge already (line 20)"],
        ),
    ] {
        assert_only(&format!("{BASE}{BRIDGE}{text}"), BASE_LINES + line, words);
    }
}

#[test]
fn a_port_of_a_bridge_has_no_vrf() {
    let text =
        "[vrfs.red]\n[ports.d]\nkind = \"memory\"\nvrf = \"red\"\n[bridges.br0]\nports = [\"d\"]";
    assert_only(&format!("{BASE}{text}"), BASE_LINES + 6, &["has a vrf (line 18)"]);
    assert_eq!(mistakes(BASE), []);
}
