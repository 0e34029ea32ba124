//! Statements in nft's syntax.

use serde_json::Value;

use super::phrase::{
    Words, compared, expression, joined, literal, lookup, plain, quoted, style, verdict, words,
};
use crate::nft::json::{inner, number, only, text};

/// A statement in nft's syntax; an unknown one as JSON.
pub(super) fn statement(value: &Value) -> String {
    let Some((name, inner)) = only(value) else { return plain(value) };
    match name {
        "match" => relation(inner),
        "vmap" => lookup(name, inner),
        "accept" | "drop" | "continue" | "return" | "jump" | "goto" | "queue" => {
            verdict(name, inner)
        }
        "notrack" => name.to_owned(),
        "counter" => counter(inner),
        "limit" => limit(inner),
        "quota" => quota(inner),
        "ct count" => format!("ct count {}{}", over(inner), amount(inner, "val")),
        "log" => log(inner),
        "mangle" => mangle(inner),
        "reject" => reject(inner),
        "snat" | "dnat" | "masquerade" | "redirect" | "tproxy" => translation(name, inner),
        "dup" | "fwd" => hand_on(name, inner),
        "set" | "map" => fill(inner),
        "meter" => meter(inner),
        "flow" => format!("flow add {}", text(inner, "flowtable")),
        "xt" => format!("xt {} {}", text(inner, "type"), quoted(text(inner, "name"))),
        "reset" => format!("reset {}", expression(inner)),
        "ct helper" | "ct timeout" | "ct expectation" => {
            format!("{name} set {}", named(inner))
        }
        "synproxy" if !inner.is_string() => synproxy(inner),
        "synproxy" | "secmark" => format!("{name} name {}", named(inner)),
        "unlisted" => "(a rule that nft does not list)".to_owned(),
        _ => value.to_string(),
    }
}

fn relation(relation: &Value) -> String {
    let none = Value::Null;
    let left = relation.get("left").unwrap_or(&none);
    let right = relation.get("right").unwrap_or(&none);
    let is_set = inner(right, "set").is_some() || right.as_str().is_some_and(is_set_name);
    let is_flags = inner(left, "payload").is_some_and(|payload| text(payload, "field") == "flags");
    let is_masked = inner(left, "&").is_some();
    let (operator, right) = match text(relation, "op") {
        "in" => ("", compared(left, right)),
        "==" | "!=" if right.is_array() => (text(relation, "op"), joined(right, " | ", plain)),
        "==" if !is_set && (is_flags || is_masked) => ("==", compared(left, right)),
        "==" => ("", compared(left, right)),
        operator => (operator, compared(left, right)),
    };
    words([&expression(left), operator, &right])
}

fn is_set_name(word: &str) -> bool {
    word.starts_with('@')
}

fn counter(inner: &Value) -> String {
    match inner {
        Value::Object(count) if count.contains_key("packets") => {
            let (packets, bytes) = (amount(inner, "packets"), amount(inner, "bytes"));
            format!("counter packets {packets} bytes {bytes}")
        }
        Value::Null => "counter".to_owned(),
        _ => format!("counter name {}", named(inner)),
    }
}

/// A reference to an object by its name, or by a map of names.
fn named(inner: &Value) -> String {
    match inner {
        Value::String(name) => quoted(name),
        _ => expression(inner),
    }
}

fn limit(inner: &Value) -> String {
    if !inner.get("rate").is_some_and(Value::is_number) {
        return format!("limit name {}", named(inner));
    }
    let unit = text(inner, "rate_unit");
    let rate = amount(inner, "rate");
    let rate = if unit.is_empty() { rate } else { format!("{rate} {unit}") };
    let burst = match (number(inner, "burst").unwrap_or(0), text(inner, "burst_unit")) {
        (0, _) => String::new(),
        (burst, "") => format!(" burst {burst} packets"),
        (burst, unit) => format!(" burst {burst} {unit}"),
    };
    format!("limit rate {}{rate}/{}{burst}", over(inner), text(inner, "per"))
}

fn quota(inner: &Value) -> String {
    if !inner.get("val").is_some_and(Value::is_number) {
        return format!("quota name {}", named(inner));
    }
    let used = match number(inner, "used") {
        Some(used) => format!(" used {used} {}", text(inner, "used_unit")),
        None => String::new(),
    };
    format!("quota {}{} {}{used}", over(inner), amount(inner, "val"), text(inner, "val_unit"))
}

