//! Tests which parts of a ruleset are unsupported: the real nft loads and lists the rulesets.

use std::collections::HashSet;

use super::super::elements::SetUse;
use super::super::program::list_by;
use super::super::read::{ListingError, ParsedListing, parse, uses};
use super::super::{Need, Reading};
use crate::files;
use tollway_firewall::ir::{Action, Step};
use tollway_firewall::offload::{Offload, offload};

/// Rules in nft's listing.
fn listed(text: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.nft");
    // nft requires line breaks around the end of a block.
    std::fs::write(&file, text.replace("} }", "\n}\n}\n")).unwrap();
    files::listing(&file)
        .unwrap_or_else(|mistakes| panic!("{}", tollway_firewall::mistake::report(&mistakes)))
}

fn read(
    listing: &str,
    generation: u32,
    moving: &HashSet<String>,
) -> Result<ParsedListing, ListingError> {
    super::super::read::read(parse(listing)?, generation, moving, None)
}

fn reading(text: &str) -> Reading {
    read(&listed(text), 7, &HashSet::new()).unwrap().reading
}

/// A chain at hook forward with these rules, in a table with these sets.
fn forward(sets: &str, rules: &[&str]) -> String {
    let rules = rules.join("\n");
    format!(
        "table inet t {{ {sets}\nchain c {{ type filter hook forward priority 0; policy accept;\n\
         {rules}\n}} }}"
    )
}

/// For each rule in order, why it is unsupported, or nothing.
fn unsupported(reading: &Reading) -> Vec<String> {
    let covered = offload(&reading.rules).into_iter().filter(|one| !one.rule.is_added());
    let reasons = covered.map(|covered| match covered.offload {
        Offload::Kernel(why) => why,
        Offload::Compiled => String::new(),
        Offload::Elsewhere(why) => format!("elsewhere: {why}"),
    });
    reasons.collect()
}

#[test]
fn steps_with_shared_state_take_the_kernel_path() {
    let sets = "set slow { type ipv4_addr; flags timeout; elements = { 192.0.2.1 timeout 1h } }\n\
        set old { type ipv4_addr; timeout 1m; }\n\
        set still { type ipv4_addr; flags timeout; elements = { 192.0.2.1 } }\n\
        map verdicts { type ipv4_addr : verdict; flags timeout; \
            elements = { 192.0.2.1 timeout 1h : drop } }";
    let rules = [
        ("tcp dport 1 log prefix \"x\" drop", "log line"),
        ("tcp dport 2 log group 3 accept", "log line"),
        ("tcp dport 3 limit rate 10/second accept", "use up the same limit"),
        ("ip saddr @slow drop", "expire"),
        ("ip saddr @old drop", "expire"),
        ("ip saddr vmap @verdicts", "expire"),
        ("ip saddr @still drop", ""),
        ("tcp dport 4 quota over 10 mbytes drop", "quota"),
        ("fib saddr . iif oif missing drop", "routes"),
        ("tcp dport 5 counter reject", ""),
        ("tcp dport 6 ip dscp set cs1", ""),
        ("tcp dport 7 meta mark set 7 accept", ""),
        ("tcp dport 8 numgen random mod 2 0 drop", "numgen"),
    ];
    let reading = reading(&forward(sets, &rules.map(|(rule, _)| rule)));
    let reasons = unsupported(&reading);
    assert_eq!(reasons.len(), rules.len());
    for (reason, (rule, why)) in reasons.iter().zip(rules) {
        assert!(reason.contains(why) && reason.is_empty() == why.is_empty(), "{rule}: {reason}");
    }
    assert!(reading.needs.tracking.is_empty() && reading.has_rules());
    // Earlier conditions stay: other packets do not get there.
    let mut written = reading.rules.chains[0].rules.iter().filter(|rule| !rule.is_added());
    let steps = &written.next().unwrap().steps;
    assert!(
        matches!(steps[..], [Step::Match(_), Step::Match(_), Step::Unsupported(_)]),
        "{steps:?}"
    );
}

