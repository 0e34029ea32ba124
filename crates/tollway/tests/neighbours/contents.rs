//! The contents of sets, as Tollway reads them and as nft lists them.

use std::collections::BTreeMap;

use tollway_firewall::ir::{Elements, Ruleset};
use tollway_firewall::nft::{complete, read};

use super::namespaces::sh;
use super::rules::{Consumer, nft};

/// Sets of all kinds that Tollway reads in one way or the other.
const SETS: &str = "
    set plain { type ipv4_addr; elements = { 192.0.2.7, 10.0.0.1, 255.255.255.255, 0.0.0.0 }; }
    set plain6 { type ipv6_addr; elements = { 2001:db8::1, ::, ffff::1 }; }
    set none { type ipv4_addr; }
    set noted { type ipv4_addr; elements = { 192.0.2.7 comment \"why\", 192.0.2.8 }; }
    set nets { type ipv4_addr; flags interval; elements = { 10.0.0.0/24, 10.0.1.0/24, 10.0.4.1, 10.0.5.3-10.0.5.9 }; }
    set ends { type ipv4_addr; flags interval; elements = { 0.0.0.0/8, 255.0.0.0/8 }; }
    set first { type ipv4_addr; flags interval; elements = { 0.0.0.0 }; }
    set last { type ipv4_addr; flags interval; elements = { 255.255.255.255 }; }
    set every { type ipv4_addr; flags interval; elements = { 0.0.0.0/0 }; }
    set merged { type ipv4_addr; flags interval; auto-merge; elements = { 10.0.0.0/24, 10.0.1.0/24, 10.0.0.9 }; }
    set nets6 { type ipv6_addr; flags interval; elements = { 2001:db8::/32, ::1, ffff::-ffff:ffff:ffff:ffff:ffff:ffff:ffff:ffff }; }
    set catches { type ipv4_addr; elements = { 192.0.2.1, * }; }
    set counted { type ipv4_addr; counter; elements = { 192.0.2.1, 192.0.2.2 }; }
    set fading { type ipv4_addr; flags timeout; elements = { 192.0.2.1 timeout 1h, 192.0.2.2 }; }
    set both { type ipv4_addr . inet_service; elements = { 192.0.2.1 . 80, 192.0.2.2 . 443 }; }
    set ports { type inet_service; flags interval; elements = { 22, 80-90 }; }
    map where { type ipv4_addr : verdict; elements = { 192.0.2.1 : drop, 192.0.2.2 : accept }; }
";

const RULES: &str = "
    ip saddr @plain drop
    ip6 saddr @plain6 drop
    ip saddr @none drop
    ip saddr @noted drop
    ip saddr @nets drop
    ip saddr @ends drop
    ip saddr @first drop
    ip saddr @last drop
    ip saddr @every drop
    ip saddr @merged drop
    ip6 saddr @nets6 drop
    ip saddr @catches drop
    ip saddr @counted drop
    ip saddr @fading drop
    ip saddr . tcp dport @both drop
    tcp dport @ports drop
    ip saddr vmap @where
";

/// A table with those sets whose lines `wanted` selects.
fn table(wanted: impl Fn(&str) -> bool) -> String {
    let sets: Vec<_> = SETS.lines().filter(|line| wanted(line)).collect();
    let names: Vec<_> = sets.iter().filter_map(|line| line.split_whitespace().nth(1)).collect();
    let is_there = |rule: &&str| names.iter().any(|name| rule.contains(&format!("@{name} ")));
    let rules: Vec<_> = RULES.lines().map(|rule| format!("{rule} ")).collect();
    let rules: Vec<_> = rules.iter().map(String::as_str).filter(is_there).collect();
    format!(
        "table inet t {{\n{}\nchain c {{ type filter hook forward priority 0;\n{}\n}}\n}}\n",
        sets.join("\n"),
        rules.join("\n")
    )
}

/// The elements of each set, sorted.
fn contents(rules: &Ruleset) -> BTreeMap<String, Vec<String>> {
    let named = rules.sets.iter().filter(|set| !set.name.is_empty());
    let contents = named.map(|set| {
        let mut elements: Vec<_> = match &set.elements {
            Elements::Ranges(ranges) => ranges.iter().map(|one| format!("{one:?}")).collect(),
            Elements::Tuples(tuples) => tuples.iter().map(|one| format!("{one:?}")).collect(),
        };
        elements.sort();
        (set.name.clone(), elements)
    });
    contents.collect()
}

pub fn same() {
    let few =
        |line: &str| ["none", "both", "where", "nets "].iter().any(|name| line.contains(name));
    for script in [
        // So many sets that Tollway lists them all at once.
        table(|_| true),
        table(|line| line.contains("type ipv4_addr; ") || line.contains("type ipv6_addr; ")),
        table(few),
    ] {
        nft("flush ruleset");
        nft(&script);
        let mut consumer = Consumer::new();
        consumer.sync();
        let listing = sh("nft -j list ruleset");
        let rules = read(&complete(&listing, &sh("nft list ruleset")), "nft").unwrap();
        let (ours, nfts) = (contents(consumer.rules()), contents(&rules));
        assert!(nfts.len() >= 3, "{script}");
        assert_eq!(ours, nfts, "{script}");
    }
}