fn over(inner: &Value) -> &'static str {
    let over = inner.get("inv").and_then(Value::as_bool).unwrap_or(false);
    if over { "over " } else { "" }
}

fn amount(inner: &Value, name: &str) -> String {
    number(inner, name).unwrap_or(0).to_string()
}

fn log(inner: &Value) -> String {
    let mut out = "log".to_owned();
    let prefix = text(inner, "prefix");
    if !prefix.is_empty() {
        out += &format!(" prefix {}", quoted(prefix));
    }
    for name in ["group", "snaplen", "queue-threshold"] {
        if let Some(number) = number(inner, name) {
            out += &format!(" {name} {number}");
        }
    }
    let level = text(inner, "level");
    if !level.is_empty() {
        out += &format!(" level {level}");
    }
    let flags = inner.get("flags").map(super::super::json::several).unwrap_or_default();
    for flag in flags.iter().filter_map(Value::as_str) {
        out += &format!(" flags {flag}");
    }
    out
}

fn mangle(inner: &Value) -> String {
    let none = Value::Null;
    let key = inner.get("key").unwrap_or(&none);
    let value = inner.get("value").unwrap_or(&none);
    format!("{} set {}", expression(key), literal(value, style(key)))
}

fn reject(inner: &Value) -> String {
    let code = inner.get("expr").map(plain).unwrap_or_default();
    match text(inner, "type") {
        "" => "reject".to_owned(),
        kind => words(["reject with", kind, &code]),
    }
}

fn translation(name: &str, inner: &Value) -> String {
    let family = text(inner, "family");
    let value = |name| inner.get(name).map(|value| literal(value, Words::Bare));
    let address = value("addr").unwrap_or_default();
    let address = match value("port") {
        Some(port) if address.contains(':') => format!("[{address}]:{port}"),
        Some(port) => format!("{address}:{port}"),
        None => address,
    };
    let to = if address.is_empty() { String::new() } else { format!("to {address}") };
    let family = if matches!(name, "masquerade" | "redirect") { "" } else { family };
    let kinds = inner.get("type_flags").map(|kinds| joined(kinds, " ", plain));
    let flags = inner.get("flags").map(|flags| joined(flags, ",", plain));
    words([name, family, &kinds.unwrap_or_default(), &to, &flags.unwrap_or_default()])
}

fn hand_on(name: &str, inner: &Value) -> String {
    let value = |name| inner.get(name).map(expression);
    let device = inner.get("dev").map(|device| literal(device, Words::Quoted)).unwrap_or_default();
    match (name, value("addr")) {
        ("fwd", None) => format!("fwd to {device}"),
        ("fwd", Some(address)) => {
            format!("fwd {} to {address} device {device}", text(inner, "family"))
        }
        (_, address) => {
            let device = if device.is_empty() { String::new() } else { format!("device {device}") };
            words([name, "to", &address.unwrap_or_default(), &device])
        }
    }
}

fn fill(inner: &Value) -> String {
    let none = Value::Null;
    let element = inner.get("elem").unwrap_or(&none);
    let (key, timeout) = match super::super::json::inner(element, "elem") {
        Some(element) => (element.get("val").unwrap_or(&none), number(element, "timeout")),
        None => (element, None),
    };
    let timeout = timeout.map(|seconds| format!("timeout {seconds}s")).unwrap_or_default();
    let more = inner.get("stmt").map(|more| joined(more, " ", statement)).unwrap_or_default();
    let datum = inner.get("data").map(|datum| format!(": {}", expression(datum)));
    let set = if text(inner, "set").is_empty() { text(inner, "map") } else { text(inner, "set") };
    let element = words([&expression(key), &timeout, &more, &datum.unwrap_or_default()]);
    format!("{} {set} {{ {element} }}", text(inner, "op"))
}

fn meter(inner: &Value) -> String {
    let none = Value::Null;
    let of = |name| inner.get(name).unwrap_or(&none);
    let size = amount(inner, "size");
    let (name, key) = (text(inner, "name"), expression(of("key")));
    format!("meter {name} size {size} {{ {key} {} }}", statement(of("stmt")))
}

fn synproxy(inner: &Value) -> String {
    let mut out = "synproxy".to_owned();
    for name in ["mss", "wscale"] {
        if let Some(number) = number(inner, name) {
            out += &format!(" {name} {number}");
        }
    }
    let flags = inner.get("flags").map(|flags| joined(flags, " ", plain));
    words([&out, &flags.unwrap_or_default()])
}