#[test]
fn writes_of_a_tested_dscp_take_the_kernel_path() {
    for look in ["ip dscp cs1 drop", "ip6 dscp cs1 drop", "@nh,8,8 7 drop", "ip checksum 7 drop"] {
        let rules = ["tcp dport 6 ip dscp set cs1", look];
        // Behind routing the checksum differs.
        let text = forward("", &rules).replace("forward", "prerouting");
        assert!(unsupported(&reading(&text))[0].contains("DSCP"), "{look}");
    }
    let rules = ["tcp dport 6 ip dscp set cs1", "ip ttl 7 drop"];
    assert_eq!(unsupported(&reading(&forward("", &rules)))[0], "");
}

/// The rules for which the kernel has to see all packets, or at least fragments, by version.
fn needs(text: &str) -> [Option<Need>; 2] {
    let reading = reading(text);
    [true, false].map(|v4| reading.needs.fragments(v4).cloned())
}

/// A table with a chain that sees only packets for the host, chains that it leads to, and one at another
/// hook.
fn host(input: &str, hook: &str, rule: &str) -> String {
    format!(
        "table inet t {{ map m {{ type mark : verdict; elements = {{ 1 : jump mapped }} }}\n\
         chain i {{ type filter hook input priority 0; {input}\njump deep\n}}\n\
         chain deep {{ ct state new drop\ngoto deeper\n}}\n\
         chain deeper {{ ct state established,related accept\n}}\n\
         chain mapped {{ tcp dport 9 drop\n}}\n\
         chain lonely {{ ct mark 7 accept\n}}\n\
         chain o {{ type filter hook {hook} priority 0; {rule}\n}} }}"
    )
}

#[test]
fn rules_for_the_host_alone_leave_the_rest_alone() {
    for (input, hook, rule, concerns_all) in [
        ("ct state invalid drop", "forward", "tcp dport 1 drop", false),
        ("ct state invalid drop", "input", "ct state new drop", false),
        ("socket transparent 1 accept", "forward", "tcp dport 1 drop", false),
        ("ct mark set 7", "output", "tcp dport 1 drop", false),
        ("drop", "output", "ct state new accept", true),
        ("drop", "forward", "ct state new accept", true),
        ("drop", "forward", "jump deeper", true),
        ("drop", "prerouting", "meta mark vmap { 1 : goto deep }", true),
        ("drop", "postrouting", "ct mark set 7", true),
    ] {
        let reading = reading(&host(input, hook, rule));
        for v4 in [true, false] {
            assert!(reading.needs.fragments(v4).is_some(), "{input}, {hook} {rule}");
            let all = reading.needs.tracking(v4);
            assert_eq!(all.is_some(), concerns_all, "{input}, {hook} {rule}: {all:?}");
        }
    }
    // A rule of any chain may look up a map.
    let mapped =
        host("drop", "forward", "tcp dport 1 drop").replace("1 : jump mapped", "1 : jump deeper");
    assert!(reading(&mapped).needs.tracking(true).is_some());
    let nat = "table ip t { chain c { type nat hook input priority 100; ct state new accept } }";
    assert!(reading(nat).needs.tracking(true).is_some(), "addresses are translated there");
}

#[test]
fn modules_of_iptables_for_the_host_alone() {
    for (name, concerns_all) in
        [("conntrack", false), ("state", false), ("CT", true), ("SNAT", true)]
    {
        let mut listing = listed_module("match", name);
        let read = |listing: &str| read(listing, 7, &HashSet::new()).unwrap().reading;
        assert!(read(&listing).needs.tracking(true).is_some(), "{name} at hook forward");
        listing = listing.replace("\"forward\"", "\"input\"");
        assert_eq!(read(&listing).needs.tracking(true).is_some(), concerns_all, "{name}");
        assert!(read(&listing).needs.fragments(true).is_some(), "{name}");
    }
}

