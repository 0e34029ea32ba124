//! Tests of reasons that concern all traffic.

use super::*;

fn unknown<T>() -> QueryResult<T> {
    Err(Unknown("Operation not permitted".to_owned()))
}

/// Hooks of IPv4 only, or a kernel that does not list them.
fn hooks(router: &mut Router, of4: Option<&[Hook]>) {
    router.probes.hooks =
        Ok(of4.map(|hooks| PerFamily { v4: hooks.iter().cloned().collect(), v6: BTreeSet::new() }));
}

fn rules(router: &mut Router) -> &mut Rules {
    match &mut router.firewall {
        Firewall::Read(rules) => rules,
        Firewall::Unread(_) => panic!("the rules are known"),
    }
}

#[test]
fn sysctls_that_concern_all_traffic() {
    expect(|router| router.set("ipv4/ip_forward_use_pmtu", "1"), &["all 4: path_mtu"]);
    expect(|router| router.set("ipv6/conf/all/proxy_ndp", "1"), &["all 6: proxy_ndp"]);
    expect(|router| router.set("ipv6/conf/eth0/proxy_ndp", "1"), &[]);
}

#[test]
fn multipath_settings_that_the_router_does_not_follow() {
    let policy = |family: &str, policy: &str| {
        let file = format!("{family}/fib_multipath_hash_policy");
        let policy = policy.to_owned();
        move |router: &mut Router| router.set(&file, &policy)
    };
    expect(policy("ipv4", "1"), &[]);
    expect(policy("ipv4", "2"), &["groups 4: multipath"]);
    expect(policy("ipv6", "3"), &["groups 6: multipath"]);
    let seed = |seed: &'static str, seed_refused| {
        move |router: &mut Router| {
            router.set("ipv4/fib_multipath_hash_seed", seed);
            router.spread.seed_refused = seed_refused;
        }
    };
    expect(seed("9", true), &[]);
    expect(seed("0", false), &[]);
    expect(seed("0", true), &["groups *: multipath"]);
    expect(seed("", false), &["groups *: multipath"]);
    let by_rule = |unsupported: &'static str| {
        move |router: &mut Router| {
            let (src, dst, iif, mark) = Default::default();
            let (priority, action) = (5, RuleAction::Table(9));
            let (family, unsupported) = (Family::V6, Some(unsupported.to_owned()));
            let rule = Rule { family, priority, src, dst, iif, mark, action, unsupported };
            router.kernel.rules.push(rule);
        }
    };
    expect(by_rule("oif x, ipproto 6"), &["groups 6: multipath"]);
    expect(by_rule("oif sport"), &[]);
    expect(|router| router.set("ipv4/fib_multipath_use_neigh", "1"), &["groups 4: multipath"]);
}

#[test]
fn hashes_that_come_with_packets() {
    let hashes = |policy: &'static str, v4, own_hash| {
        move |router: &mut Router| {
            router.set("ipv4/fib_multipath_hash_policy", policy);
            router.spread.groups.v4 = v4;
            router.found(2).own_hash = own_hash;
        }
    };
    expect(hashes("1", true, true), &["into eth0 4: own_hash", "into eth0.10 4: own_hash"]);
    expect(hashes("1", true, false), &[]);
    expect(hashes("1", false, true), &[]);
    expect(hashes("0", true, true), &[]);
}

#[test]
fn ipsec() {
    let xfrm = |v4, v6, blocks| {
        move |router: &mut Router| {
            router.probes.xfrm = Ok(Xfrm { policies: PerFamily { v4, v6 }, blocks });
        }
    };
    expect(xfrm(2, 0, false), &["all 4: xfrm"]);
    expect(xfrm(0, 1, false), &["all 6: xfrm"]);
    expect(xfrm(0, 0, true), &["all *: xfrm_blocks"]);
    expect(|router| router.probes.xfrm = unknown(), &["all *: unknown"]);
}

#[test]
fn tables_of_iptables() {
    let legacy = |chains: &[&str], tracks| {
        let v4 =
            Legacy { chains: chains.iter().map(|chain| (*chain).to_owned()).collect(), tracks };
        move |router: &mut Router| {
            router.probes.legacy = Ok(PerFamily { v4, v6: Legacy::default() });
        }
    };
    expect(legacy(&["filter FORWARD"], false), &["all 4: legacy"]);
    expect(legacy(&[], true), &["all 4: conntrack"]);
    expect(|router| router.probes.legacy = unknown(), &["all *: unknown"]);
}

