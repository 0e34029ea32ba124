//! The guide's section "With FRR", run as it is written: its configuration brings routes.

use std::path::Path;

use crate::namespaces::{Host, sh, until};
use crate::speakers::Speakers;
use crate::typed::{block, commands, output_of, session, succeeded};

const PAGE: &str = include_str!("../../../../docs/guide/with-frr.md");

/// What the neighbour announces.
const PEER: &str = "router bgp 65002
 bgp router-id 192.0.2.140
 no bgp ebgp-requires-policy
 no bgp network import-check
 neighbor 192.0.2.129 remote-as 65001
 neighbor 192.0.2.129 timers connect 1
 address-family ipv4 unicast
  network 198.51.100.0/24
";

/// The router of "a router in five minutes": its devices, each with a host behind it.
fn scene() -> [Host; 2] {
    [("eth0", "192.0.2.1", "192.0.2.10"), ("eth1", "192.0.2.129", "192.0.2.140")].map(
        |(device, own, other)| {
            let host = Host::new();
            sh(&format!("ip link add {device} type veth peer name host netns {}", host.0.0.id()));
            sh(&format!("ip address add {own}/25 dev {device}"));
            sh(&format!("ip link set {device} up"));
            sh(&format!("ethtool -K {device} rx off rxvlan off"));
            host.sh("ethtool -K host tx off");
            host.sh(&format!("ip address add {other}/25 dev host"));
            host.sh("ip link set host up");
            host.sh(&format!("ip route add default via {own}"));
            host
        },
    )
}

/// The daemons of the router, with the page's configuration, and those of the neighbour.
fn speakers(dir: &Path, neighbour: &Host) -> [Speakers; 2] {
    let mut router = Speakers::new(dir.join("router"), None);
    router.start_zebra();
    router.start_bgpd(&block(PAGE, "router bgp 65001"));
    let mut peer = Speakers::new(dir.join("peer"), Some(neighbour));
    peer.start_bgpd(PEER);
    [router, peer]
}

pub fn brings_routes() {
    let hosts = scene();
    sh("sysctl -qw net.ipv4.ip_forward=1");
    let dir = tempfile::tempdir().unwrap();
    sh(&format!("chmod 755 {}", dir.path().display()));
    let [router, peer] = speakers(dir.path(), &hosts[1]);
    until("a route by BGP", || {
        let has = sh("ip route show proto bgp").contains("198.51.100.0/24");
        assert!(router.log().len() + peer.log().len() < 1 << 20, "{}", router.log());
        has
    });
    let start = ["tollway run eth0 eth1 &", "until tollway sync; do sleep 0.1; done"];
    let typed = session(&[&start[..], &commands(PAGE), &["kill %1; wait"]].concat());
    succeeded(&typed);
    let kernels = output_of(&typed, "ip route show proto bgp");
    assert!(kernels.contains("via 192.0.2.140 dev eth1"), "{kernels}");
    let own = output_of(&typed, "tollway show routes get");
    assert!(own.contains("198.51.100.1 takes 198.51.100.0/24 in the VRF main"), "{own}");
    assert!(own.contains("192.0.2.140  eth1"), "{own}");
}