#[test]
fn tracking_rules_concern_all_packets() {
    let (both, four, six) = ([true; 2], [true, false], [false, true]);
    for (text, wanted) in [
        (forward("", &["ct state established,related accept", "drop"]), both),
        (forward("", &["tcp dport 1 ct mark set 7"]), both),
        (forward("", &["ip daddr vmap { 192.0.2.1 : drop }", "ct count over 3 drop"]), both),
        (forward("", &["meta mark set ct mark"]), both),
        (forward("", &["ip saddr . ct state { 192.0.2.1 . new } drop"]), both),
        ("table ip t { chain c { type filter hook input priority 0; ct state new } }".into(), four),
        ("table ip6 t { chain c { ct state new } }".into(), six),
        ("table ip t { flags dormant; chain c { type filter hook input priority 0; ct state new } }"
            .into(), four),
        ("table ip t { chain c { type nat hook postrouting priority 100; masquerade } }".into(), four),
        ("table ip t { chain c { type nat hook postrouting priority 100; } }".into(), [false; 2]),
        ("table ip t { chain c { type nat hook postrouting priority 100; accept } }".into(), four),
        ("table ip t { ct helper h { type \"ftp\" protocol tcp; }; }".into(), four),
        ("table ip t { ct timeout h { protocol tcp; policy = { established : 9 }; }; }".into(), four),
        ("table inet t { synproxy s { mss 1460; wscale 7; }; }".into(), both),
        ("table ip t { chain c { type filter hook prerouting priority 0; \
            tcp dport 1 tproxy to :9 } }".into(), four),
        ("table arp t { chain c { type filter hook input priority 0; arp operation 1 drop } }".into(),
            [false; 2]),
        (forward("", &["icmp type redirect drop", "tcp dport 1 notrack"]), [false; 2]),
    ] {
        assert_eq!(needs(&text).map(|need| need.is_some()), wanted, "{text}");
    }
    let need = needs(&forward("", &["ct state established,related counter accept"]))[0].clone();
    assert_eq!(
        need.unwrap().to_string(),
        "\"ct state established,related counter accept\" in inet t c: connections are tracked"
    );
}

#[test]
fn a_target_without_a_timeout_policy_spares_established_connections() {
    let unknown = listed_module("target", "CT");
    let known = unknown.replace("\"name\": \"CT\"", "\"name\": \"CT\", \"keeps_timeouts\": true");
    assert_ne!(unknown, known);
    for (listing, spares) in [(unknown, false), (known, true)] {
        let reading = read(&listing, 7, &HashSet::new()).unwrap().reading;
        let need = reading.needs.tracking(true).unwrap();
        assert_eq!(need.spares_established, spares);
        assert!(unsupported(&reading)[0].contains("module of iptables"));
    }
}

/// A listing of a rule that iptables-nft has made.
fn listed_module(kind: &str, name: &str) -> String {
    let mut listing =
        listed("table ip filter { chain FORWARD { type filter hook forward priority 0; drop } }");
    let module =
        format!("{{\"xt\": {{\"type\": \"{kind}\", \"name\": \"{name}\"}}}}, {{\"drop\": null}}");
    listing = listing.replace("{\"drop\":null}", &module);
    assert!(listing.contains(name));
    listing
}

#[test]
fn modules_of_iptables_take_the_kernel_path() {
    for (kind, name, tracks) in [
        ("match", "conntrack", true),
        ("match", "state", true),
        ("target", "CT", true),
        ("target", "MASQUERADE", true),
        ("match", "socket", true),
        ("match", "no_such", true),
        ("match", "recent", false),
        ("target", "LOG", false),
        ("match", "hashlimit", false),
    ] {
        let reading = read(&listed_module(kind, name), 7, &HashSet::new()).unwrap().reading;
        assert_eq!(reading.needs.tracking(true).is_some(), tracks, "{name}");
        assert!(reading.needs.tracking(false).is_none());
        assert!(unsupported(&reading)[0].contains("module of iptables"));
    }
}

