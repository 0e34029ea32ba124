//! Turns nft's listing into the rules that the compiler takes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use serde_json::{Value, json};

use super::elements::SetUse;
use super::kernel::{Kernel, Scope, verify};
use super::{Reading, guard, kernel_steps, tracking};
use tollway_firewall::ir::{Base, Hook, IrError, Match, Ruleset, Step, Test};
use tollway_firewall::mistake::quoted;
use tollway_firewall::nft::json::{only, several, text};
use tollway_firewall::nft::{self, Forms};

/// Where rules are from, in messages.
const SOURCE: &str = "the kernel";

/// A parsed listing.
pub(super) struct ParsedListing {
    pub(super) reading: Reading,
    /// Names of the sets of intervals.
    pub(super) intervals: HashSet<String>,
}

/// Why a listing gives no rules.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ListingError {
    /// It is not JSON.
    #[error("the listing of nft is not JSON: {}", quoted(&.0.to_string()))]
    NotJson(serde_json::Error),
    /// It is no ruleset; the sentence is about the first mistake.
    #[error("the listing of nft cannot be read: {0}")]
    NoRuleset(String),
    /// Its rules refer to something that it does not contain.
    #[error("the rules contradict themselves: {0}")]
    Contradiction(IrError),
}

/// Parses nft's JSON listing.
///
/// # Errors
/// It is not JSON.
pub(super) fn parse(json: &str) -> Result<Value, ListingError> {
    serde_json::from_str(json).map_err(ListingError::NotJson)
}

/// Reads the listing of a generation and, if the kernel's own lists are known, verifies it against them.
/// `moving` are sets of which only elements have changed.
///
/// # Errors
/// The listing is no ruleset, or contradicts itself.
pub(super) fn read(
    mut value: Value,
    generation: u32,
    moving: &HashSet<String>,
    kernel: Option<&Kernel>,
) -> Result<ParsedListing, ListingError> {
    without_counts(&mut value);
    let knows_numbers = knows_numbers(&value);
    let sets = Sets::read(&value);
    let needs = tracking::needs(&value);
    let Forms { packets, connections } = nft::read_forms(&value, SOURCE).map_err(|faults| {
        let first = faults.into_iter().next().map(|fault| fault.what);
        ListingError::NoRuleset(first.unwrap_or_default())
    })?;
    drop(value);
    let finish = |mut rules: Ruleset, scope: Scope| {
        if let Some(kernel) = kernel {
            verify(&mut rules, kernel, scope);
        }
        for set in rules.sets.iter_mut().filter(|set| moving.contains(&set.name)) {
            set.dynamic = true;
        }
        kernel_steps::truncate(&mut rules, &sets.expiring);
        guard::guard(&mut rules);
        rules.check().map_err(ListingError::Contradiction)?;
        Ok(Arc::new(rules))
    };
    let rules = finish(packets, Scope::Packets)?;
    let connections = match connections {
        Some(connections) => finish(connections, Scope::Connections)?,
        None => Arc::clone(&rules),
    };
    let reading =
        Reading { rules, connections, needs, generation, knows_numbers, watches_ipsets: false };
    Ok(ParsedListing { reading, intervals: sets.intervals })
}

/// No rules at all.
pub(super) fn empty(generation: u32) -> ParsedListing {
    let rules = Arc::new(Ruleset::default());
    let needs = super::Needs::default();
    let connections = Arc::clone(&rules);
    let reading = Reading {
        rules,
        connections,
        needs,
        generation,
        knows_numbers: false,
        watches_ipsets: false,
    };
    ParsedListing { reading, intervals: HashSet::new() }
}

/// Says whether a value contains a device number (`NFT_META_IIF`, `NFT_META_OIF`) or a hook of devices.
pub(super) fn knows_numbers(value: &Value) -> bool {
    match value {
        Value::Array(all) => all.iter().any(knows_numbers),
        Value::Object(object) => {
            let has = |name: &str, words: &[&str]| {
                object.get(name).and_then(Value::as_str).is_some_and(|word| words.contains(&word))
            };
            has("key", &["iif", "oif"])
                || has("hook", &["ingress", "egress"])
                || object.values().any(knows_numbers)
        }
        _ => false,
    }
}

