//! Expressions and values in nft's syntax.

use serde_json::Value;

use crate::nft::json::{inner, number, only, pair, several, text};

/// Text in nft's quotes. nft knows no escapes, so quotes inside are dropped.
pub(super) fn quoted(text: &str) -> String {
    let plain = text.chars().filter(|c| *c != '"');
    format!("\"{}\"", plain.map(|c| if c.is_control() { ' ' } else { c }).collect::<String>())
}

/// An expression that a rule tests.
pub(super) fn expression(value: &Value) -> String {
    let Some((name, inner)) = only(value) else { return plain(value) };
    let key = text(inner, "key");
    match name {
        "meta" => meta(key),
        "payload" if inner.get("base").is_some() => {
            let part = |name| number(inner, name).unwrap_or(0);
            format!("@{},{},{}", text(inner, "base"), part("offset"), part("len"))
        }
        "payload" => format!("{} {}", text(inner, "protocol"), text(inner, "field")),
        "concat" => joined(inner, " . ", expression),
        "ct" => words(["ct", text(inner, "dir"), text(inner, "family"), key]),
        "rt" => words(["rt", text(inner, "family"), key]),
        "socket" | "osf" => words([name, key]),
        "ipsec" => ipsec(inner),
        "exthdr" | "ip option" | "sctp chunk" | "tcp option" => header(name, inner),
        "fib" => {
            let flags = inner.get("flags").map(|flags| joined(flags, " . ", plain));
            words(["fib", &flags.unwrap_or_default(), text(inner, "result")])
        }
        "numgen" => {
            let mode = text(inner, "mode");
            format!("numgen {mode} mod {}{}", part(inner, "mod"), option(inner, "offset"))
        }
        "jhash" | "symhash" => {
            let of = inner.get("expr").map(expression).unwrap_or_default();
            let modulo = format!("mod {}", part(inner, "mod"));
            let (seed, offset) = (option(inner, "seed"), option(inner, "offset"));
            words([name, &of, &modulo, seed.trim(), offset.trim()])
        }
        "map" | "vmap" => lookup(name, inner),
        "|" | "&" | "^" | "<<" | ">>" => operation(name, inner),
        _ => literal(value, Words::Bare),
    }
}

/// A lookup in a map.
pub(super) fn lookup(name: &str, lookup: &Value) -> String {
    let none = Value::Null;
    let key = lookup.get("key").unwrap_or(&none);
    let data = lookup.get("data").unwrap_or(&none);
    let data = match inner(data, "set") {
        Some(elements) => {
            let elements: Vec<_> =
                several(elements).iter().map(|element| mapping(key, element)).collect();
            format!("{{ {} }}", elements.join(", "))
        }
        None => literal(data, Words::Bare),
    };
    format!("{} {name} {data}", expression(key))
}

/// An element of a map in which an expression is looked up.
fn mapping(key: &Value, element: &Value) -> String {
    let Some((value, datum)) = pair(element) else { return compared(key, element) };
    let value = inner(value, "elem").and_then(|outer| outer.get("val")).unwrap_or(value);
    format!("{} : {}", compared(key, value), literal(datum, Words::Bare))
}

fn meta(key: &str) -> String {
    match key {
        "iif" | "oif" | "iifname" | "oifname" | "iifgroup" | "oifgroup" => key.to_owned(),
        _ => format!("meta {key}"),
    }
}

fn ipsec(inner: &Value) -> String {
    let number = format!("spnum {}", part(inner, "spnum"));
    words(["ipsec", text(inner, "dir"), &number, text(inner, "family"), text(inner, "key")])
}

fn header(kind: &str, inner: &Value) -> String {
    let (name, field) = (text(inner, "name"), text(inner, "field"));
    match (kind, field) {
        ("exthdr", "") => format!("exthdr {name}"),
        ("exthdr", _) => format!("{name} {field}"),
        ("tcp option", _) if inner.get("base").is_some() => {
            let part = |name| part(inner, name);
            format!("tcp option @{},{},{}", part("base"), part("offset"), part("len"))
        }
        _ => words([kind, name, field]),
    }
}

fn operation(operator: &str, operands: &Value) -> String {
    let operand = |value: &Value| match only(value) {
        Some(("|" | "&" | "^" | "<<" | ">>", _)) => format!("({})", expression(value)),
        _ if value.is_array() => format!("({})", joined(value, " | ", plain)),
        _ => expression(value),
    };
    joined(operands, &format!(" {operator} "), operand)
}

/// How strings are written.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Words {
    Bare,
    /// In quotes: names of interfaces.
    Quoted,
}

