//! Corrects nft's listing with the kernel's own lists: flags of tables and sets, where chains are
//! attached, and the rules in their order.

use std::collections::{HashMap, HashSet};

use serde_json::{Value, json};

use super::expression::Expression;
use super::{Chain, Kernel, Rule, conntrack, match_set, multiport, version};
use crate::elements::element;
use crate::tracking::KEEPS_TIMEOUTS;
use tollway_firewall::nft::MEANING;
use tollway_firewall::nft::json::{number, only, text};

/// The placeholder for a rule that nft does not list.
const UNLISTED: &str = "unlisted";

/// Expressions that need connection tracking or reassembly of fragments, by their names in the kernel and in
/// nft's JSON.
const TRACKING_EXPRESSIONS: [(&str, &str); 9] = [
    ("ct", "ct"),
    ("connlimit", "ct count"),
    ("nat", "dnat"),
    ("masq", "masquerade"),
    ("redir", "redirect"),
    ("flow_offload", "flow"),
    ("synproxy", "synproxy"),
    ("tproxy", "tproxy"),
    ("socket", "socket"),
];

impl Kernel {
    /// Corrects a listing.
    pub(in super::super) fn complete(&self, value: &mut Value) {
        complete(value, self);
    }

    /// Adds the sets of ipset to the listing of a rule's table, as sets whose elements come and go.
    pub(in super::super) fn add_ipsets(&self, value: &mut Value) {
        let Some(objects) = value.get_mut("nftables").and_then(Value::as_array_mut) else { return };
        let mut added = HashSet::new();
        for rule in &self.rules {
            for lookup in rule.expressions.iter().filter_map(match_set::SetLookup::of) {
                let found = self.ipset(lookup.index, version(rule.family));
                if let Ok((set, contents)) = found
                    && added.insert((lookup.index, rule.family, &rule.table))
                {
                    let elements = contents.elements.iter();
                    let elements = elements.map(|range| element(*range, contents.version));
                    objects.push(json!({ "set": {
                        "family": rule.family,
                        "table": rule.table,
                        "name": set.name_in_rules(),
                        "type": format!("ipv{}_addr", contents.version),
                        "flags": ["interval", "dynamic"],
                        "elem": elements.collect::<Vec<_>>(),
                    } }));
                }
            }
        }
    }
}

fn complete(value: &mut Value, kernel: &Kernel) {
    let Some(objects) = value.get_mut("nftables").and_then(Value::as_array_mut) else { return };
    let (mut rules, mut others) = (HashMap::new(), Vec::new());
    for mut object in std::mem::take(objects) {
        match object.get_mut("rule").map(Value::take) {
            Some(rule) => {
                rules.insert((table_of(&rule), number(&rule, "handle").unwrap_or(0)), rule);
            }
            None => others.push(object),
        }
    }
    tables(&mut others, kernel);
    chains(&mut others, kernel);
    sets(&mut others, kernel);
    for rule in kernel.rules.iter().filter(|rule| rule.family != "arp") {
        let listed = rules.remove(&(format!("{} {}", rule.family, rule.table), rule.handle));
        others.push(json!({ "rule": self::rule(rule, listed, kernel) }));
    }
    // Verification finds rules that the kernel does not have.
    others.extend(rules.into_values().map(|rule| json!({ "rule": rule })));
    *objects = others;
}

fn table_of(object: &Value) -> String {
    format!("{} {}", text(object, "family"), text(object, "table"))
}

fn tables(objects: &mut Vec<Value>, kernel: &Kernel) {
    const FLAGS: [(u32, &str); 3] = [(1, "dormant"), (2, "owner"), (4, "persist")];
    for (family, name, flags) in &kernel.tables {
        let words = words(*flags, &FLAGS);
        let found = objects.iter_mut().filter_map(|object| object.get_mut("table"));
        let mut found =
            found.filter(|one| text(one, "family") == *family && text(one, "name") == name);
        match found.next() {
            Some(table) => table["flags"] = words,
            None => {
                objects.push(json!({ "table": { "family": family, "name": name, "flags": words } }))
            }
        }
    }
}

