//! Tests of reasons about a link, or those on top of it.

use super::*;
use tollway_firewall::ir;

/// A device that belongs to number 9.
fn member(kind: &'static str) -> impl FnOnce(&mut Router) {
    move |router| {
        router.add(9, netdev("up0", Some(kind)));
        router.netdev(3).master = Some(9);
    }
}

/// A device of a kind on the first port.
fn upper(kind: &'static str) -> impl FnOnce(&mut Router) {
    move |router| {
        let upper = Netdev { lower: Some(2), ..netdev("up0", Some(kind)) };
        router.add(9, upper);
    }
}

#[test]
fn a_port_may_have_less_room_than_there_is() {
    let large = |router: &mut Router, room: u32| {
        router.netdev(2).mtu = 8000;
        router.rooms.insert(2, room);
    };
    expect(|router| large(router, 8000), &[]);
    let both = [
        "into eth0 *: large_mtu",
        "out of eth0 *: large_mtu",
        "into eth0.10 *: large_mtu",
        "out of eth0.10 *: large_mtu",
    ];
    expect(|router| large(router, 7999), &both);
    expect(
        |router| _ = router.rooms.insert(2, 1000),
        &[
            "into eth0 *: large_mtu",
            "out of eth0 *: large_mtu",
            "into eth0.10 *: large_mtu",
            "out of eth0.10 *: large_mtu",
        ],
    );
}

#[test]
fn members_of_bridges_and_the_like() {
    for kind in ["bridge", "bond", "team", "openvswitch", "batadv"] {
        expect(member(kind), &["into eth1 *: member", "out of eth1 *: member"]);
    }
    expect(
        |router| router.netdev(3).master = Some(77),
        &["into eth1 *: member", "out of eth1 *: member"],
    );
    let mut router = Router::new();
    member("bond")(&mut router);
    let reason = router.offload().links[2].arrives.v4[0].to_string();
    assert_eq!(reason, "eth1 belongs to the bond up0");
}

#[test]
fn a_vrf_is_no_reason_and_its_sysctls_do_not_count() {
    let vrf = |router: &mut Router| {
        router.add(9, Netdev { vrf_table: Some(10), ..netdev("red", Some("vrf")) });
        router.netdev(3).master = Some(9);
    };
    expect(vrf, &[]);
    let of = |device: &'static str| {
        move |router: &mut Router| {
            vrf(router);
            router.set(&format!("ipv4/conf/{device}/forwarding"), "0");
        }
    };
    expect(of("red"), &[]);
    expect(of("eth1"), &["into eth1 4: forwarding_off"]);
    let mut router = Router::new();
    of("eth1")(&mut router);
    let offload = router.offload();
    assert_eq!(offload.links[2].vrf.as_deref(), Some("red"));
    let reason = offload.links[2].arrives.v4[0].to_string();
    assert_eq!(reason, "the kernel does not forward it: net.ipv4.conf.eth1.forwarding = 0");
}

#[test]
fn devices_that_take_frames_first() {
    for kind in ["macvlan", "macvtap", "ipvlan", "macsec", "dsa", "new"] {
        expect(upper(kind), &["into eth0 *: upper", "into eth0.10 *: upper"]);
    }
    for kind in ["vxlan", "gre", "sit", "veth"] {
        expect(upper(kind), &[]);
    }
    // The same in another namespace.
    let foreign_upper = |kind: &'static str, lower| {
        move |router: &mut Router| {
            let upper = ForeignUpper {
                lower,
                kind: kind.to_owned(),
                name: "eth0".to_owned(),
                namespace: 1,
                generic_xdp: false,
            };
            router.probes.foreign_uppers = Ok([upper].into());
        }
    };
    expect(foreign_upper("ipvlan", 2), &["into eth0 *: upper", "into eth0.10 *: upper"]);
    expect(foreign_upper("macvlan", 4), &["into eth0.10 *: upper"]);
    expect(foreign_upper("veth", 3), &[]);
    let mut router = Router::new();
    foreign_upper("ipvlan", 3)(&mut router);
    let reason = router.offload().links[2].arrives.v4[0].to_string();
    let words = "another network namespace (number 1: ip netns list-id), takes frames first";
    assert_eq!(reason, format!("eth0, a ipvlan on eth1 that is in {words}"));
}