/// How the values of an expression are written.
pub(super) fn style(expression: &Value) -> Words {
    let Some((name, inner)) = only(expression) else { return Words::Bare };
    let key = text(inner, "key");
    let names = [
        "iif",
        "oif",
        "iifname",
        "oifname",
        "iifgroup",
        "oifgroup",
        "ibrname",
        "obrname",
        "sdif",
        "sdifname",
        "rtclassid",
        "classid",
        "hour",
        "day",
        "helper",
    ];
    match name {
        "meta" | "ct" | "rt" if names.contains(&key) => Words::Quoted,
        "fib" if text(inner, "result").starts_with("oif") => Words::Quoted,
        "osf" => Words::Quoted,
        _ => Words::Bare,
    }
}

/// The right side of a comparison with an expression.
pub(super) fn compared(left: &Value, right: &Value) -> String {
    match (right, inner(left, "concat")) {
        (Value::Bool(is), _) => if *is { "exists" } else { "missing" }.to_owned(),
        (_, Some(parts)) => concatenated(several(parts), right),
        _ => literal(right, style(left)),
    }
}

/// A value of a concatenation, each part in its own style.
fn concatenated(parts: &[Value], value: &Value) -> String {
    if let Some(elements) = inner(value, "set") {
        let elements: Vec<_> =
            several(elements).iter().map(|element| concatenated(parts, element)).collect();
        return format!("{{ {} }}", elements.join(", "));
    }
    let Some(values) = inner(value, "concat") else { return literal(value, Words::Bare) };
    let parts = several(values).iter().zip(parts);
    let parts: Vec<_> = parts.map(|(value, part)| literal(value, style(part))).collect();
    parts.join(" . ")
}

/// A constant, a set, or a reference to one.
pub(super) fn literal(value: &Value, style: Words) -> String {
    let word = |value: &Value| literal(value, style);
    let Some((name, inner)) = only(value) else {
        return match value {
            Value::String(text) if text.starts_with('@') || text == "*" => text.clone(),
            Value::String(text) if style == Words::Quoted => quoted(text),
            Value::Array(_) => joined(value, ",", word),
            _ => plain(value),
        };
    };
    match name {
        "range" => joined(inner, "-", word),
        "prefix" => {
            let address = inner.get("addr").map(word).unwrap_or_default();
            format!("{address}/{}", part(inner, "len"))
        }
        "concat" => joined(inner, " . ", word),
        "set" => {
            format!("{{ {} }}", joined(inner, ", ", word))
        }
        "elem" => inner.get("val").map(word).unwrap_or_default(),
        "accept" | "drop" | "continue" | "return" | "jump" | "goto" | "queue" => {
            verdict(name, inner)
        }
        "|" | "&" | "^" | "<<" | ">>" => operation(name, inner),
        "meta" | "payload" | "ct" | "rt" | "map" | "numgen" | "jhash" | "symhash" | "fib"
        | "exthdr" | "tcp option" | "ip option" | "socket" => expression(value),
        _ => plain(value),
    }
}

/// A verdict: a statement, or a map's datum.
pub(super) fn verdict(name: &str, inner: &Value) -> String {
    match name {
        "jump" | "goto" => format!("{name} {}", text(inner, "target")),
        "queue" => queue(inner),
        _ => name.to_owned(),
    }
}

fn queue(inner: &Value) -> String {
    let flags = inner.get("flags").map(|flags| format!("flags {}", joined(flags, ",", plain)));
    let number = inner.get("num").map(|number| format!("to {}", literal(number, Words::Bare)));
    words(["queue", &flags.unwrap_or_default(), &number.unwrap_or_default()])
}

/// A value written as it is.
pub(super) fn plain(value: &Value) -> String {
    match value {
        Value::String(text) if text.chars().any(|c| c.is_whitespace() || c == '"') => quoted(text),
        Value::String(text) => text.clone(),
        _ => value.to_string(),
    }
}

/// Each of several values, with a separator between them.
pub(super) fn joined(values: &Value, between: &str, each: impl Fn(&Value) -> String) -> String {
    several(values).iter().map(each).collect::<Vec<_>>().join(between)
}

/// Words separated by spaces, without empty ones.
pub(super) fn words<const N: usize>(words: [&str; N]) -> String {
    let words: Vec<_> = words.into_iter().filter(|word| !word.is_empty()).collect();
    words.join(" ")
}

/// A number, 0 if it is missing.
fn part(inner: &Value, name: &str) -> u64 {
    number(inner, name).unwrap_or(0)
}

/// A number preceded by its name, unless it is 0.
fn option(inner: &Value, name: &str) -> String {
    match part(inner, name) {
        0 => String::new(),
        number => format!(" {name} {number}"),
    }
}
