//! Tests of reasons about ports of bridges, one change at a time, from a bridge where everything is fast.

use std::time::Duration;

use super::*;
use crate::kernel::{
    BridgePort, BridgePortFlag, BridgePortFlags, BridgePortState, BridgeSettings, Stp,
};

/// A port of a bridge as the kernel makes it.
fn port() -> BridgePort {
    BridgePort {
        state: BridgePortState::Forwarding,
        flags: BridgePortFlags::default(),
        backup_port: None,
        backup_nexthop: None,
    }
}

/// A router whose ports 2 and 3 belong to bridge 9.
fn bridge() -> Router {
    let mut router = Router::new();
    router.engine = Engine::Xdp;
    router.kernel.netdevs.remove(&4);
    let settings = Some(BridgeSettings::default());
    router.add(9, Netdev { bridge: settings, ..netdev("br0", Some("bridge")) });
    for member in [2, 3] {
        router.netdev(member).master = Some(9);
        router.kernel.bridge_ports.insert(member, port());
    }
    router
}

/// The reasons of both ports, in words for tests: `all: key`, `4: key`, `6: key`, `tagged: key`.
fn reasons(router: &Router) -> [Vec<String>; 2] {
    let offload = router.offload();
    [2, 3].map(|ifindex| {
        let of = offload.bridged.iter().find(|of| of.port.0 == ifindex).unwrap();
        let mut reasons: Vec<_> =
            of.kernel.iter().map(|reason| format!("all: {}", reason.key())).collect();
        for (family, packets) in [("4", &of.ip.v4), ("6", &of.ip.v6)] {
            match packets {
                BridgedPackets::Plain => {}
                BridgedPackets::Validated => reasons.push(format!("{family}: validated")),
                BridgedPackets::Kernel(reason) => {
                    reasons.push(format!("{family}: {}", reason.key()));
                }
            }
        }
        reasons.extend(of.tagged.iter().map(|reason| format!("tagged: {}", reason.key())));
        reasons
    })
}

/// Asserts the reasons at both ports after a change.
#[track_caller]
fn expect_of(change: impl FnOnce(&mut Router), wanted: [&[&str]; 2]) {
    let mut router = bridge();
    change(&mut router);
    assert_eq!(reasons(&router), wanted);
}

#[track_caller]
fn expect_both(change: impl FnOnce(&mut Router), wanted: &[&str]) {
    expect_of(change, [wanted; 2]);
}

/// A port that is alone cannot forward.
const ALONE: &[&str] = &["all: only_bridge_port"];

fn settings(change: impl FnOnce(&mut BridgeSettings)) -> impl FnOnce(&mut Router) {
    |router| change(router.netdev(9).bridge.as_mut().unwrap())
}

fn of_port_2(change: impl FnOnce(&mut BridgePort)) -> impl FnOnce(&mut Router) {
    |router| change(router.kernel.bridge_ports.get_mut(&2).unwrap())
}

#[test]
fn ports_of_a_plain_bridge_are_fast() {
    expect_both(|_| {}, &[]);
    let offload = bridge().offload();
    assert_eq!((offload.idle(2), offload.idle(3)), (None, None));
    let of = &offload.bridged[0];
    assert_eq!((of.port.clone(), of.bridge.clone()), ((2, "eth0".into()), (9, "br0".into())));
    assert_eq!((of.mac, of.mtu), ([2, 0, 0, 0, 0, 1], 1500));
    assert_eq!(of.refresh, Duration::from_millis(3750), "a quarter of the forward delay");
    // What is routed there is the kernel's.
    assert_eq!(offload.arrives(2, Family::V4), PathKind::Kernel);
}