#[test]
fn kinds_that_are_no_ports() {
    let kind =
        |kind: &'static str| move |router: &mut Router| router.netdev(3).kind = Some(kind.into());
    for fine in ["tun", "dummy"] {
        expect(kind(fine), &[]);
    }
    for other in ["bridge", "bond", "vxlan", "netkit", "macvlan"] {
        expect(kind(other), &["into eth1 *: kind", "out of eth1 *: kind"]);
    }
    expect(
        |router| router.found(3).ethernet = false,
        &["into eth1 *: not_ethernet", "out of eth1 *: not_ethernet"],
    );
    expect(
        |router| router.netdev(3).flags |= 1 << 7,
        &["into eth1 *: no_arp", "out of eth1 *: no_arp"],
    );
}

#[test]
fn reasons_about_a_port_hold_for_its_vlans() {
    expect(
        |router| router.found(2).filters_in = Ok(true),
        &["into eth0 *: filters_in", "into eth0.10 *: filters_in"],
    );
    expect(|router| router.found(4).filters_in = Ok(true), &["into eth0.10 *: filters_in"]);
    expect(
        |router| router.found(2).filters_out = Ok(true),
        &["out of eth0 *: filters_out", "out of eth0.10 *: filters_out"],
    );
    expect(
        |router| router.found(2).qdisc = Ok(Some("htb".to_owned())),
        &["out of eth0 *: qdisc", "out of eth0.10 *: qdisc"],
    );
    expect(
        |router| router.found(4).qdisc = Ok(Some("htb".to_owned())),
        &["out of eth0.10 *: qdisc"],
    );
}

#[test]
fn links_with_failed_queries_take_the_kernel_path() {
    let unknown = || Unknown("Operation not permitted".to_owned());
    expect(|router| router.found(3).filters_in = Err(unknown()), &["into eth1 *: unknown"]);
    expect(|router| router.found(3).filters_out = Err(unknown()), &["out of eth1 *: unknown"]);
    expect(|router| router.found(3).qdisc = Err(unknown()), &["out of eth1 *: unknown"]);
    expect(
        |router| drop(router.probes.devices.remove(&3)),
        &["into eth1 *: unknown", "out of eth1 *: unknown"],
    );
}

#[test]
fn another_xdp_program() {
    let other = ["into eth1 *: other_xdp", "out of eth1 *: other_xdp"];
    expect(|router| router.found(3).xdp = Some(5), &other);
    let own = |router: &mut Router, own| {
        router.found(3).xdp = Some(5);
        router.found(3).own_xdp = Ok(Some(own));
    };
    expect(|router| own(router, 5), &[]);
    expect(|router| own(router, 6), &other);
}

#[test]
fn vlan_devices_with_options() {
    let both = |key: &str| [format!("into eth0.10 *: {key}"), format!("out of eth0.10 *: {key}")];
    let both = |change: fn(&mut Router), key: &str| {
        let both = both(key);
        expect(change, &both.each_ref().map(String::as_str));
    };
    both(|router| router.found(4).keeps_tags = true, "keeps_tags");
    both(|router| router.netdev(4).mac = Some([2, 9, 9, 9, 9, 9]), "own_mac");
    expect(|router| router.found(4).egress_qos = true, &["out of eth0.10 *: egress_qos"]);
    let hides = |port: Ifindex, tags: Tags| {
        move |router: &mut Router| router.found(port).tags = tags.clone()
    };
    let of_card = ["into eth0 *", "into eth0.10 *", "out of eth0 *", "out of eth0.10 *"];
    let of_card = of_card.map(|place| format!("{place}: strips_tags"));
    expect(hides(2, Tags::Stripped), &of_card.each_ref().map(String::as_str));
    let of_veth = ["into eth1 *: peer_tags", "out of eth1 *: peer_tags"];
    expect(hides(3, Tags::ByPeer("peer".to_owned())), &of_veth);
    expect(hides(3, Tags::ByPeerElsewhere), &of_veth);
}

#[test]
fn tags_upon_tags() {
    let stack = |height: u32| {
        move |router: &mut Router| {
            for above in 0..height {
                let mut vlan = netdev(&format!("q{above}"), Some("vlan"));
                vlan.vlan = Some((100, 0x8100));
                vlan.lower = Some(if above == 0 { 4 } else { 20 + above - 1 });
                router.add(20 + above, vlan);
            }
        }
    };
    expect(stack(1), &[]);
    expect(stack(2), &["into q1 *: too_many_tags", "out of q1 *: too_many_tags"]);
    let mut router = Router::new();
    stack(2)(&mut router);
    let links: Vec<_> = router.offload().links.iter().map(|link| link.name.clone()).collect();
    assert_eq!(links, ["eth0", "eth0.10", "q0", "q1", "eth1"]);
    // Two devices that refer to each other are no links of any port.
    router.netdev(20).lower = Some(21);
    assert_eq!(router.offload().links.len(), 3);
}

