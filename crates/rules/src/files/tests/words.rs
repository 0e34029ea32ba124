//! Tests that nft reads rules in our rendering of its syntax as the same rules.

use std::io::Write as _;

use serde_json::Value;

use super::super::script::listing;
use super::corpus::files;
use tollway_firewall::nft::json::{only, several, text};
use tollway_firewall::nft::read;

/// A listing's rules with their places.
fn rules(listing: &str) -> Vec<(String, Value)> {
    let listing: Value = serde_json::from_str(listing).unwrap();
    let rules = several(&listing["nftables"]).iter().filter_map(only);
    let rules = rules.filter(|(kind, rule)| *kind == "rule" && text(rule, "family") != "arp");
    rules
        .map(|(_, rule)| {
            let of = |name| text(rule, name).to_owned();
            let place = [of("family"), of("table"), of("chain")].join(" ");
            (place, serde_json::json!([rule["expr"], rule["comment"]]))
        })
        .collect()
}

#[test]
fn written_rules_are_read_as_the_same() {
    for file in files() {
        let first = listing(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let ruleset = read(&first, &name).unwrap();
        // The file has everything except the rules, then the rules as we write them.
        let mut second = tempfile::NamedTempFile::new().unwrap();
        let source = std::fs::read_to_string(&file).unwrap();
        second.write_all(source.as_bytes()).unwrap();
        for chain in &ruleset.chains {
            writeln!(second, "flush chain {}", chain.name).unwrap();
            for rule in &chain.rules {
                writeln!(second, "add rule {} {}", chain.name, rule.text).unwrap();
            }
        }
        let listing = listing(second.path()).unwrap_or_else(|mistakes| {
            panic!("{name}: {}", tollway_firewall::mistake::report(&mistakes));
        });
        let (before, after) = (rules(&first), rules(&listing));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before, after, "{name}");
        }
        assert_eq!(before.len(), after.len(), "{name}");
    }
}
