//! Rules of a file for which nft's listing differs from the loaded rules.

use serde_json::Value;

use super::super::loaded::Loaded;
use crate::files::loaded;
use tollway_firewall::ir::{Ruleset, Step};

/// One rule, as the kernel has it.
fn load(rule: &str) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.nft");
    let text = format!(
        "table inet t {{\n chain d {{\n }}\n chain c {{\n type filter hook forward priority 0;\n{rule}\n }}\n}}\n"
    );
    std::fs::write(&file, text).unwrap();
    loaded(&file).unwrap_or_else(|mistakes| panic!("{rule}: {mistakes:?}"))
}

fn unsupported(rules: &Ruleset) -> Option<&str> {
    let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    steps.into_iter().find_map(|step| match step {
        Step::Unsupported(why) => Some(why.as_str()),
        _ => None,
    })
}

/// The same rule, listed otherwise.
fn changed(own: Loaded, rule: &str, listed: &str, otherwise: &str) -> Loaded {
    own.with(|value| {
        let objects = value["nftables"].as_array_mut().unwrap();
        let mut rules = objects.iter_mut().filter_map(|object| object.get_mut("rule"));
        let statements = rules.find(|rule| rule["chain"] == "c").unwrap();
        let text = statements["expr"].to_string();
        assert!(text.contains(listed), "{rule}: {text}");
        let text = text.replacen(listed, otherwise, 1);
        statements["expr"] = serde_json::from_str::<Value>(&text).unwrap();
    })
}

#[test]
fn differences_from_the_kernel_are_unsupported() {
    for (rule, listed, otherwise) in [
        ("tcp dport 22 drop", "22", "23"),
        ("tcp dport 22-30 drop", "30", "31"),
        ("tcp dport { 22, 80-90 } drop", "[80,90]", "[80,91]"),
        ("tcp dport { 22, 80-90 } drop", "[22,", "[22,25,"),
        ("tcp dport != { 22, 80 } drop", "80", "81"),
        ("ip saddr { 10.0.0.0/8, 192.0.2.1 } drop", "\"len\":8", "\"len\":9"),
        ("ip6 saddr { 2001:db8::/32, ::1 } drop", "::1", "::2"),
        ("ip6 dscp { 1-3, 7 } drop", "7", "8"),
        ("ip dscp { 3, 7 } drop", "7", "8"),
        ("ip ttl . ip id { 64 . 5 } drop", "64", "63"),
        ("meta mark { 1-5, 7 } drop", "7", "8"),
        ("meta mark { 1, 7 } drop", "7", "8"),
        ("meta mark & 0xff { 1, 7 } drop", "7", "8"),
        ("meta length { 40-60, 1500 } drop", "1500", "1501"),
        ("meta nfproto { ipv4, ipv6 } drop", "\"ipv4\",", ""),
        ("meta l4proto { tcp, udp } drop", "\"udp\"", "\"sctp\""),
        ("ether saddr { 02:00:00:00:00:01, 02:00:00:00:00:02 } drop", "00:02\"", "00:03\""),
        ("iifname { \"a\", \"b\" } drop", "\"b\"", "\"c\""),
        ("ip saddr . tcp dport { 10.0.0.1 . 53, 10.0.0.2 . 80 } drop", "53", "54"),
        ("ip saddr . tcp dport { 10.0.0.0/8 . 53-60, 192.0.2.1 . 80 } drop", "60", "61"),
        ("iifname . meta mark { \"a\" . 5 } drop", "\"a\"", "\"b\""),
        ("tcp dport vmap { 22 : accept, 80-90 : drop }", "90", "91"),
        ("tcp dport vmap { 22 : accept, 80-90 : drop }", "\"accept\"", "\"return\""),
        ("tcp dport vmap { 22 : accept, * : jump d }", "\"jump\"", "\"goto\""),
        ("ip saddr . tcp dport vmap { 10.0.0.1 . 53 : accept }", "53", "54"),
        ("meta mark set tcp dport map { 22 : 1, 80 : 2 }", "2]", "3]"),
        ("meta mark set 5 drop", "5", "6"),
        ("limit rate 10/second drop", "10", "11"),
        ("limit rate over 10 kbytes/minute burst 5 bytes drop", "\"minute\"", "\"hour\""),
        ("limit rate over 10 kbytes/minute burst 5 bytes drop", "\"inv\":true", "\"inv\":false"),
        ("log prefix \"one\" drop", "one", "two"),
        ("log group 3 drop", "3", "4"),
        ("icmp type echo-request icmp code 0 drop", "\"net-", "\"host-"),
        ("icmp type { echo-reply, echo-request } icmp id 5 icmp sequence 7 drop", "7", "8"),
        ("ip ttl 8 ip protocol tcp drop", "8", "9"),
    ] {
        let own = load(rule);
        assert_eq!(unsupported(&own.rules("x").unwrap()), None, "{rule}");
        let is_changed = changed(own, rule, listed, otherwise);
        let rules = is_changed.rules("x").unwrap();
        assert_eq!(
            unsupported(&rules),
            Some("nft does not list it as the kernel has it"),
            "{rule}"
        );
    }
}

