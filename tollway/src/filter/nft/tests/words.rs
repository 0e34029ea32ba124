//! To nft, rules in our rendering of its syntax are the same rules.

use std::io::Write as _;

use serde_json::Value;

use super::super::json::{only, several, text};
use super::super::{read, script};
use super::corpus::files;

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
        let first = script(&file).unwrap();
        let name = file.file_name().unwrap().to_string_lossy().into_owned();
        let ruleset = read(&first, &name).unwrap();
        // Everything but the rules, then the rules as we write them.
        let mut second = tempfile::NamedTempFile::new().unwrap();
        let source = std::fs::read_to_string(&file).unwrap();
        second.write_all(source.as_bytes()).unwrap();
        for chain in &ruleset.chains {
            writeln!(second, "flush chain {}", chain.name).unwrap();
            for rule in &chain.rules {
                writeln!(second, "add rule {} {}", chain.name, rule.text).unwrap();
            }
        }
        let listing = script(second.path()).unwrap_or_else(|mistakes| {
            panic!("{name}: {}", crate::mistake::report(&mistakes));
        });
        let (before, after) = (rules(&first), rules(&listing));
        for (before, after) in before.iter().zip(&after) {
            assert_eq!(before, after, "{name}");
        }
        assert_eq!(before.len(), after.len(), "{name}");
    }
}

#[test]
fn rules_are_written_as_nft_writes_them() {
    let json = |text: &str| serde_json::from_str::<Value>(text).unwrap();
    for (expr, written) in [
        (
            r#"[{"match":{"op":"==","left":{"meta":{"key":"iifname"}},"right":"eth*"}},
                {"match":{"op":"==","left":{"payload":{"protocol":"tcp","field":"dport"}},
                 "right":{"set":[22,{"range":[80,90]}]}}},{"counter":null},{"drop":null}]"#,
            "iifname \"eth*\" tcp dport { 22, 80-90 } counter drop",
        ),
        (
            r#"[{"match":{"op":"in","left":{"ct":{"key":"state"}},
                 "right":["established","related"]}},{"accept":null}]"#,
            "ct state established,related accept",
        ),
        (
            r#"[{"dnat":{"family":"ip6","addr":"2001:db8::1","port":80}}]"#,
            "dnat ip6 to [2001:db8::1]:80",
        ),
        (
            r#"[{"vmap":{"key":{"concat":[{"meta":{"key":"iif"}},{"meta":{"key":"mark"}}]},
                 "data":{"set":[[{"concat":["lo",5]},{"jump":{"target":"c"}}],["*",{"drop":null}]]}}}]"#,
            "iif . meta mark vmap { \"lo\" . 5 : jump c, * : drop }",
        ),
        (r#"[{"fwd":{"dev":"lo"}}]"#, "fwd to \"lo\""),
        (r#"[{"queue":{"num":{"range":[1,3]},"flags":"bypass"}}]"#, "queue flags bypass to 1-3"),
        (
            r#"[{"set":{"op":"update","elem":{"elem":{"val":{"payload":{"protocol":"ip",
                 "field":"saddr"}},"timeout":30}},"set":"@seen"}}]"#,
            "update @seen { ip saddr timeout 30s }",
        ),
        (r#"[{"from_the_future":{"a":1}}]"#, r#"{"from_the_future":{"a":1}}"#),
    ] {
        let rule = serde_json::json!({ "expr": json(expr) });
        assert_eq!(super::super::text::rule(&rule), written);
    }
}
