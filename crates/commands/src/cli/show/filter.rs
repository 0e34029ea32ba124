//! `show filter`.

use std::fmt::Write as _;

use super::super::text::{arranged, cut, one_line, table, thousands};
use crate::control::{Filter, FilterChain, FilterRule};

/// Formats the firewall as text, chain by chain; cuts lines to the width.
pub(super) fn filter(answer: &Filter, width: Option<usize>) -> String {
    if !answer.on {
        return "no rules: every packet goes on\n".to_owned();
    }
    let rules = || answer.chains.iter().flat_map(|chain| &chain.rules);
    let widest =
        |of: fn(&FilterRule) -> String| rules().map(|rule| of(rule).len()).max().unwrap_or(0);
    let widths = [widest(packets).max(7), widest(bytes).max(5), widest(place)];
    let mut out = String::new();
    for chain in &answer.chains {
        let _ = writeln!(out, "{}", cut(&head(chain), width));
        for rule in &chain.rules {
            let [p, b, at] = widths;
            let line = format!(
                "  {:>p$}  {:>b$}  {:<at$}  {}",
                packets(rule),
                bytes(rule),
                place(rule),
                one_line(&rule.text)
            );
            let _ = writeln!(out, "{}", cut(&line, width));
        }
        out.push('\n');
    }
    if !answer.counters.is_empty() {
        let mut counters = table(&["counter", "packets", "bytes"]);
        for counter in &answer.counters {
            let numbers = [thousands(counter.packets), thousands(counter.bytes)];
            counters.add_row(std::iter::once(counter.name.clone()).chain(numbers));
        }
        let _ = writeln!(out, "{}", arranged(counters, "lrr", None));
    }
    if !answer.sets.is_empty() {
        let mut sets = table(&["set", "elements"]);
        for set in &answer.sets {
            sets.add_row([set.name.clone(), thousands(set.elements as u64)]);
        }
        let _ = writeln!(out, "{}", arranged(sets, "lr", None));
    }
    out.truncate(out.trim_end().len());
    out.push('\n');
    out
}

/// The heading of a chain: its name, hook, devices, priority and policy.
fn head(chain: &FilterChain) -> String {
    let mut head = format!("chain {}", chain.name);
    // Writing to a `String` cannot fail.
    if let Some(hook) = &chain.hook {
        let _ = write!(head, ": hook {hook}");
    }
    if !chain.devices.is_empty() {
        let _ = write!(head, " of {}", chain.devices.join(", "));
    }
    if let Some(priority) = chain.priority {
        let _ = write!(head, ", priority {priority}");
    }
    if let Some(policy) = &chain.policy {
        let _ = write!(head, ", policy {policy}");
    }
    if !chain.rules.is_empty() && chain.rules.iter().all(|rule| rule.verdict == "elsewhere") {
        head += " (not on this router's way)";
    }
    head
}

fn packets(rule: &FilterRule) -> String {
    rule.packets.map_or_else(|| "-".to_owned(), thousands)
}

fn bytes(rule: &FilterRule) -> String {
    rule.bytes.map_or_else(|| "-".to_owned(), thousands)
}

fn place(rule: &FilterRule) -> String {
    match (rule.line, rule.handle) {
        (Some(line), _) => format!("line {line}"),
        (None, Some(handle)) => format!("handle {handle}"),
        (None, None) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{FilterCounter, FilterSet};

    fn rule(line: usize, counted: Option<u64>, text: &str) -> FilterRule {
        FilterRule {
            file: Some("r.nft".to_owned()),
            line: Some(line),
            handle: None,
            text: text.to_owned(),
            verdict: "compiled".to_owned(),
            packets: counted,
            bytes: counted.map(|packets| packets * 100),
        }
    }

    #[test]
    fn rules_stand_below_their_chain_with_their_counts() {
        let answer = Filter {
            on: true,
            chains: vec![FilterChain {
                name: "inet filter forward".to_owned(),
                family: "inet".to_owned(),
                hook: Some("forward".to_owned()),
                devices: vec![],
                priority: Some(0),
                policy: Some("accept".to_owned()),
                rules: vec![
                    rule(3, Some(123_456), "ip saddr 192.0.2.0/24 counter drop"),
                    rule(10, None, "tcp dport { 22, 80, 443, 8080, 8443 } accept comment \"web\""),
                ],
            }],
            counters: vec![FilterCounter { name: "inet filter web".into(), packets: 5, bytes: 9 }],
            sets: vec![FilterSet { name: "inet filter bad".into(), elements: 1000 }],
        };
        assert_eq!(
            filter(&answer, Some(80)),
            "\
chain inet filter forward: hook forward, priority 0, policy accept
  123,456  12,345,600  line 3   ip saddr 192.0.2.0/24 counter drop
        -           -  line 10  tcp dport { 22, 80, 443, 8080, 8443 } accept co\u{2026}

counter          packets  bytes
inet filter web        5      9

set              elements
inet filter bad     1,000
"
        );
        let none = Filter { on: false, chains: vec![], counters: vec![], sets: vec![] };
        assert_eq!(filter(&none, None), "no rules: every packet goes on\n");
    }
}