#[test]
fn rules_about_connections_are_verified() {
    for (rule, listed, otherwise) in [
        ("ct state established,related accept", "\"established\"", "\"new\""),
        ("ct state established accept", "\"in\"", "\"!\""),
        ("ct state { established, related } accept", "\"related\"", "\"new\""),
        ("ct state != established drop", "\"!=\"", "\"==\""),
        ("ct state vmap { established : accept, invalid : drop }", "\"invalid\"", "\"new\""),
        ("ct state . ct mark { established . 5 } accept", "5]", "6]"),
        ("ct status assured,confirmed accept", "\"assured\"", "\"snat\""),
        ("ct status & (dnat|snat) == dnat accept", "\"right\":\"dnat\"", "\"right\":\"snat\""),
        ("ct direction reply accept", "\"reply\"", "\"original\""),
        ("ct mark 5 accept", "5", "6"),
        ("ct mark != 0x10-0x20 accept", "32", "33"),
        ("ct mark & 0xff == 3 accept", "255", "127"),
        ("ct mark > 5 accept", "\">\"", "\">=\""),
        ("ct mark { 1-5, 7 } accept", "7", "8"),
        ("ct mark vmap { 1 : accept, 2 : drop }", "2", "3"),
        ("ct zone 5 accept", "5", "6"),
        ("ct original ip saddr 1.2.3.4 accept", "original", "reply"),
        ("ct original ip saddr 1.2.3.0/24 accept", "24", "25"),
        ("ct original ip saddr { 1.2.3.4, 10.0.0.0/8 } accept", "saddr", "daddr"),
        ("ct reply ip6 daddr 2001:db8::/32 accept", "32", "33"),
        ("ct reply ip6 daddr 2001:db8::1 accept", "::1", "::2"),
        ("tcp dport 5 ct original proto-dst 80 accept", "80", "81"),
        ("meta l4proto udp ct reply proto-src 1024-65535 accept", "1024", "1025"),
        ("meta l4proto udp ct original proto-dst { 80, 443-445 } accept", "0x50", "0x51"),
        ("ct protocol tcp accept", "\"tcp\"", "\"udp\""),
        ("ct l3proto ipv4 accept", "ipv4", "ipv6"),
        ("ct mark set 7", "7", "8"),
        ("ct mark set meta mark", "\"meta\"", "\"ct\""),
        ("meta mark set ct mark and 0xff", "255", "127"),
        ("ct mark set ct mark and 0xffffff00 or 1", "1]", "2]"),
        ("ct mark set ip saddr map { 1.2.3.4 : 5, 2.3.4.5 : 6 }", "6", "7"),
        ("meta mark set ct mark map { 1 : 5, 2 : 6 }", "6", "7"),
        ("ct state new tcp dport 22 accept", "22", "23"),
        ("ip saddr 1.2.3.4 ct state new tcp dport 22 counter accept", "\"accept\"", "\"drop\""),
    ] {
        let own = load(rule);
        let packets = own.rules("x").unwrap();
        assert_eq!(unsupported(&packets), None, "{rule}: {packets:?}");
        assert!(packets.tracking.is_some(), "{rule}");
        assert_eq!(unsupported(&own.connections()), None, "{rule}: {:?}", own.connections());
        let is_changed = changed(own, rule, listed, otherwise);
        let why = "nft does not list it as the kernel has it";
        for rules in [is_changed.rules("x").unwrap(), is_changed.connections()] {
            assert_eq!(unsupported(&rules), Some(why), "{rule}");
        }
    }
}