#[test]
fn mtus() {
    let large = ["into eth1 *: large_mtu", "out of eth1 *: large_mtu"];
    let mtu = |mtu: u32| {
        move |router: &mut Router| {
            router.netdev(3).mtu = mtu;
            router.set("ipv6/conf/eth1/mtu", &mtu.to_string());
        }
    };
    expect(mtu(9000), &[]);
    expect(mtu(9001), &large);
}

#[test]
fn sysctls_of_a_link() {
    expect(|router| router.set("ipv4/conf/eth1/forwarding", "0"), &["into eth1 4: forwarding_off"]);
    let off6 = |router: &mut Router| router.set("ipv6/conf/all/forwarding", "0");
    expect(
        off6,
        &["eth0", "eth0.10", "eth1"]
            .map(|name| format!("into {name} 6: forwarding_off"))
            .each_ref()
            .map(String::as_str),
    );
    let forced = |router: &mut Router| {
        off6(router);
        for name in ["eth0", "eth0.10"] {
            router.set(&format!("ipv6/conf/{name}/force_forwarding"), "1");
        }
    };
    expect(forced, &["into eth1 6: forwarding_off"]);
    expect(
        |router| router.set("ipv6/conf/eth1/disable_ipv6", "1"),
        &["into eth1 6: no_family", "out of eth1 6: no_family"],
    );
    expect(
        |router| router.files.retain(|(file, _)| !file.starts_with("ipv4/conf/eth1/")),
        &["into eth1 4: no_family", "out of eth1 4: no_family"],
    );
    expect(
        |router| router.set("ipv4/conf/eth1/route_localnet", "1"),
        &["into eth1 4: route_localnet"],
    );
}

/// A tc program sees tags, checksums and long frames as the kernel does, and frames that masters have received.
#[test]
fn a_tc_program_has_fewer_reasons() {
    let tc = |change: &'static dyn Fn(&mut Router)| {
        move |router: &mut Router| {
            router.engine = Engine::Tc;
            change(router);
        }
    };
    let peers: &dyn Fn(&mut Router) = &|router| {
        router.found(2).tags = Tags::ByPeerElsewhere;
        router.found(2).checksums = Checksums::ByPeerElsewhere;
        router.found(3).tags = Tags::Stripped;
        router.found(3).checksums = Checksums::ByOwner;
        router.netdev(3).mtu = 65_535;
        router.found(3).xdp = Some(9);
    };
    expect(tc(peers), &[]);
    for kind in ["bridge", "bond", "macvlan", "vxlan"] {
        expect(
            move |router| {
                router.engine = Engine::Tc;
                router.netdev(3).kind = Some(kind.to_owned());
            },
            &[],
        );
    }
    for (kind, wanted) in [("tun", &[][..]), ("wireguard", &["out of eth1 *: tunnel"])] {
        let layer3 = |engine| {
            move |router: &mut Router| {
                router.engine = engine;
                router.found(3).ethernet = false;
                let noarp = 1 << 7;
                let netdev = router.netdev(3);
                (netdev.kind, netdev.mac) = (Some(kind.to_owned()), None);
                (netdev.is_layer3, netdev.flags) = (true, netdev.flags | noarp);
            }
        };
        expect(layer3(Engine::Tc), wanted);
        let with_rules = |router: &mut Router| {
            layer3(Engine::Tc)(router);
            let rules = Rules { of_ethernet: true, ..Rules::default() };
            router.firewall = Firewall::Read(rules);
        };
        let of_rules: Vec<&str> = wanted.iter().copied().chain(["into eth1 *: engine"]).collect();
        expect(with_rules, &of_rules);
        let ways = |key: &str| ["into", "out of"].map(|way| format!("{way} eth1 *: {key}"));
        let all = [ways("not_ethernet"), ways("no_arp")].concat();
        let all: Vec<&str> = all.iter().map(String::as_str).chain(wanted.iter().copied()).collect();
        expect(layer3(Engine::Xdp), &all);
    }
    expect(
        tc(&|router| router.netdev(3).kind = Some("ipvlan".to_owned())),
        &["into eth1 *: kind", "out of eth1 *: kind"],
    );
    expect(
        tc(&|router| {
            router.netdev(3).kind = Some("vxlan".to_owned());
            router.found(3).external = true;
        }),
        &["into eth1 *: external", "out of eth1 *: external"],
    );
}

