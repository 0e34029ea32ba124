//! Tests of the whole reader: accepted configurations, and every mistake with its line and words.

mod accepts;
mod bridges;
mod filter;
mod mistakes_links;
mod mistakes_routes;
mod properties;
mod reports;

use super::{Mistake, parse};

/// Three ports and a VLAN link as a base for mistakes, on lines 1 to 24.
const BASE: &str = r#"[ports.wan]
kind = "memory"
addresses = ["198.51.100.1/24", "2001:db8:1::1/64"]

[ports.lan]
kind = "memory"
addresses = ["192.0.2.1/24", "2001:db8:2::1/64"]

[ports.dmz]
kind = "memory"
mtu = 1000

[vlans."lan.10"]
parent = "lan"
vid = 10
vrf = "red"
addresses = ["10.0.10.1/24"]

[vrfs.red]

[groups.uplinks]
nexthops = [{ via = "198.51.100.253" }, { via = "198.51.100.254" }]


"#;

const BASE_LINES: usize = 24;

/// One mistake: the text, the line of the mistake, and words that its message must contain.
type Case = (&'static str, usize, &'static [&'static str]);

fn mistakes(text: &str) -> Vec<Mistake> {
    parse(text, "t.toml").err().unwrap_or_default()
}

fn assert_only(text: &str, line: usize, words: &[&str]) {
    let found = mistakes(text);
    assert_eq!(found.len(), 1, "in\n{text}\nfound {found:#?}");
    let message = found[0].to_string();
    assert_eq!(found[0].line, line, "in\n{text}\nsaid {message}");
    assert!(!found[0].remedy.is_empty());
    for word in words {
        assert!(message.contains(word), "in\n{text}\nsaid {message}\nnot {word}");
    }
}

/// Each case is a whole file with exactly one mistake.
fn assert_alone(cases: &[Case]) {
    for (text, line, words) in cases {
        assert_only(text, *line, words);
    }
}

/// Each case is the end of a file that begins with [`BASE`]; lines count from there.
fn assert_after_base(cases: &[Case]) {
    for (text, line, words) in cases {
        assert_only(&format!("{BASE}{text}"), BASE_LINES + line, words);
    }
}

#[test]
fn the_base_of_the_tests_is_right() {
    assert_eq!(BASE.lines().count(), BASE_LINES);
    assert_eq!(mistakes(BASE), Vec::new());
}