#[test]
fn packets_that_kernels_treat_differently_take_the_kernel_path() {
    let words = |text: &str| {
        let rules = reading(text).rules;
        let rules = rules.chains[0].rules.iter();
        rules
            .map(|rule| rule.text.split(' ').next().unwrap().to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    for (rules, expected) in [
        (&["ip saddr 192.0.2.1 drop"][..], "ip"),
        (&["accept", "tcp dport 22 drop", "tcp flags syn drop"], "accept (later tcp tcp"),
        (&["icmp type echo-request drop"], "(later icmp"),
        (&["meta l4proto icmp drop", "meta l4proto ipv6-icmp drop"], "meta meta"),
        (&["meta l4proto { icmp, tcp } drop", "meta l4proto != icmp drop"], "meta meta"),
        (&["@th,8,8 7 drop"], "(later @th,8,8"),
        (&["meta mark set tcp dport map { 1 : 2 }"], "(later meta"),
    ] {
        let found = words(&forward("", rules));
        assert_eq!(found, expected, "{rules:?}");
    }
}

#[test]
fn counters_start_at_zero() {
    let text = "table inet t { counter n { packets 5 bytes 500 }; chain c { \
        type filter hook forward priority 0; \
        counter packets 7 bytes 700 accept; counter name n drop; tcp dport 1 counter jump d; }; \
        chain d { counter packets 1 bytes 1 drop; } }";
    let reading = reading(text);
    assert!(
        reading.rules.counters.iter().all(|counter| (counter.packets, counter.bytes) == (0, 0))
    );
    let steps =
        reading.rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    assert_eq!(steps.filter(|step| matches!(step, Step::Do(Action::Count(_)))).count(), 4);
    assert_eq!(reading.rules.chains[0].rules[0].text, "counter accept", "the first of them");
}

#[test]
fn large_and_moving_sets_of_addresses_are_live() {
    let many: Vec<_> = (0..80).map(|number| format!("192.0.2.{number}")).collect();
    let many = many.join(", ");
    let sets = format!(
        "set many {{ type ipv4_addr; elements = {{ {many} }} }}\n\
        set twice {{ type ipv4_addr; elements = {{ {many} }} }}\n\
        set nets {{ type ipv6_addr; flags interval; elements = {{ 2001:db8::/32 }} }}\n\
        set unused {{ type ipv4_addr; elements = {{ {many} }} }}\n\
        set few {{ type ipv4_addr; elements = {{ 192.0.2.1 }} }}\n\
        set ports {{ type inet_service; elements = {{ 22 }} }}"
    );
    let rules = [
        "ip saddr @many drop",
        "ip daddr @many drop",
        "ip saddr @twice drop",
        "ip saddr & 255.255.255.0 @twice drop",
        "ip6 saddr @nets drop",
        "ip saddr @few drop",
        "tcp dport @ports drop",
    ];
    let listing = listed(&forward(&sets, &rules));
    let of = |moving: &[&str]| {
        let moving = moving.iter().map(|set| format!("inet t {set}")).collect();
        let uses = uses(&read(&listing, 7, &moving).unwrap());
        ["many", "twice", "nets", "unused", "few", "ports"]
            .map(|set| uses.get(&format!("inet t {set}")).copied())
    };
    let live = |version, is_interval| Some(SetUse::Live { version, is_interval });
    let (fixed, many) = (Some(SetUse::Fixed), live(4, false));
    assert_eq!(of(&[]), [many, fixed, fixed, None, fixed, fixed]);
    assert_eq!(
        of(&["few", "nets", "ports", "twice"]),
        [many, fixed, live(6, true), None, many, fixed]
    );
}

#[test]
fn rules_that_no_forwarded_packet_reaches_do_not_count() {
    for (text, has) in [
        (String::from("table inet t { }"), false),
        ("table inet t { chain c { drop } }".into(), false),
        ("table inet t { chain c { type filter hook input priority 0; drop } }".into(), false),
        ("table inet t { chain c { type filter hook forward priority 0; } }".into(), false),
        (
            "table inet t { chain c { type filter hook forward priority 0; policy drop; } }".into(),
            true,
        ),
        ("table bridge t { chain c { type filter hook forward priority 0; drop } }".into(), false),
        ("table ip t { chain c { type filter hook prerouting priority 0; accept } }".into(), true),
    ] {
        assert_eq!(reading(&text).has_rules(), has, "{text}");
    }
}

#[test]
fn a_program_that_is_not_there_is_missed() {
    let error = list_by("nft-that-is-not-there", &|| false).unwrap_err();
    assert_eq!(error.to_string(), "the program nft is not there; install the package nftables");
}

#[test]
fn malformed_listings_are_reported_in_a_sentence() {
    for (json, part) in [
        ("", "not JSON"),
        ("{}", "no list"),
        (
            "{\"nftables\": [{\"rule\": {\"family\": \"ip\", \"chain\": \"x\"}}]}",
            "which is not listed",
        ),
    ] {
        let error = read(json, 7, &HashSet::new()).err().unwrap().to_string();
        assert!(error.contains(part), "{error}");
    }
}