#[test]
fn programs_take_two_tags() {
    for engine in [Engine::Xdp, Engine::Tc] {
        let add = |router: &mut Router| {
            router.engine = engine;
            let (vlan, lower) = (Some((20, 0x8100)), Some(4));
            router.add(5, Netdev { vlan, lower, ..netdev("eth0.10.20", Some("vlan")) });
        };
        expect(add, &[]);
    }
}

/// The kernel evaluates chains at egress after it.
#[test]
fn a_tc_program_has_limits_of_its_own() {
    let rules = |router: &mut Router, engine, hook| {
        router.engine = engine;
        let at_devices = vec![(hook, "netdev t c".to_owned())];
        router.firewall = Firewall::Read(Rules { compiled: 1, at_devices, ..Rules::default() });
    };
    expect(|router| rules(router, Engine::Xdp, ir::Hook::Egress), &[]);
    expect(|router| rules(router, Engine::Tc, ir::Hook::Ingress), &[]);
    let all = ["eth0", "eth0.10", "eth1"].map(|link| format!("into {link} *: engine"));
    let all = all.each_ref().map(String::as_str);
    expect(|router| rules(router, Engine::Tc, ir::Hook::Egress), &all);
}

#[test]
fn generic_xdp_at_the_peer_of_a_veth_does_not_see_what_tc_sends() {
    let peer = |engine| {
        move |router: &mut Router| {
            router.engine = engine;
            router.add(9, netdev("peer", Some("veth")));
            router.netdev(3).lower = Some(9);
            router.probes.generic_xdp.insert(9);
        }
    };
    expect(peer(Engine::Xdp), &[]);
    expect(peer(Engine::Tc), &["out of eth1 *: peer_xdp"]);
    let elsewhere = |kind: &'static str, lower, generic_xdp| {
        move |router: &mut Router| {
            router.engine = Engine::Tc;
            router.netdev(2).kind = Some("bridge".to_owned());
            let member = Netdev { master: Some(2), ..netdev("member", Some("veth")) };
            router.add(8, member);
            let (kind, name) = (kind.to_owned(), "eth0".to_owned());
            let upper = ForeignUpper { lower, kind, name, namespace: 1, generic_xdp };
            router.probes.foreign_uppers = Ok([upper].into());
        }
    };
    expect(elsewhere("veth", 3, false), &[]);
    expect(elsewhere("veth", 3, true), &["out of eth1 *: peer_xdp"]);
    expect(elsewhere("vxlan", 3, true), &[]);
    expect(elsewhere("veth", 8, true), &["out of eth0 *: peer_xdp", "out of eth0.10 *: peer_xdp"]);
    let mut router = Router::new();
    elsewhere("veth", 3, true)(&mut router);
    let reason = router.offload().links[2].leaves.v4[0].to_string();
    let words =
        "the peer of eth1, eth0 in another network namespace (number 1: ip netns list-id), has";
    assert!(reason.starts_with(words), "{reason}");
}

#[test]
fn a_tc_program_leaves_priorities_of_other_origin_to_the_kernel() {
    let with = |engine, change: fn(&mut Router), wanted: &[&str]| {
        let change = |router: &mut Router| {
            router.engine = engine;
            change(router);
        };
        expect(change, wanted);
    };
    let map = |router: &mut Router| router.found(4).ingress_qos = true;
    with(Engine::Xdp, map, &[]);
    with(Engine::Tc, map, &["into eth0.10 *: ingress_qos"]);
    let sysctl = |router: &mut Router| router.set("ipv4/ip_fwd_update_priority", "0");
    with(Engine::Xdp, sysctl, &[]);
    let all = ["into eth0 4: engine", "into eth0.10 4: engine", "into eth1 4: engine"];
    with(Engine::Tc, sysctl, &all);
}

#[test]
fn filters_of_others_come_before_a_tc_program_or_count() {
    let found = |router: &mut Router, behind| {
        router.engine = Engine::Tc;
        router.found(3).filters_in = Ok(true);
        router.found(3).filters_behind = Ok(behind);
    };
    expect(|router| found(router, false), &[]);
    expect(|router| found(router, true), &["into eth1 *: filters_in"]);
    // The program of the port runs before those of its VLANs.
    expect(
        |router| {
            router.engine = Engine::Tc;
            router.found(4).filters_in = Ok(true);
        },
        &["into eth0.10 *: filters_in"],
    );
}
