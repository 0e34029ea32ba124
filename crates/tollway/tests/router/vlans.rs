//! Tests that need VLAN and VRF devices. They run in a virtual machine, since not every kernel has
//! these.

use super::generic;
use super::machines::Part;
use super::namespaces::{Host, sh};
use super::routed_bridges;
use super::typed::{Typed, commands, output_of, session, succeeded};

const PAGE: &str = include_str!("../../../../docs/guide/with-vlans-and-vrfs.md");
/// The tests in the machine.
pub const PARTS: [Part; 3] = [
    ("the guide", guide),
    ("generic mode", generic::tags),
    ("vlans on a bridge", routed_bridges::tagged),
];

/// Makes a host with an address on a cable to the router's device, or on a VLAN of it. The host
/// leaves no checksum or tag to offloads.
fn plug(device: &str, vid: Option<u16>, address: &str) -> Host {
    let host = Host::new();
    sh(&format!("ip link add {device} type veth peer name host netns {}", host.0.0.id()));
    sh(&format!("ethtool -K {device} rx off"));
    host.sh("ethtool -K host tx off txvlan off tx-vlan-stag-hw-insert off");
    host.sh("ip link set lo up");
    host.sh("ip link set host up");
    let mut own = "host".to_owned();
    if let Some(vid) = vid {
        own = format!("host.{vid}");
        host.sh(&format!("ip link add link host name {own} type vlan id {vid}"));
        host.sh(&format!("ip link set {own} up"));
    }
    host.sh(&format!("ip address add {address} dev {own}"));
    host
}

/// Runs the commands of "With VLANs and VRFs" as the guide shows them.
fn guide() {
    let a = plug("eth0", Some(10), "192.0.2.10/25");
    let b = plug("eth1", None, "192.0.2.140/25");
    a.sh("ip route add default via 192.0.2.1");
    b.sh("ip route add default via 192.0.2.129");
    b.sh("ip address add 198.51.100.1/32 dev lo");
    let all = commands(PAGE);
    let run = all.iter().position(|command| command.starts_with("tollway run ")).unwrap();
    let (before, after) = all.split_at(run + 1);
    let ping = format!("nsenter -t {} -n ping -n -c 20 -i 0.1 -W 5 198.51.100.1", a.0.0.id());
    let meanwhile = ["until tollway sync; do sleep 0.1; done", &ping, "tollway show ports"];
    let typed = session(&[before, &meanwhile, after, &["kill %1; wait"]].concat());
    succeeded(&typed);
    assert!(typed.len() > 12, "{}", typed.len());
    let check = output_of(&typed, "tollway check");
    for link in ["eth0\n", "eth0.10 on eth0, VRF red\n", "eth1, VRF red\n"] {
        let is_fast = format!("{link}  IPv4 in, IPv4 out  fast\n");
        assert!(check.contains(&is_fast), "{is_fast}: {check}");
    }
    let links = output_of(&typed, "tollway show links");
    assert!(links.contains("eth0.10"), "{links}");
    let ping = output_of(&typed, "nsenter");
    assert!(ping.contains(" 0% packet loss"), "{ping}");
    // The output has all that the page shows, except random addresses.
    let routes = output_of(&typed, "tollway show routes --vrf");
    for shown in shown_routes() {
        let has = |line: &str| line.split_whitespace().take(shown.len()).eq(shown.iter().copied());
        assert!(routes.lines().any(has), "{shown:?}: {routes}");
    }
    let get = output_of(&typed, "tollway show routes get");
    assert!(get.contains("198.51.100.1 takes 198.51.100.0/24 in the VRF red"), "{get}");
    user_forwards(&typed);
}

/// Returns the lines of the page's table of routes, without Ethernet addresses.
fn shown_routes() -> Vec<Vec<&'static str>> {
    let (_, table) = PAGE.split_once("IPv4 routes of the VRF red\n").unwrap();
    let lines = table.lines().take_while(|line| !line.starts_with('#'));
    let rows: Vec<Vec<_>> = lines.map(|line| line.split_whitespace().take(4).collect()).collect();
    assert!(rows.len() > 5, "{rows:?}");
    rows
}

/// Asserts that Tollway forwarded the pings.
fn user_forwards(typed: &[Typed]) {
    let ports = output_of(typed, "tollway show ports");
    let sent = ports.lines().filter(|line| line.contains("eth")).any(|line| {
        let mut numbers = line.split_whitespace().filter_map(|word| word.parse::<u64>().ok());
        numbers.any(|number| number >= 10)
    });
    assert!(sent, "{ports}");
}
