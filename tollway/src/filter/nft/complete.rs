//! What nft 1.0.6 leaves out of its JSON, from the listing in its text.
//!
//! Its JSON does not name the devices of chains, and has something else in the place of a table's flags.

use std::collections::HashMap;

use serde_json::{Value, json};

use super::json::text;

/// The JSON of a listing (`nft -j list ruleset`) with devices and flags as the same listing in nft's text
/// (`nft list ruleset`) says them. JSON that cannot be read stays as it is.
#[must_use]
pub fn complete(listing: &str, words: &str) -> String {
    let Ok(mut value) = serde_json::from_str::<Value>(listing) else {
        return listing.to_owned();
    };
    let said = said(words);
    let objects = value.get_mut("nftables").and_then(Value::as_array_mut);
    for object in objects.into_iter().flatten() {
        for (kind, member, place) in [
            ("table", "flags", &["family", "name"][..]),
            ("chain", "dev", &["family", "table", "name"]),
        ] {
            let Some(inner) = object.get_mut(kind).filter(|inner| inner.is_object()) else {
                continue;
            };
            let place: Vec<_> = place.iter().map(|name| text(inner, name)).collect();
            match said.get(&place.join(" ")) {
                Some(names) => inner[member] = json!(names),
                None if kind == "table" => inner[member] = json!([]),
                None => {}
            }
        }
    }
    value.to_string()
}

/// For each table its flags, for each chain its devices; both by their names.
fn said(words: &str) -> HashMap<String, Vec<String>> {
    let mut said = HashMap::new();
    let (mut table, mut chain) = (String::new(), String::new());
    for line in words.lines() {
        let depth = line.chars().take_while(|c| *c == '\t').count();
        let line = line.trim();
        let name = |kind: &str| line.strip_prefix(kind)?.strip_suffix(" {");
        match depth {
            0 => {
                if let Some(name) = name("table ") {
                    name.clone_into(&mut table);
                }
            }
            1 => {
                chain.clear();
                if let Some(name) = name("chain ") {
                    chain = format!("{table} {name}");
                } else if let Some(flags) = line.strip_prefix("flags ") {
                    said.insert(table.clone(), names(flags));
                }
            }
            _ if !chain.is_empty() && line.starts_with("type ") => {
                if let Some(devices) = devices(line) {
                    said.insert(chain.clone(), devices);
                }
            }
            _ => {}
        }
    }
    said
}

/// `type filter hook ingress device "a" priority 0; ...` or `... devices = { a, b } priority 0; ...`.
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