/// Flags in nft's JSON format; an unknown flag becomes an unknown word.
fn words(flags: u32, names: &[(u32, &str)]) -> Value {
    let mut words: Vec<_> =
        names.iter().filter(|(bit, _)| flags & bit != 0).map(|(_, name)| *name).collect();
    if names.iter().fold(flags, |left, (bit, _)| left & !bit) != 0 {
        words.push("unknown");
    }
    json!(words)
}

fn chains(objects: &mut Vec<Value>, kernel: &Kernel) {
    let mut listed = HashMap::new();
    for (at, object) in objects.iter().enumerate() {
        if let Some(("chain", chain)) = only(object) {
            listed.insert((table_of(chain), text(chain, "name").to_owned()), at);
        }
    }
    for chain in kernel.chains.iter().filter(|chain| chain.family != "arp") {
        let right = json!({ "chain": self::chain(chain) });
        match listed.get(&(format!("{} {}", chain.family, chain.table), chain.name.clone())) {
            Some(at) => objects[*at] = right,
            None => objects.push(right),
        }
    }
}

fn chain(chain: &Chain) -> Value {
    let mut value = json!({
        "family": chain.family,
        "table": chain.table,
        "name": chain.name,
        "handle": chain.handle,
    });
    let Some(hook) = &chain.hook else { return value };
    let name = match (chain.family, hook.number) {
        ("netdev", 0) | ("inet", 5) => "ingress",
        ("netdev", 1) => "egress",
        ("netdev", _) => "",
        (_, 0) => "prerouting",
        (_, 1) => "input",
        (_, 2) => "forward",
        (_, 3) => "output",
        (_, 4) => "postrouting",
        _ => "",
    };
    value["hook"] = json!(name);
    value["type"] = json!(hook.kind);
    value["prio"] = json!(hook.priority);
    value["policy"] = json!(if hook.accepts { "accept" } else { "drop" });
    if !hook.devices.is_empty() {
        value["dev"] = json!(hook.devices);
    }
    value
}

fn sets(objects: &mut [Value], kernel: &Kernel) {
    const FLAGS: [(u32, &str); 4] =
        [(2, "constant"), (4, "interval"), (0x10, "timeout"), (0x20, "dynamic")];
    for object in objects {
        for kind in ["set", "map"] {
            let Some(set) = object.get_mut(kind).filter(|set| set.is_object()) else { continue };
            let table = kernel.sets.get(&table_of(set));
            if let Some(found) = table.and_then(|table| table.get(text(set, "name"))) {
                let known = FLAGS.iter().fold(0, |all, (bit, _)| all | bit);
                set["flags"] = words(found.flags & known, &FLAGS);
            }
        }
    }
}

/// A rule as listed, with what else is known of it.
fn rule(rule: &Rule, listed: Option<Value>, kernel: &Kernel) -> Value {
    let own = &rule.expressions[..];
    let mut value = match listed {
        Some(listed)
            if tracking_expression(own).is_none_or(|(_, word)| mentions(&listed, word)) =>
        {
            listed
        }
        _ => unlisted(rule, own),
    };
    // The kernel's chain counts.
    value["chain"] = json!(rule.chain);
    modules(&mut value, rule, kernel);
    value
}

fn unlisted(rule: &Rule, own: &[Expression]) -> Value {
    let mut inner = json!({});
    if let Some((_, word)) = tracking_expression(own) {
        inner[word] = Value::Null;
    }
    for expression in own {
        match expression {
            Expression::Verdict { chain: Some(chain), .. } => {
                inner["jump"] = json!({ "target": chain });
            }
            Expression::Match { name, .. } => {
                inner["xt"] = json!({ "type": "match", "name": name })
            }
            _ => {}
        }
    }
    json!({
        "family": rule.family,
        "table": rule.table,
        "handle": rule.handle,
        "expr": [{ UNLISTED: inner }],
    })
}

/// The first of [`TRACKING_EXPRESSIONS`] among the expressions.
fn tracking_expression(own: &[Expression]) -> Option<&'static (&'static str, &'static str)> {
    let is = |name: &str| {
        own.iter().any(|one| match one {
            Expression::Other(other) => other == name,
            Expression::Connection { .. } | Expression::ConnectionSet { .. } => name == "ct",
            Expression::Nat(nat) => name == nat.kind.name(),
            _ => false,
        })
    };
    TRACKING_EXPRESSIONS.iter().find(|(name, _)| is(name))
}

