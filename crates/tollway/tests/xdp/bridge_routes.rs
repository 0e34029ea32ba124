//! Tests how the programs of bridges' ports route what is for a bridge itself, and send what leaves by one.

use std::net::IpAddr;
use std::time::Duration;

use tollway_dataplane::id::{BridgeId, PortId, VrfId};
use tollway_dataplane::prefix::RoutePrefix;
use tollway_dataplane::stages::bridge::{BridgedIp, FdbKind, Tagged};
use tollway_xdp::Mode;
use tollway_xdp::counts::PassReason;

use super::bridges::{
    BRIDGE, Bench, DOMAIN, INNER_VID, LINKS, MTU, PORTS, TAGGED_LINK, VID, bridge_port, framed,
    host, key,
};
use super::frames::{Packet, header, sign};

/// Ticks take 67 ms.
const TWO_TICKS: Duration = Duration::from_millis(140);
/// Two hosts of the first bridge, one of them in a VLAN on it, and one of the second bridge, with their networks.
const FIRST: &str = "10.1.0.7";
const TAGGED: &str = "10.2.0.7";
const SECOND: &str = "10.3.0.7";
/// IPv6 to the host of the second bridge.
const SECOND6: &str = "fd03::7";

/// Routes to the hosts, which are behind the ports 1, 1 and 3.
fn bench(mode: Mode) -> Bench {
    let mut bench = Bench::new(mode);
    let hosts = [
        (FIRST, LINKS[0], 1),
        (TAGGED, TAGGED_LINK, 1),
        (SECOND, LINKS[1], 3),
        (SECOND6, LINKS[1], 3),
    ];
    for (address, link, port) in hosts {
        let address: IpAddr = address.parse().unwrap();
        bench.tables.set_neigh(link, address, Some(host(port))).unwrap();
        let id = bench.tables.neigh(link, address).unwrap();
        let prefix = RoutePrefix::new(address, if address.is_ipv4() { 24 } else { 64 });
        bench.tables.insert(VrfId(0), prefix, id).unwrap();
    }
    bench.tables.write_engines();
    for port in 0..PORTS {
        bench.programs.state().set_exit_limit(PortId(port), 14 + 4 + MTU);
    }
    bench
}

/// A packet for one of these hosts.
fn packet(dst: &str) -> Packet {
    Packet::new(if dst.contains(':') { "fd09::2" } else { "10.9.0.2" }, dst)
}

/// Sends it in a frame to the bridge, from the host behind a port.
fn run(bench: &Bench, from: u16, packet: &Packet) -> Result<(u16, Vec<u8>), PassReason> {
    bench.route(from, &framed(BRIDGE, host(from), packet))
}

/// The frame that leaves: another header, and a hop less.
fn routed(packet: &Packet, to: [u8; 6], tags: &[(u16, u16)]) -> Vec<u8> {
    let is_v4 = packet.src.is_ipv4();
    let mut ip = packet.frame().split_off(packet.l3());
    ip[if is_v4 { 8 } else { 7 }] -= 1;
    if is_v4 {
        sign(&mut ip[..20]);
    }
    [header(to, BRIDGE, tags, if is_v4 { 0x0800 } else { 0x86dd }), ip].concat()
}

pub fn links(mode: Mode) {
    let bench = bench(mode);
    for dst in [SECOND, SECOND6] {
        let to = Ok((3, routed(&packet(dst), host(3), &[])));
        assert_eq!(run(&bench, 0, &packet(dst)), to, "from one bridge to the other");
        if !mode.is_tc() {
            assert_eq!(run(&bench, 0, &packet(dst).tagged(&[(0x8100, VID)])), to, "from a VLAN");
            let twice = packet(dst).tagged(&[(0x8100, VID), (0x8100, INNER_VID)]);
            assert_eq!(run(&bench, 0, &twice), to, "from a VLAN in it");
            let other = packet(dst).tagged(&[(0x8100, VID), (0x8100, VID)]);
            assert_eq!(run(&bench, 0, &other), Err(PassReason::Undecided));
            let other_vlan = packet(dst).tagged(&[(0x8100, VID + 1)]);
            assert_eq!(run(&bench, 0, &other_vlan), Err(PassReason::VlanUnknown));
        }
        assert_eq!(run(&bench, 3, &packet(dst)), Err(PassReason::Undecided), "where it came from");
    }
    let back = packet(FIRST);
    assert_eq!(run(&bench, 3, &back), Ok((1, routed(&back, host(1), &[]))));
    assert_eq!(run(&bench, 3, &packet("10.4.0.1")), Err(PassReason::KernelRoute));
    assert_eq!(run(&bench, 3, &Packet { ttl: 1, ..back.clone() }), Err(PassReason::Ttl));
    assert_eq!(run(&bench, 3, &Packet { options: 4, ..back }), Err(PassReason::Options));
    // Within a bridge, from a VLAN on it and to one, also by the same port. Where tc runs, tags lie beside frames.
    let tag = [(0x8100, VID)];
    for from in if mode.is_tc() { 0..0 } else { 0..2 } {
        let to = routed(&packet(TAGGED), host(1), &tag);
        assert_eq!(run(&bench, from, &packet(TAGGED)), Ok((1, to)), "{from}");
        let to = routed(&packet(FIRST), host(1), &[]);
        assert_eq!(run(&bench, from, &packet(FIRST).tagged(&tag)), Ok((1, to)), "{from}");
    }
}