#[test]
fn states_of_ports() {
    for state in [BridgePortState::Disabled, BridgePortState::Learning, BridgePortState::Blocking] {
        expect_of(of_port_2(|port| port.state = state), [&["all: bridge_port_state"], &[]]);
    }
    expect_of(
        |router| _ = router.kernel.bridge_ports.remove(&2),
        [&["all: bridge_port_state"], &[]],
    );
    // A port that comes back in a moment keeps its program, and so does the other one.
    let mut router = bridge();
    of_port_2(|port| port.state = BridgePortState::Blocking)(&mut router);
    let offload = router.offload();
    let why = offload.bridged[0].kernel[0].to_string();
    assert_eq!(why, "eth0 is blocking (bridge link show dev eth0)");
    assert_eq!((offload.idle(2), offload.idle(3)), (None, None));
}

#[test]
fn settings_of_bridges() {
    expect_both(settings(|bridge| bridge.vlan_filtering = true), &["all: bridge"]);
    expect_both(settings(|bridge| bridge.ageing_time = Duration::ZERO), &["all: bridge"]);
    let short = Duration::from_secs(1);
    expect_both(settings(|bridge| bridge.ageing_time = short), &["all: bridge"]);
    expect_both(settings(|bridge| bridge.ageing_time = 2 * short), &[]);
    expect_both(|router| router.netdev(9).is_promiscuous = true, &["all: bridge"]);
    // With the spanning tree, hosts may have to be forgotten soon.
    let stp = |stp| move |bridge: &mut BridgeSettings| bridge.stp = stp;
    for stp in [Stp::Kernel, Stp::User].map(stp) {
        let mut router = bridge();
        settings(stp)(&mut router);
        assert_eq!(router.offload().bridged[0].refresh, Duration::from_millis(500));
    }
    let tunnel = BridgePortFlags::default().with(BridgePortFlag::VlanTunnel, true);
    expect_of(of_port_2(|port| port.flags = tunnel), [&["all: bridge"], ALONE]);
    for flag in [BridgePortFlag::Hairpin, BridgePortFlag::Isolated, BridgePortFlag::Locked] {
        let flags = BridgePortFlags::default().with(flag, true);
        expect_both(of_port_2(|port| port.flags = flags), &[]);
    }
    let mut router = bridge();
    let flags = BridgePortFlags::default().with(BridgePortFlag::NeighSuppress, true);
    of_port_2(|port| port.flags = flags)(&mut router);
    assert!(router.offload().bridged.iter().all(|of| of.suppresses_nd), "for the whole bridge");
}

#[test]
fn rules_that_bridges_show_packets_to() {
    let calls = |router: &mut Router| router.set("bridge/bridge-nf-call-iptables", "1");
    expect_both(calls, &["4: validated"]);
    expect_both(settings(|bridge| bridge.nf_call_iptables = true), &["4: validated"]);
    expect_both(|router| router.set("bridge/bridge-nf-call-ip6tables", "1"), &["6: validated"]);
    let rules = |rules: Rules| move |router: &mut Router| router.firewall = Firewall::Read(rules);
    let forwarded = || {
        let of_forwarded = PerFamily { v4: true, v6: false };
        Rules { compiled: 1, of_forwarded, ..Rules::default() }
    };
    expect_both(rules(forwarded()), &[]);
    let both = |rules: Rules| {
        move |router: &mut Router| {
            calls(router);
            router.set("bridge/bridge-nf-call-ip6tables", "1");
            router.firewall = Firewall::Read(rules);
        }
    };
    expect_both(both(forwarded()), &["4: bridged_rules", "6: validated"]);
    let rule = || PerFamily { v4: Some("a rule".to_owned()), v6: None };
    let fragments = Rules { fragments: rule(), ..Rules::default() };
    expect_both(both(fragments), &["4: conntrack", "6: validated"]);
    expect_both(
        |router| {
            calls(router);
            router.probes.tracked = true;
        },
        &["4: conntrack"],
    );
    let all = PerFamily { v4: true, v6: true };
    let of_both = Rules { of_forwarded: all, ..Rules::default() };
    expect_both(both(of_both), &["all: bridged_rules", "4: bridged_rules", "6: bridged_rules"]);
    let of_frames = Rules { of_frames: true, ..Rules::default() };
    expect_both(rules(of_frames), &["all: frame_rules"]);
    expect_both(
        |router| router.firewall = Firewall::Unread("nft is not there".to_owned()),
        &["all: rules_unread"],
    );
    expect_both(|router| router.probes.ebtables = true, &["all: ebtables"]);
    let tagged = "bridge/bridge-nf-filter-vlan-tagged";
    expect_both(|router| router.set(tagged, "1"), &["tagged: bridge_sysctl"]);
    let pppoe = "bridge/bridge-nf-filter-pppoe-tagged";
    expect_both(|router| router.set(pppoe, "1"), &["all: bridge_sysctl"]);
}

