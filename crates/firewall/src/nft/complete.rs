//! Adds what nft 1.0.6 omits from its JSON, taken from its text listing.
//!
//! Its JSON names neither the devices of chains nor the flag `dynamic` of sets, and contains something else
//! in place of a table's flags.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::json::text;

/// Returns the JSON of a listing (`nft -j list ruleset`) with devices and flags from the same listing in
/// nft's text (`nft list ruleset`). JSON that cannot be parsed is returned unchanged.
#[must_use]
pub fn complete(listing: &str, words: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(listing) else {
        return listing.to_owned();
    };
    complete_value(&mut value, words);
    value.to_string()
}

fn complete_value(value: &mut Value, words: &str) {
    let written = written(words);
    let objects = value.get_mut("nftables").and_then(Value::as_array_mut);
    for object in objects.into_iter().flatten() {
        for (kind, member, place) in [
            ("table", "flags", &["family", "name"][..]),
            ("chain", "dev", &["family", "table", "name"]),
            ("set", "flags", &["family", "table", "name"]),
            ("map", "flags", &["family", "table", "name"]),
        ] {
            let Some(inner) = object.get_mut(kind).filter(|inner| inner.is_object()) else {
                continue;
            };
            let place: Vec<_> = place.iter().map(|name| text(inner, name)).collect();
            match written.get(&format!("{kind} {}", place.join(" "))) {
                Some(names) => inner[member] = json!(names),
                None if kind == "table" => inner[member] = json!([]),
                None => {}
            }
        }
    }
}

/// The flags of each table, set and map and the devices of each chain, by kind and name.
fn written(words: &str) -> HashMap<String, Vec<String>> {
    let mut written = HashMap::new();
    let (mut table, mut object) = (String::new(), None);
    for line in lines(words) {
        let depth = line.chars().take_while(|c| *c == '\t').count();
        let line = line.trim();
        let flags = line.strip_prefix("flags ").map(names);
        match (depth, &object, flags) {
            (0, ..) => {
                if let Some(name) = name_of(line, "table") {
                    name.clone_into(&mut table);
                }
            }
            (1, _, Some(flags)) => {
                written.insert(format!("table {table}"), flags);
            }
            (1, ..) => {
                let kinds = ["chain", "set", "map"].into_iter();
                let mut found = kinds.filter_map(|kind| Some((kind, name_of(line, kind)?)));
                object = found.next().map(|(kind, name)| (kind, format!("{kind} {table} {name}")));
            }
            (_, Some(("chain", place)), None) if line.starts_with("type ") => {
                if let Some(devices) = devices(line) {
                    written.insert(place.clone(), devices);
                }
            }
            (_, Some(("set" | "map", place)), Some(flags)) => {
                written.insert(place.clone(), flags);
            }
            _ => {}
        }
    }
    written
}

/// The lines of a listing. A line break between quotes does not end a line.
fn lines(words: &str) -> impl Iterator<Item = &str> {
    let mut is_quoted = false;
    words.split(move |c| {
        is_quoted ^= c == '"';
        c == '\n' && !is_quoted
    })
}

/// The name in the first line of an object: `chain NAME {`.
fn name_of<'a>(line: &'a str, kind: &str) -> Option<&'a str> {
    line.strip_prefix(kind)?.strip_prefix(' ')?.strip_suffix(" {")
}

/// Parses `type filter hook ingress device "a" priority 0; ...` or `... devices = { a, b } priority 0; ...`.
fn devices(line: &str) -> Option<Vec<String>> {
    let (head, _) = line.split_once(" priority ")?;
    let list = head.split_once(" devices = ").or_else(|| head.split_once(" device "));
    list.map(|(_, list)| names(list))
}

fn names(list: &str) -> Vec<String> {
    let names = list.split(|c: char| c.is_whitespace() || matches!(c, ',' | '{' | '}'));
    let names = names.map(|name| name.trim_matches('"')).filter(|name| !name.is_empty());
    names.map(str::to_owned).collect()
}
