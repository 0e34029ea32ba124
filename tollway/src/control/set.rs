//! Adding elements to the firewall's sets and deleting them, while packets flow.

use std::fmt::Write as _;

use serde::{Deserialize, Serialize};
use tollway_dataplane::stages::filter::{Element, Filter, LiveSet, LiveSetError};

use crate::filter::element;

/// What to do with the elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Change {
    /// Add them; those that are present stay.
    Add,
    /// Delete them; all must be present.
    Delete,
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Changed {
    /// Its table's name and its own.
    pub set: String,
    /// How many elements were added or deleted.
    pub changed: usize,
    /// How many elements it has now.
    pub count: usize,
}

/// The most names of sets in a refusal.
const MOST_NAMES: usize = 20;

/// Changes a set of the active rules.
pub(super) fn change(
    filter: Option<&Filter>,
    name: &str,
    change: Change,
    texts: &[String],
) -> Result<Changed, String> {
    let filter = filter.ok_or("this router has no firewall")?;
    let set = filter.live_set(name).ok_or_else(|| unknown(filter, name))?;
    let elements: Vec<_> = texts.iter().map(|text| of(set, text)).collect::<Result<_, _>>()?;
    let done = match change {
        Change::Add => set.add(&elements),
        Change::Delete => set.remove(&elements),
    };
    let text = |at: usize| texts.get(at).map_or("it", String::as_str);
    let changed = done.map_err(|error| match error {
        LiveSetError::Missing(at) => {
            format!("{} is not in set {}{}", text(at), set.name(), before(at))
        }
        LiveSetError::Full(at) => {
            format!("set {} has no room left for {}{}", set.name(), text(at), before(at))
        }
        LiveSetError::Astray(at) => {
            format!("set {} cannot have {}{}", set.name(), text(at), before(at))
        }
    })?;
    Ok(Changed { set: set.name().to_owned(), changed, count: set.count() })
}

/// The result for the elements before the refused one.
fn before(at: usize) -> String {
    if at == 0 { String::new() } else { format!("; the {at} before it are done") }
}

fn of(set: &LiveSet, text: &str) -> Result<Element, String> {
    let (version, element) = element::read(text)?;
    if version != set.version() {
        return Err(format!("set {} has IPv{} addresses, not {text}", set.name(), set.version()));
    }
    Ok(element)
}

fn unknown(filter: &Filter, name: &str) -> String {
    let names: Vec<_> = filter.live_sets().iter().map(|set| set.name()).collect();
    let mut sentence = format!("no set that can be changed in place is called {name:?}");
    let more = names.len().saturating_sub(MOST_NAMES);
    // Writing to a string does not fail.
    let _ = match names.is_empty() {
        true => write!(sentence, "; there is none: other sets change with the rules, by a reload"),
        false => write!(sentence, "; there are {}", names[..names.len() - more].join(", ")),
    };
    if more > 0 {
        let _ = write!(sentence, " and {more} more");
    }
    sentence
}