pub fn sources(mode: Mode) {
    let mut bench = bench(mode);
    let unknown = framed(BRIDGE, [2, 0, 0, 9, 9, 9], &packet(SECOND));
    assert_eq!(bench.route(0, &unknown), Err(PassReason::BridgeSource), "the kernel learns it");
    let moved = framed(BRIDGE, host(1), &packet(SECOND));
    assert_eq!(bench.route(0, &moved), Err(PassReason::BridgeSource));
    let due = bench.tick().wrapping_sub(bridge_port(0).refresh_ticks);
    bench.enter(0, host(0), FdbKind::Host, due);
    assert_eq!(run(&bench, 0, &packet(SECOND)), Err(PassReason::BridgeRefresh));
    assert_eq!(run(&bench, 0, &packet(SECOND)).map(|(port, _)| port), Ok(3));
    // Rules see a packet once, whoever shows it to them.
    bench.set(0, |port| port.ip = [BridgedIp::Kernel; 2]);
    assert_eq!(run(&bench, 0, &packet(SECOND)).map(|(port, _)| port), Ok(3));
    bench.set(0, |port| port.tagged = Tagged::Kernel);
    let tagged = packet(SECOND).tagged(&[(0x8100, VID)]);
    assert_eq!(run(&bench, 0, &tagged), Err(PassReason::Offload));
}

/// Tracks of TCP are told of the first frame that no program has looked at, of either kind.
pub fn unseen(mode: Mode) {
    let mut bench = bench(mode);
    let tagged = || packet(SECOND).tagged(&[(0x8100, VID)]);
    let notes = |bench: &Bench, packet: &Packet, reason| {
        let noted = || bench.programs.state().unserved_tick();
        let before = noted();
        std::thread::sleep(TWO_TICKS);
        assert_eq!(run(bench, 0, packet).err(), reason);
        noted() != before
    };
    assert!(!notes(&bench, &packet(SECOND), None));
    bench.set(0, |port| port.tagged = Tagged::Kernel);
    assert!(notes(&bench, &tagged(), Some(PassReason::Offload)));
    assert!(!notes(&bench, &tagged(), Some(PassReason::Offload)), "once");
    assert!(!notes(&bench, &packet(SECOND), None));
    bench.tables.set_bridge_port(PortId(0), None).unwrap();
    bench.tables.write_engines();
    assert!(notes(&bench, &packet(SECOND), Some(PassReason::BridgePort)), "now all of them");
    assert!(!notes(&bench, &packet(SECOND), Some(PassReason::BridgePort)));
    bench.set(0, |_| {});
    assert!(!notes(&bench, &packet(SECOND), None));
    bench.tables.set_bridge_port(PortId(0), None).unwrap();
    bench.tables.write_engines();
    assert!(notes(&bench, &packet(SECOND), Some(PassReason::BridgePort)), "again");
}

pub fn exits(mode: Mode) {
    let mut bench = bench(mode);
    let port = |bench: &Bench| run(bench, 3, &packet(FIRST)).map(|(port, _)| port);
    assert_eq!(port(&bench), Ok(1));
    for to in [2, 0, 1] {
        bench.learn(to, host(1));
        assert_eq!(port(&bench), Ok(to), "the host has moved");
    }
    let unknown = Err(PassReason::BridgeDestination);
    bench.enter(1, host(1), FdbKind::Local, bench.tick());
    assert_eq!(port(&bench), unknown, "the bridge's own");
    assert!(bench.tables.fdb.lock().remove(key(DOMAIN, host(1))));
    assert_eq!(port(&bench), unknown, "the kernel floods it");
    bench.learn(1, host(1));
    // Isolation is between ports, and the bridge is none.
    bench.set(1, |port| port.is_isolated = true);
    assert_eq!(port(&bench), Ok(1));
    bench.set(1, |port| port.mtu -= 1);
    assert_eq!(port(&bench), unknown, "not every packet of the next hop fits");
    bench.set(1, |port| port.bridge = BridgeId(7));
    assert_eq!(port(&bench), unknown, "it has gone to another bridge");
    bench.set(1, |_| {});
    for gone in [PortId(1), PortId::of_bridge(BridgeId(0))] {
        bench.tables.set_bridge_port(gone, None).unwrap();
        bench.tables.write_engines();
        assert_eq!(port(&bench), unknown, "{gone:?} forwards nothing");
        bench.tables.set_bridge_port(gone, Some(bridge_port(1))).unwrap();
        bench.tables.write_engines();
        assert_eq!(port(&bench), Ok(1));
    }
    bench.close(1);
    let why = if mode.is_tc() { PassReason::Undecided } else { PassReason::BridgePort };
    assert_eq!(port(&bench), Err(why), "its device takes nothing");
}