#[test]
fn engines_of_ports() {
    let tc = |router: &mut Router| router.engine = Engine::Tc;
    expect_both(tc, &[]);
    expect_both(|router| router.engine_of_3 = Some(Engine::Tc), &[]);
    // What programs of XDP do not see, those of tc do.
    let unseen = |router: &mut Router| {
        router.found(2).tags = Tags::Stripped;
        router.found(2).checksums = Checksums::ByPeer("peer".to_owned());
        router.found(2).xdp = Some(7);
    };
    expect_both(
        |router| {
            tc(router);
            unseen(router);
        },
        &[],
    );
    // Programs of others run before.
    let filters = |router: &mut Router| router.found(2).filters_in = Ok(true);
    expect_both(
        |router| {
            tc(router);
            filters(router);
        },
        &[],
    );
    // A bridge gives packets no priorities, unless they are routed from it.
    let mut router = bridge();
    router.engine_of_3 = Some(Engine::Tc);
    router.set("ipv4/ip_fwd_update_priority", "0");
    assert_eq!(reasons(&router), [&[] as &[&str]; 2]);
    let parts = router.offload().parts;
    let what: Vec<_> = parts.iter().map(|part| part.what.as_str()).collect();
    assert_eq!(what, ["packets from br0 to ports with the engine tc"]);
}

#[test]
fn devices_of_ports() {
    let upper = |kind: &'static str, vlan| {
        move |router: &mut Router| {
            router.add(10, Netdev { lower: Some(2), vlan, ..netdev("up0", Some(kind)) });
        }
    };
    expect_of(upper("macvlan", None), [&["all: upper"], ALONE]);
    expect_of(upper("vlan", Some((10, 0x8100))), [&["tagged: upper"], &[]]);
    let elsewhere = ForeignUpper {
        lower: 2,
        kind: "vlan".to_owned(),
        name: "up0".to_owned(),
        namespace: 3,
        generic_xdp: false,
    };
    expect_of(
        |router| router.probes.foreign_uppers = Ok([elsewhere].into()),
        [&["tagged: upper"], &[]],
    );
    expect_of(|router| router.found(2).filters_out = Ok(true), [&["all: filters_out"], ALONE]);
    expect_of(|router| router.found(2).filters_in = Ok(true), [&["all: filters_in"], ALONE]);
    expect_of(|router| router.found(2).tags = Tags::Stripped, [&["all: strips_tags"], ALONE]);
    let by_peer = Checksums::ByPeer("peer".to_owned());
    expect_of(|router| router.found(2).checksums = by_peer, [&["all: peer_checksums"], ALONE]);
    for engine in [Engine::Auto, Engine::User] {
        expect_of(|router| router.engine_of_3 = Some(engine), [ALONE, &["all: engine"]]);
    }
    let mut router = bridge();
    router.engine_of_3 = Some(Engine::User);
    let why = router.offload().bridged[1].kernel[0].to_string();
    assert_eq!(why, "the engine user of eth1 forwards no frames of bridges, as xdp and tc do");
    // Another program on the device: attaching reports that.
    let mut router = bridge();
    router.found(2).xdp = Some(7);
    assert_eq!(router.offload().idle(2), None);
}