/// Like [`load`], in a chain of type nat at a hook.
fn load_nat(hook: &str, rule: &str) -> Loaded {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.nft");
    let text = format!(
        "table inet t {{\n map m {{ type inet_service : ipv4_addr . inet_service\n elements = {{ 80 : 10.0.0.1 . 8080 }}\n }}\n\
         chain c {{\n type nat hook {hook} priority 0;\n{rule}\n }}\n}}\n"
    );
    std::fs::write(&file, text).unwrap();
    loaded(&file).unwrap_or_else(|mistakes| panic!("{rule}: {mistakes:?}"))
}

#[test]
fn translations_are_verified() {
    let (pre, post) = ("prerouting", "postrouting");
    for (hook, rule, listed, otherwise) in [
        (pre, "dnat ip to 10.0.0.1", "10.0.0.1", "10.0.0.2"),
        (pre, "ip daddr 192.0.2.1 tcp dport 80 dnat ip to 10.0.0.1:8080", "8080", "8081"),
        (pre, "tcp dport 80 dnat ip6 to [fd00::1]:8080", "fd00::1", "fd00::2"),
        (pre, "meta l4proto udp dnat ip to 10.0.0.1-10.0.0.4:80-90 random,persistent", "90", "91"),
        (pre, "tcp dport 81 redirect to :82", "82", "83"),
        (pre, "iifname \"wan\" redirect", "\"redirect\":null", "\"redirect\":{\"port\":5}"),
        (pre, "dnat ip to tcp dport map { 80 : 10.0.0.1, 443 : 10.0.0.2 }", "443", "444"),
        (pre, "dnat ip to tcp dport map { 80 : 10.0.0.1 . 8080 }", "[[80", "[[81"),
        (pre, "dnat ip to tcp dport map @m", "dport", "sport"),
        (pre, "dnat ip prefix to ip daddr map { 192.0.2.0/24 : 10.0.0.0/24 }", "daddr", "saddr"),
        (
            post,
            "oifname \"wan\" masquerade",
            "\"masquerade\":null",
            "\"masquerade\":{\"flags\":\"random\"}",
        ),
        (post, "meta l4proto tcp masquerade to :1024-2048 fully-random", "2048", "2049"),
        (post, "ip saddr 10.0.0.0/8 snat ip to 192.0.2.1-192.0.2.9 persistent", "2.9", "2.8"),
        (post, "snat ip6 to fd00::1", "fd00::1", "fd00::2"),
    ] {
        let own = load_nat(hook, rule);
        let rules = own.rules("x").unwrap();
        assert_eq!(unsupported(&rules), None, "{rule}: {rules:?}");
        assert!(rules.tracking.unwrap().translation.is_some(), "{rule}");
        let is_changed = changed(own, rule, listed, otherwise).rules("x").unwrap();
        let why = "nft does not list it as the kernel has it";
        assert_eq!(unsupported(&is_changed), Some(why), "{rule}");
    }
}

#[test]
fn a_rule_that_is_not_listed_is_there() {
    let gone = load("tcp dport 22 drop").with(|value| {
        value["nftables"].as_array_mut().unwrap().retain(|object| object.get("rule").is_none());
    });
    assert!(unsupported(&gone.rules("x").unwrap()).is_some());
}

/// nft lists a number as the name of the device that has the number in nft's namespace, or as if it
/// were a name.
#[test]
fn numbers_of_devices_are_not_names() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("rules.nft");
    let text = |rule: &str| {
        format!(
            "table netdev n {{\n chain c {{\n type filter hook ingress device \"wan0\" priority 0;\n }}\n}}\n\
             table inet t {{\n set numbers {{\n type iface_index\n elements = {{ 2, 3 }}\n }}\n chain c {{\n type filter hook forward priority 0;\n{rule}\n }}\n}}\n"
        )
    };
    for (rule, is_done) in
        [("iif 2 drop", false), ("iif { 2, 3 } drop", false), ("iif \"wan0\" drop", true)]
    {
        std::fs::write(&file, text(rule)).unwrap();
        let rules = loaded(&file).unwrap().rules("x").unwrap();
        assert_eq!(unsupported(&rules).is_none(), is_done, "{rule}: {:?}", unsupported(&rules));
    }
}
