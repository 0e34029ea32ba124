//! Tests of parts and notes.

use super::*;

fn lines(router: &Router) -> Vec<String> {
    let parts = router.offload().parts;
    parts.iter().map(|part| format!("{}: {}", part.what, part.why)).collect()
}

#[test]
fn routes_on_the_kernel_path_are_reported() {
    let mut router = Router::new();
    router.add(9, netdev("wg0", Some("wireguard")));
    router.routes.total = PerFamily { v4: 9, v6: 2 };
    router.routes.by_device.extend([(2, 5), (9, 1), (70, 2)]);
    router.routes.several = PerFamily { v4: 2, v6: 1 };
    assert_eq!(
        lines(&router),
        [
            "1 route by wg0: wg0 is of kind wireguard, and not a port",
            "2 routes by device 70: there is no such device now",
        ]
    );
    router.routes.by_device.clear();
    (router.routes.wrapped, router.routes.of_tos, router.routes.unsupported) = (1, 2, 3);
    router.routes.in_turn = 4;
    router.set("ipv6/fib_multipath_hash_policy", "2");
    assert_eq!(
        lines(&router),
        [
            "1 IPv6 route with several next hops: the kernel chooses next hops by more than flows \
             (net.ipv6.fib_multipath_hash_policy = 2)",
            "1 route: they encapsulate packets (encap)",
            "2 routes: they apply to only one type of service (tos)",
            "4 routes: they differ from others only in the next hop, and the kernel tries them in turn",
            "3 routes: they have attributes that the router does not support",
        ]
    );
}

#[test]
fn packets_that_no_tc_program_beside_xdp_forwards_are_reported() {
    let mut router = Router::new();
    router.engine = Engine::Xdp;
    router.found(4).ingress_qos = true;
    assert!(lines(&router).is_empty(), "no port has a tc program");
    router.engine_of_3 = Some(Engine::Tc);
    assert_eq!(
        lines(&router),
        [
            "packets from eth0.10 to ports with the engine tc: eth0.10 gives packets priorities by their tags \
          (ingress-qos-map)"
        ]
    );
    let offload = router.offload();
    assert_eq!([2, 4].map(|link| offload.keeps_tc_exits(link)), [false, true]);
    router.set("ipv4/ip_fwd_update_priority", "0");
    assert!([2, 4].iter().all(|link| router.offload().keeps_tc_exits(*link)));
    let all = lines(&router);
    let starts = ["packets from eth0 to ports", "packets from eth0.10 to ports"];
    assert!(all.len() == 2 && all.iter().zip(starts).all(|(line, start)| line.starts_with(start)));
    router.found(4).ingress_qos = false;
    assert_eq!(lines(&router).len(), 1, "one line for a port and its VLANs");
    router.engine = Engine::User;
    assert!(lines(&router).is_empty(), "user space sends");
}

#[test]
fn rules_on_the_kernel_path_are_reported() {
    let mut router = Router::new();
    let rule = |family, priority, unsupported: Option<&str>| Rule {
        family,
        priority,
        src: None,
        dst: None,
        iif: None,
        mark: None,
        action: RuleAction::Table(9),
        unsupported: unsupported.map(str::to_owned),
    };
    let leap = |mark| Rule { action: RuleAction::Goto(9), mark, ..rule(Family::V4, 8, None) };
    router.kernel.rules = vec![
        leap(None),
        leap(Some((1, 1))),
        rule(Family::V4, 5, None),
        rule(Family::V4, 6, Some("selects by ports")),
        rule(Family::V6, 7, Some("selects by output device")),
        Rule { iif: Some("red".to_owned()), ..rule(Family::V4, 9, None) },
        Rule { iif: Some("red".to_owned()), ..rule(Family::V6, 10, None) },
    ];
    router.add(9, Netdev { vrf_table: Some(10), ..netdev("red", Some("vrf")) });
    let rule_of = |rule: &str, of_packets: Option<&str>, of_connections: Option<&str>| KernelRule {
        rule: rule.to_owned(),
        families: PerFamily { v4: true, v6: false },
        of_packets: of_packets.map(str::to_owned),
        of_connections: of_connections.map(str::to_owned),
    };
    let kernel = vec![
        rule_of("ct state new drop", Some("connection tracking"), None),
        rule_of("notrack", None, Some("not tracked")),
        rule_of("(later fragments) in c", Some("kernels differ"), Some("kernels differ")),
    ];
    router.firewall = Firewall::Read(Rules {
        compiled: 4,
        compiled_for_connections: 5,
        kernel,
        ..Rules::default()
    });
    assert_eq!(
        lines(&router),
        [
            "packets that ip rule 8 may match: it sends some packets to another rule (goto)",
            "packets that ip rule 6 may match: selects by ports",
            "packets that ip -6 rule 7 may match: selects by output device",
            "packets that ip rule 9 may match: kernels differ in the input device of packets in a VRF (iif)",
            "packets that reach the nft rule ct state new drop: connection tracking",
            "packets that reach the nft rule (later fragments) in c: kernels differ",
        ]
    );
    assert_eq!(router.offload().compiled, 4);
    let tracked = |router: &mut Router, spares| {
        let Firewall::Read(rules) = &mut router.firewall else { panic!() };
        rules.tracking.v4 = Some("ct".to_owned());
        rules.spares_established.v4 = spares;
        router.probes.asks_conntrack = true;
        let nft: Vec<_> = lines(router).into_iter().filter(|line| line.contains("nft")).collect();
        (router.offload().compiled, nft)
    };
    let reached = "packets of established connections that reach the nft rule notrack: not tracked";
    assert_eq!(tracked(&mut router, true), (5, vec![reached.to_owned()]));
    assert_eq!(tracked(&mut router, false), (4, vec![]), "all IPv4 is the kernel's");
    router.firewall = Firewall::Read(Rules::default());
    let net = "10.0.0.0/8".parse().unwrap();
    router.kernel.rules = vec![
        Rule { src: Some(net), ..rule(Family::V4, 5, None) },
        Rule { src: Some(net), ..rule(Family::V4, 6, Some("selects by ports")) },
        rule(Family::V6, 7, None),
        Rule { action: RuleAction::Table(254), ..rule(Family::V6, 8, None) },
    ];
    for engine in [Engine::Xdp, Engine::Tc] {
        router.engine = engine;
        let lines = lines(&router);
        assert_eq!(lines[0], "packets that ip rule 6 may match: selects by ports");
        assert_eq!(lines.len(), 1, "programs evaluate the others");
    }
}

#[test]
fn captures_and_devices_that_are_down_are_reported() {
    let notes = |router: &Router| -> Vec<String> {
        router.offload().notes.into_iter().map(|note| note.0).collect()
    };
    let mut router = Router::new();
    router.probes.taps.insert(Some(4));
    router.netdev(3).flags = 1;
    assert_eq!(
        notes(&router),
        [
            "a program captures on eth0.10, and does not see packets on the fast path",
            "eth1 is down, or has no carrier",
        ]
    );
    router.probes.taps.insert(None);
    assert_eq!(notes(&router).len(), 4, "on all");
    router.engine = Engine::Tc;
    assert_eq!(
        notes(&router),
        [
            "a program captures on eth0.10, and does not see packets on the fast path",
            "eth1 is down, or has no carrier",
        ],
        "tc shows them on the ports"
    );
    router.engine = Engine::Auto;
    assert!(kernels(&router.offload()).is_empty(), "none is a reason");
}