/// Moves port 3 to a bridge of its own.
fn two_bridges(router: &mut Router) {
    let settings = Some(BridgeSettings::default());
    router.add(8, Netdev { bridge: settings, ..netdev("br1", Some("bridge")) });
    router.netdev(3).master = Some(8);
}

#[test]
fn a_port_may_be_alone_where_its_bridge_is_routed() {
    expect_of(two_bridges, [&[], &[]]);
    let without = |families: &'static [&'static str]| {
        move |router: &mut Router| {
            two_bridges(router);
            families.iter().for_each(|setting| router.set(setting, "0"));
        }
    };
    expect_of(without(&["ipv4/conf/br0/forwarding", "ipv4/conf/br1/forwarding"]), [&[], &[]]);
    let all = &["ipv4/conf/br0/forwarding", "ipv4/conf/br1/forwarding", "ipv6/conf/all/forwarding"];
    expect_of(without(all), [ALONE, ALONE]);
}

#[test]
fn a_bridge_is_a_link() {
    let routed = |change: &dyn Fn(&mut Router)| {
        let mut router = bridge();
        router.add(
            10,
            Netdev { lower: Some(9), vlan: Some((7, 0x8100)), ..netdev("br0.7", Some("vlan")) },
        );
        change(&mut router);
        let offload = router.offload();
        let fast = |device| {
            let ways = [offload.arrives(device, Family::V4), offload.leaves(device, Family::V6)];
            ways.map(|way| way == PathKind::Fast)
        };
        [9, 10].map(fast)
    };
    assert_eq!(routed(&|_| {}), [[true, true], [true, true]]);
    let both = [[false, false]; 2];
    assert_eq!(routed(&|router| router.netdev(9).is_promiscuous = true), both);
    let filters = |settings: &mut BridgeSettings| settings.vlan_filtering = true;
    assert_eq!(routed(&|router| filters(router.netdev(9).bridge.as_mut().unwrap())), both);
    assert_eq!(routed(&|router| router.probes.ebtables = true), both);
    assert_eq!(routed(&|router| router.found(9).xdp = Some(7)), both, "another program");
    let of_vlan = |router: &mut Router| router.netdev(10).mac = Some([2, 0, 0, 0, 0, 9]);
    assert_eq!(routed(&of_vlan), [[true, true], [false, false]], "an address of its own");
    assert_eq!(routed(&|router| router.found(9).filters_out = Ok(true)), [[true, false]; 2]);
    assert_eq!(routed(&|router| router.found(9).filters_in = Ok(true)), [[false, true]; 2]);
    // One port is enough, and without any, nothing is fast.
    let strips = |ports: &'static [u32]| {
        move |router: &mut Router| {
            ports.iter().for_each(|port| router.found(*port).tags = Tags::Stripped);
        }
    };
    assert_eq!(routed(&strips(&[2])), [[true, true]; 2]);
    assert_eq!(routed(&strips(&[2, 3])), both);
    let shows = |router: &mut Router| router.set("bridge/bridge-nf-filter-vlan-tagged", "1");
    assert_eq!(routed(&shows), [[true, true], [false, true]], "tagged frames");
    // Rules see packets once, but in a VRF twice.
    let ruled = |vrf: bool| {
        move |router: &mut Router| {
            router.set("bridge/bridge-nf-call-iptables", "1");
            let of_forwarded = PerFamily { v4: true, v6: false };
            let rules = Rules { compiled: 1, of_forwarded, ..Rules::default() };
            router.firewall = Firewall::Read(rules);
            if vrf {
                router.add(20, Netdev { vrf_table: Some(7), ..netdev("red", Some("vrf")) });
                router.netdev(9).master = Some(20);
            }
        }
    };
    assert_eq!(routed(&ruled(false)), [[true, true]; 2]);
    assert_eq!(routed(&ruled(true)), [[false, true], [true, true]]);
    let links: Vec<_> =
        bridge().offload().links.iter().map(|link| (link.ifindex, link.port)).collect();
    assert_eq!(links, [(2, 2), (3, 3), (9, 9)]);
}
