//! The basic structures of nft's JSON.

use serde_json::Value;

/// The name and the value of an object that has one member (`{"match": {...}}`).
pub fn only(value: &Value) -> Option<(&str, &Value)> {
    let object = value.as_object()?;
    let (name, inner) = object.iter().next()?;
    (object.len() == 1).then_some((name.as_str(), inner))
}

/// The value of an object that has this member only.
pub(super) fn inner<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    only(value).filter(|(found, _)| *found == name).map(|(_, inner)| inner)
}

/// A member that is a string; empty if it is missing.
pub fn text<'a>(value: &'a Value, name: &str) -> &'a str {
    value.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// A member that is a whole number.
pub fn number(value: &Value, name: &str) -> Option<u64> {
    value.get(name)?.as_u64()
}

/// The members of an array, or else the value itself: nft lists a single value without an array.
pub fn several(value: &Value) -> &[Value] {
    match value {
        Value::Array(values) => values,
        Value::Null => &[],
        one => std::slice::from_ref(one),
    }
}

/// The two values of an array of two.
pub(super) fn pair(value: &Value) -> Option<(&Value, &Value)> {
    match value.as_array().map(Vec::as_slice) {
        Some([left, right]) => Some((left, right)),
        _ => None,
    }
}

/// The name of a named set or map (`"@bad"`).
pub(super) fn set_name(value: &Value) -> Option<&str> {
    value.as_str()?.strip_prefix('@')
}

/// Reports every chain and every named set that a value mentions, at any depth.
pub(super) fn mentions<'a>(value: &'a Value, note: &mut impl FnMut(Mention<'a>)) {
    match value {
        Value::String(_) => {
            if let Some(name) = set_name(value) {
                note(Mention::Set(name));
            }
        }
        Value::Array(values) => values.iter().for_each(|value| mentions(value, note)),
        Value::Object(object) => {
            for (name, value) in object {
                if matches!(name.as_str(), "jump" | "goto") {
                    note(Mention::Chain(text(value, "target")));
                }
                mentions(value, note);
            }
        }
        _ => {}
    }
}

/// What [`mentions`] finds.
pub(super) enum Mention<'a> {
    Chain(&'a str),
    Set(&'a str),
}
