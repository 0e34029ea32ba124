//! Tests what targets of the table nat translate.

use super::read_valid;
use crate::ir::{Family, NatRange, NatTarget, Step, Verdict};

#[test]
fn targets_say_what_is_translated() {
    let of = |chain: &str, rule: &str, family| {
        let save = format!("*nat\n:{chain} ACCEPT [0:0]\n-A {chain} {rule}\nCOMMIT\n");
        let rules = read_valid(&save, family);
        let mut verdicts = rules.chains[0].rules.iter().flat_map(|rule| &rule.steps);
        let nat = verdicts.find_map(|step| match step {
            Step::Verdict(Verdict::Nat(nat)) => Some(nat.range),
            _ => None,
        });
        nat.unwrap_or_else(|| panic!("{rule}: {rules:?}"))
    };
    let range = |target, ports, is_random, is_persistent| NatRange {
        target,
        ports,
        is_random,
        is_persistent,
    };
    let (pre, post) = ("PREROUTING", "POSTROUTING");
    let one = Some((0x0a00_0001, 0x0a00_0001));
    for (chain, rule, expected) in [
        (post, "-j MASQUERADE", range(NatTarget::Masquerade, None, false, false)),
        (
            post,
            "-p tcp -j MASQUERADE --to-ports 80-90 --random-fully",
            range(NatTarget::Masquerade, Some((80, 90)), true, false),
        ),
        (
            post,
            "-p tcp -j SNAT --to-source 10.0.0.1-10.0.0.4:80-90 --random --persistent",
            range(NatTarget::Source(Some((0x0a00_0001, 0x0a00_0004))), Some((80, 90)), true, true),
        ),
        (post, "-j SNAT --to-source 10.0.0.1", range(NatTarget::Source(one), None, false, false)),
        (
            pre,
            "-p udp -j DNAT --to-destination 10.0.0.1:53",
            range(NatTarget::Destination(one), Some((53, 53)), false, false),
        ),
        (
            pre,
            "-p udp -j DNAT --to-destination :53",
            range(NatTarget::Destination(None), Some((53, 53)), false, false),
        ),
        (pre, "-j REDIRECT", range(NatTarget::Redirect, None, false, false)),
        (
            pre,
            "-p tcp -j REDIRECT --to-ports 80 --random",
            range(NatTarget::Redirect, Some((80, 80)), true, false),
        ),
        (
            pre,
            "-j NETMAP --to 10.8.0.0/24",
            range(NatTarget::DestinationNetwork(0x0a08_0000, 0x0a08_00ff), None, false, false),
        ),
        (
            post,
            "-j NETMAP --to 10.8.0.0/24",
            range(NatTarget::SourceNetwork(0x0a08_0000, 0x0a08_00ff), None, false, false),
        ),
    ] {
        assert_eq!(of(chain, rule, Family::Ip), expected, "{rule}");
    }
    let six = Some((0xfd00 << 112 | 1, 0xfd00 << 112 | 1));
    assert_eq!(
        of(pre, "-p tcp -j DNAT --to-destination [fd00::1]:80", Family::Ip6),
        range(NatTarget::Destination(six), Some((80, 80)), false, false)
    );
    assert_eq!(
        of(post, "-j SNAT --to-source fd00::1", Family::Ip6),
        range(NatTarget::Source(six), None, false, false)
    );
    for (rule, what) in [
        ("-j SNAT", "does not say what it sets"),
        ("-j SNAT --to-source 10.0.0.4-10.0.0.1", "ends before it begins"),
        ("-j SNAT --to-source 10.0.0.1:80", "for protocols without any"),
        ("-p tcp -j DNAT --to-destination 10.0.0.1:80-90/8", "shifts ports"),
    ] {
        let save = format!("*nat\n:{post} ACCEPT [0:0]\n-A {post} {rule}\nCOMMIT\n");
        let mistakes = crate::iptables::read(&save, "t", Family::Ip).unwrap_err();
        assert!(mistakes[0].to_string().contains(what), "{rule}: {mistakes:?}");
    }
}