/// Says whether a listed rule mentions a word of [`TRACKING_EXPRESSIONS`].
fn mentions(value: &Value, word: &str) -> bool {
    match value {
        Value::Array(values) => values.iter().any(|value| mentions(value, word)),
        Value::Object(members) => members.iter().any(|(name, inner)| {
            let is_translation =
                |name: &str| matches!(name, "snat" | "dnat" | "masquerade" | "redirect");
            name == word
                || name.starts_with("ct ") && word.starts_with("ct")
                || is_translation(name) && is_translation(word)
                || mentions(inner, word)
        }),
        _ => false,
    }
}

/// Says of modules of iptables that are known here what they mean.
fn modules(value: &mut Value, rule: &Rule, kernel: &Kernel) {
    let Some(statements) = value.get_mut("expr").and_then(Value::as_array_mut) else { return };
    matches(statements, rule, kernel);
    targets(statements, rule);
}

/// Adds to a target of iptables that concerns connections what it does, and to one that prepares them that it keeps their
/// timeouts. A rule has at most one target.
fn targets(statements: &mut [Value], rule: &Rule) {
    let own = rule.expressions.iter().find_map(|one| match one {
        Expression::Target { name, revision, info } => Some((name, *revision, info)),
        _ => None,
    });
    let Some((name, revision, info)) = own else { return };
    let modules = statements.iter_mut().filter_map(|statement| statement.get_mut("xt"));
    let mut targets = modules.filter(|module| text(module, "type") == "target");
    let Some(target) = targets.next().filter(|target| text(target, "name") == name) else { return };
    if let Some(update) = conntrack::target(name, revision, info) {
        target[MEANING] = conntrack::listed_update(&update);
    } else if conntrack::is_notrack(name, revision, info) {
        target[MEANING] = json!({ "notrack": null });
    }
    if conntrack::keeps_timeouts(name, revision, info) {
        target[KEEPS_TIMEOUTS] = json!(true);
    }
}

/// Replaces matches of iptables by conditions. Those that test connections stay, with their conditions.
fn matches(statements: &mut Vec<Value>, rule: &Rule, kernel: &Kernel) {
    let own = &rule.expressions[..];
    let is_module = |statement: &Value| {
        statement.get("xt").is_some_and(|module| text(module, "type") == "match")
    };
    let of_kernel: Vec<_> = own
        .iter()
        .filter_map(|one| match one {
            Expression::Match { name, revision, info } => Some((name, *revision, info)),
            _ => None,
        })
        .collect();
    if statements.iter().filter(|one| is_module(one)).count() != of_kernel.len() {
        return;
    }
    let mut of_kernel = of_kernel.into_iter();
    for statement in statements.iter_mut().filter(|one| is_module(one)) {
        let Some((name, revision, info)) = of_kernel.next() else { return };
        if text(&statement["xt"], "name") != name {
            return;
        }
        if name == "comment" {
            *statement = Value::Null;
        } else if let Some(ports) = multiport::read(name, revision, info) {
            *statement = condition(&ports);
        } else if let Some(any) = conntrack::read((name, revision), info, version(rule.family)) {
            statement["xt"][MEANING] = conntrack::listed(&any);
        } else if let Some(lookup) = match_set::read(name, revision, info) {
            match kernel.ipset(lookup.index, version(rule.family)) {
                Ok((set, _)) => {
                    *statement = json!({ "match": {
                        "op": if lookup.negate { "!=" } else { "==" },
                        "left": { "payload": { "protocol": rule.family, "field": lookup.field() } },
                        "right": format!("@{}", set.name_in_rules()),
                    } });
                }
                Err(why) => statement["xt"]["why"] = json!(why),
            }
        }
    }
    statements.retain(|statement| !statement.is_null());
}

fn condition(ports: &multiport::Ports) -> Value {
    let element = |(first, last): &(u16, u16)| match first == last {
        true => json!(first),
        false => json!({ "range": [first, last] }),
    };
    let set: Vec<_> = ports.ranges.iter().map(element).collect();
    json!({ "match": {
        "op": if ports.negate { "!=" } else { "==" },
        "left": { "payload": { "protocol": "th", "field": ports.field() } },
        "right": { "set": set },
    } })
}
