//! Adding elements to the firewall's sets and deleting them, while packets flow.

use serde::{Deserialize, Serialize};
use tollway_dataplane::stages::filter::{Element, Filter, LiveSet, LiveSetError};

use tollway_firewall::element::{self, ElementError};

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

/// Why a set was not changed, or only in part.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(super) enum SetError {
    /// The router has no rules.
    #[error("this router has no firewall")]
    NoFirewall,
    /// No set that can be changed has this name.
    #[error("no set that can be changed in place is called {name:?}{}", others(.known))]
    Unknown {
        /// The requested name.
        name: String,
        /// The names of those that can be changed.
        known: Vec<String>,
    },
    /// A text is no element.
    #[error(transparent)]
    Malformed(#[from] ElementError),
    /// An element is of the other version of IP.
    #[error("set {set} has IPv{version} addresses, not {text}")]
    OtherVersion {
        /// The set.
        set: String,
        /// The version of IP of its addresses.
        version: u8,
        /// The element.
        text: String,
    },
    /// An element to delete is missing.
    #[error("{text} is not in set {set}{}", before(*.at))]
    Missing {
        /// The set.
        set: String,
        /// The element.
        text: String,
        /// How many elements before it are done.
        at: usize,
    },
    /// The set is full.
    #[error("set {set} has no room left for {text}{}", before(*.at))]
    Full {
        /// The set.
        set: String,
        /// The element.
        text: String,
        /// How many elements before it are done.
        at: usize,
    },
    /// The set cannot have such an element.
    #[error("set {set} cannot have {text}{}", before(*.at))]
    Unsuitable {
        /// The set.
        set: String,
        /// The element.
        text: String,
        /// How many elements before it are done.
        at: usize,
    },
}

/// Changes a set of the active rules.
pub(super) fn change(
    filter: Option<&Filter>,
    name: &str,
    change: Change,
    texts: &[String],
) -> Result<Changed, SetError> {
    let filter = filter.ok_or(SetError::NoFirewall)?;
    let set = filter.live_set(name).ok_or_else(|| unknown(filter, name))?;
    let elements: Vec<_> = texts.iter().map(|text| of(set, text)).collect::<Result<_, _>>()?;
    let done = match change {
        Change::Add => set.add(&elements),
        Change::Delete => set.remove(&elements),
    };
    let text = |at: usize| texts.get(at).map_or("it", String::as_str).to_owned();
    let set_name = set.name().to_owned();
    match done {
        Ok(changed) => Ok(Changed { set: set_name, changed, count: set.count() }),
        Err(LiveSetError::Missing(at)) => {
            Err(SetError::Missing { set: set_name, text: text(at), at })
        }
        Err(LiveSetError::Full(at)) => Err(SetError::Full { set: set_name, text: text(at), at }),
        Err(LiveSetError::NotARange(at)) => {
            Err(SetError::Unsuitable { set: set_name, text: text(at), at })
        }
    }
}

/// The result for the elements before the refused one.
fn before(at: usize) -> String {
    if at == 0 { String::new() } else { format!("; the {at} before it are done") }
}

fn of(set: &LiveSet, text: &str) -> Result<Element, SetError> {
    let (version, element) = element::read(text)?;
    if version != set.version() {
        let (name, text) = (set.name().to_owned(), text.to_owned());
        return Err(SetError::OtherVersion { set: name, version: set.version(), text });
    }
    Ok(element)
}

fn unknown(filter: &Filter, name: &str) -> SetError {
    let known = filter.live_sets().iter().map(|set| set.name().to_owned()).collect();
    SetError::Unknown { name: name.to_owned(), known }
}

/// The sets that can be changed in place, as a clause.
fn others(known: &[String]) -> String {
    if known.is_empty() {
        return "; there is none: to change other sets, reload the rules".to_owned();
    }
    let names = known[..known.len().min(MOST_NAMES)].join(", ");
    match known.len().saturating_sub(MOST_NAMES) {
        0 => format!("; there are {names}"),
        more => format!("; there are {names} and {more} more"),
    }
}