/// Removes the counters' values: the kernel counts what it has forwarded itself, so Tollway does not continue
/// from them. Without them an unchanged ruleset compares equal.
fn without_counts(value: &mut Value) {
    let objects = value.get_mut("nftables").and_then(Value::as_array_mut);
    for object in objects.into_iter().flatten() {
        if let Some(counter) = object.get_mut("counter") {
            counter["packets"] = json!(0);
            counter["bytes"] = json!(0);
        }
        let steps = object.pointer_mut("/rule/expr").and_then(Value::as_array_mut);
        for step in steps.into_iter().flatten() {
            if let Some(counter) =
                step.get_mut("counter").filter(|one| one.get("packets").is_some())
            {
                *counter = Value::Null;
            }
        }
    }
}

/// Properties of sets beside their elements; names follow their table's.
#[derive(Default)]
struct Sets {
    /// Sets whose elements expire.
    expiring: HashSet<String>,
    intervals: HashSet<String>,
}

impl Sets {
    fn read(value: &Value) -> Self {
        let mut sets = Self::default();
        let objects = value.get("nftables").and_then(Value::as_array);
        for (kind, set) in objects.into_iter().flatten().filter_map(only) {
            if !matches!(kind, "set" | "map" | "meter") {
                continue;
            }
            let name =
                || format!("{} {} {}", text(set, "family"), text(set, "table"), text(set, "name"));
            let flags = set.get("flags").map(several).unwrap_or_default();
            let has = |wanted: &str| flags.iter().any(|flag| flag.as_str() == Some(wanted));
            if has("interval") {
                sets.intervals.insert(name());
            }
            let elements = set.get("elem").map(several).unwrap_or_default();
            if set.get("timeout").is_some() || has("timeout") && elements.iter().any(expires) {
                sets.expiring.insert(name());
            }
        }
        sets
    }
}

/// Says whether an element of a set, or of a map with its datum, expires.
fn expires(element: &Value) -> bool {
    let key = match element {
        Value::Array(pair) => pair.first(),
        key => Some(key),
    };
    let inner = key.and_then(|key| key.get("elem"));
    inner.is_some_and(|inner| inner.get("timeout").is_some() || inner.get("expires").is_some())
}

/// The names of chains that forwarded packets reach. Chains behind a rule for the kernel path do not count:
/// packets that reach them take the kernel path already.
pub(super) fn reached_chains(rules: &Ruleset) -> HashSet<String> {
    let is_forwarding = |base: &Base| !matches!(base.hook, Hook::Input | Hook::Output);
    let bases = rules.chains.iter().enumerate();
    let mut open: Vec<_> = bases
        .filter(|(_, chain)| chain.base.as_ref().is_some_and(is_forwarding))
        .map(|(at, _)| at)
        .collect();
    let mut reached = HashSet::new();
    while let Some(at) = open.pop() {
        let Some(chain) = rules.chains.get(at) else { continue };
        if reached.insert(at) {
            open.extend(rules.exits(chain).into_iter().map(|(next, _)| next.0));
        }
    }
    reached
        .into_iter()
        .filter_map(|at| rules.chains.get(at))
        .map(|chain| chain.name.clone())
        .collect()
}

/// The names of the sets that rules of these chains look up.
pub(super) fn lookups(rules: &Ruleset, chains: &HashSet<String>) -> HashSet<String> {
    let chains = rules.chains.iter().filter(|chain| chains.contains(&chain.name));
    let steps = chains.flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
    let in_set = |one: &Match| match one.test {
        Test::Set(set) => Some(set),
        _ => None,
    };
    let sets = steps.flat_map(|step| match step {
        Step::Match(one) => in_set(one).into_iter().collect(),
        Step::Any(any) => any.iter().flatten().filter_map(in_set).collect(),
        Step::Map { map, .. } | Step::VerdictMap { map, .. } => vec![*map],
        _ => Vec::new(),
    });
    sets.filter_map(|set| rules.sets.get(set.0)).map(|set| set.name.clone()).collect()
}

/// Every named set that rules look up; changes of others do not matter.
pub(super) fn uses(read: &ParsedListing) -> HashMap<String, SetUse> {
    let rules = &read.reading.rules;
    let mut uses = HashMap::new();
    for (set, version) in rules.sets.iter().zip(tollway_firewall::program::live_versions(rules)) {
        if set.name.is_empty() {
            continue;
        }
        let is_interval = read.intervals.contains(&set.name);
        let here = version.map_or(SetUse::Fixed, |version| SetUse::Live { version, is_interval });
        // A set looked up in several ways exists several times, and a change would reach only one.
        uses.entry(set.name.clone()).and_modify(|one| *one = SetUse::Fixed).or_insert(here);
    }
    uses
}