#[test]
fn functions_at_the_hooks_of_netfilter() {
    for (hook, key) in [
        (Hook::Conntrack, "conntrack"),
        (Hook::Ipvs, "ipvs"),
        (Hook::Other("nf_hook_run_bpf".to_owned()), "hook"),
    ] {
        expect(|router| hooks(router, Some(&[hook])), &[&format!("all 4: {key}")]);
    }
    let known = [Hook::Nftables, Hook::Legacy, Hook::Labels];
    expect(|router| hooks(router, Some(&known)), &[]);
    expect(|router| router.probes.hooks = unknown(), &["all *: unknown"]);
}

#[test]
fn traces_count_whether_hooks_are_listed_or_not() {
    for listed in [None, Some(&[][..])] {
        let trace = |change: fn(&mut Probes)| {
            move |router: &mut Router| {
                hooks(router, listed);
                change(&mut router.probes);
            }
        };
        expect(trace(|_| {}), &[]);
        expect(trace(|probes| probes.tracked = true), &["all *: conntrack"]);
        expect(trace(|probes| probes.ipvs = true), &["all *: ipvs"]);
        expect(trace(|probes| probes.labels = true), &["all *: labels"]);
    }
}

#[test]
fn rules_of_nftables() {
    let unread = |router: &mut Router| router.firewall = Firewall::Unread("no nft".to_owned());
    expect(unread, &["all *: rules_unread"]);
    expect(|router| rules(router).tracking.v6 = Some("ct".to_owned()), &["all 6: conntrack"]);
    let own = |router: &mut Router| rules(router).fragments.v4 = Some("ct".to_owned());
    expect(own, &[]);
    expect(
        |router| {
            own(router);
            router.probes.tracked = true;
            hooks(router, Some(&[Hook::Conntrack]));
        },
        &[],
    );
    expect(
        |router| {
            own(router);
            rules(router).tracking.v4 = Some("ct".to_owned());
        },
        &["all 4: conntrack"],
    );
    expect(
        |router| {
            own(router);
            router.probes.watched = Some(Watch::Listener);
        },
        &["all 4: conntrack"],
    );
    let mut router = Router::new();
    own(&mut router);
    let mut spared = Router::new();
    own(&mut spared);
    rules(&mut spared).tracking.v4 = Some("ct".to_owned());
    rules(&mut spared).spares_established.v4 = true;
    let general = |router: &Router| {
        let reasons = router.offload().general.v4;
        reasons.iter().map(Reason::key).collect::<Vec<_>>()
    };
    assert_eq!(general(&spared), ["conntrack"], "the programs cannot ask");
    spared.probes.asks_conntrack = true;
    for (watched, reasons) in
        [(None, &[][..]), (Some(Watch::Listener), &[]), (Some(Watch::LogInvalid), &["conntrack"])]
    {
        spared.probes.watched = watched;
        assert_eq!(general(&spared), reasons, "{watched:?}");
    }
    spared.probes.watched = Some(Watch::Accounting);
    assert!(spared.offload().notes[0].0.contains("show connections"));
    spared.probes.watched = None;
    assert!(spared.offload().notes.is_empty());
    let offload = spared.offload();
    assert_eq!((offload.tracked.v4.as_deref(), offload.tracked.v6), (Some("ct"), None));
    assert!(offload.parts[0].what.contains("none that is established, of UDP or TCP"));
    rules(&mut spared).spares_established.v4 = false;
    assert_eq!(general(&spared), ["conntrack"]);
    assert_eq!(spared.offload().tracked.v4, None);
    // It is the same with rules of IPv6.
    rules(&mut spared).tracking = PerFamily { v4: None, v6: Some("ct".to_owned()) };
    rules(&mut spared).spares_established.v6 = true;
    let offload = spared.offload();
    assert_eq!((offload.tracked.v4, offload.tracked.v6.as_deref()), (None, Some("ct")));
    assert!(offload.general.v6.is_empty(), "{:?}", offload.general.v6);
    assert!(offload.parts[0].what.starts_with("IPv6 packets that begin or end a connection"));
    spared.probes.asks_conntrack = false;
    assert_eq!(spared.offload().general.v6.len(), 1, "the programs cannot ask");
    let offload = router.offload();
    assert_eq!(
        (offload.fragments.v4.as_deref(), offload.fragments.v6.as_deref()),
        (Some("ct"), None)
    );
    let parts: Vec<_> =
        offload.parts.iter().map(|part| format!("{}: {}", part.what, part.why)).collect();
    assert_eq!(parts, ["IPv4 fragments: the kernel reassembles them, for ct"]);
    assert!(offload.notes[0].0.contains("conntrack -L"));
    expect(|router| rules(router).whole.v4.push("too many".to_owned()), &["all 4: rules"]);
}

#[test]
fn devices_that_take_unknown_frames() {
    expect(|router| router.add(9, netdev("hsr0", Some("hsr"))), &["all *: hidden"]);
}
