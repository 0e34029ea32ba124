//! The elements of named sets, which nft's listing without elements omits.
//!
//! nft takes more than a second of processor time to list 200,000 addresses, half of it in the kernel. So
//! this module queries the kernel for the elements of sets of addresses, and nft for each of the other sets.
//!
//! The kernel makes the hash table of a set larger some time behind the change that filled it, and lists elements by their
//! position in that table, datagram after datagram (`nft_rhash_walk`). Whoever lists a set meanwhile gets some elements twice,
//! and others not at all. No message says so. But a list has as many elements as the set at least, so one that lacks some has
//! others twice.

use std::collections::HashSet;

use serde_json::Value;

use super::elements::{element, ranges};
use super::kernel::Kernel;
use super::message::{Key, family_number};
use super::program::NftError;
use super::read::{ListingError, parse};
use super::socket::NetfilterSocket;
use tollway_firewall::nft::json::{only, several, text};

/// The most sets that nft lists one by one; if there are more, it lists everything at once.
const MOST_SINGLE_LISTS: usize = 8;
const KINDS: [&str; 3] = ["set", "map", "meter"];

/// Runs nft with these arguments; `None` if the reading is to be abandoned.
pub(super) type Nft<'a> = &'a dyn Fn(&[&str]) -> Result<Option<String>, NftError>;

/// Why the elements of sets are unknown.
#[derive(Debug, thiserror::Error)]
pub(super) enum ContentsError {
    /// nft gave no output.
    #[error(transparent)]
    Nft(#[from] NftError),
    /// Its output is no listing.
    #[error(transparent)]
    Listing(#[from] ListingError),
    /// Its output lacks the set.
    #[error("nft does not list {kind} {name}")]
    NotListed {
        /// What kind of set it is.
        kind: &'static str,
        /// Its name.
        name: String,
    },
}

/// What came of the query for elements.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filled {
    /// All sets have their elements.
    Whole,
    /// A set was listed while its table grew.
    Doubled,
    /// The reading was abandoned.
    Abandoned,
}

/// Inserts the elements of sets.
///
/// # Errors
/// nft cannot list them. Sets that come or go during the query are an error too.
pub(super) fn fill(
    value: &mut Value,
    kernel: &Kernel,
    socket: &mut NetfilterSocket,
    nft: Nft<'_>,
) -> Result<Filled, ContentsError> {
    let objects = value.get_mut("nftables").and_then(Value::as_array_mut);
    let (mut others, mut is_doubled) = (Vec::new(), false);
    for object in objects.into_iter().flatten() {
        let Some(place) = ListedSet::of(object) else { continue };
        match place.version.and_then(|version| addresses(&place, version, socket)) {
            Some((elements, has_doubles)) => {
                is_doubled |= has_doubles;
                put(object, elements);
            }
            None => others.push((object, place)),
        }
    }
    let at_once =
        others.len() > MOST_SINGLE_LISTS || others.iter().any(|(_, place)| !place.is_for_nft());
    let listed = match at_once {
        true => None,
        // nft rejects names that are keywords of its language.
        false => list_each(others, nft).ok(),
    };
    match listed {
        Some(Filled::Whole) if is_doubled => return Ok(Filled::Doubled),
        Some(filled) => return Ok(filled),
        None => {}
    }
    let Some(listing) = nft(&["-j", "list", "ruleset"])? else { return Ok(Filled::Abandoned) };
    *value = parse(&listing)?;
    // nft does not say which sets packets fill.
    kernel.complete(value);
    let objects = value.get("nftables").and_then(Value::as_array);
    let is_doubled = |object: &Value| only(object).is_some_and(has_doubles);
    if objects.into_iter().flatten().any(is_doubled) {
        return Ok(Filled::Doubled);
    }
    Ok(Filled::Whole)
}

/// Says whether the list of a set, with the kernel's flags, has an element twice. Sets that packets fill do not matter: they
/// change all the time, and only the kernel looks them up.
pub(super) fn has_doubles((kind, set): (&str, &Value)) -> bool {
    let flags = set.get("flags").map(several).unwrap_or_default();
    let changes = |flag: &Value| matches!(flag.as_str(), Some("dynamic" | "timeout"));
    if !matches!(kind, "set" | "map") || flags.iter().any(changes) {
        return false;
    }
    let elements = set.get("elem").map(several).unwrap_or_default();
    let mut seen = HashSet::new();
    elements.iter().any(|element| !seen.insert(key_of(element).to_string()))
}

/// The key of an element, which may have a datum, and statements of its own.
fn key_of(element: &Value) -> &Value {
    let key = match element {
        Value::Array(pair) => pair.first().unwrap_or(element),
        key => key,
    };
    key.pointer("/elem/val").unwrap_or(key)
}

/// Queries nft for one set after the other.
fn list_each(sets: Vec<(&mut Value, ListedSet)>, nft: Nft<'_>) -> Result<Filled, ContentsError> {
    let mut is_doubled = false;
    for (object, place) in sets {
        let ListedSet { kind, family, table, name, .. } = &place;
        let Some(listing) = nft(&["-j", "list", kind, family, table, name])? else {
            return Ok(Filled::Abandoned);
        };
        let mut listing = parse(&listing)?;
        let objects = listing.get_mut("nftables").and_then(Value::as_array_mut);
        let found = objects.into_iter().flatten().find_map(|found| found.get_mut(kind));
        let found = found.ok_or_else(|| ContentsError::NotListed { kind, name: name.clone() })?;
        if let Some(Value::Array(elements)) = found.get_mut("elem").map(Value::take) {
            put(object, elements);
        }
        is_doubled |= only(object).is_some_and(has_doubles);
    }
    Ok(if is_doubled { Filled::Doubled } else { Filled::Whole })
}

/// A set in a listing.
struct ListedSet {
    kind: &'static str,
    family: String,
    table: String,
    name: String,
    /// The version of IP, if the elements are addresses and nothing else.
    version: Option<u8>,
    is_interval: bool,
}

impl ListedSet {
    fn of(object: &Value) -> Option<Self> {
        let (kind, set) = only(object)?;
        let kind = KINDS.into_iter().find(|one| *one == kind)?;
        let word = |name| text(set, name).to_owned();
        let flags = set.get("flags").map(several).unwrap_or_default();
        let is_plain = |flag: &Value| matches!(flag.as_str(), Some("interval" | "constant"));
        let is_plain = kind == "set"
            && flags.iter().all(is_plain)
            && ["timeout", "stmt", "map"].iter().all(|member| set.get(*member).is_none());
        let version = match text(set, "type") {
            "ipv4_addr" if is_plain => Some(4),
            "ipv6_addr" if is_plain => Some(6),
            _ => None,
        };
        let is_interval = flags.iter().any(|flag| flag.as_str() == Some("interval"));
        let (family, table, name) = (word("family"), word("table"), word("name"));
        // The router ignores tables of family arp.
        (family != "arp").then_some(Self { kind, family, table, name, version, is_interval })
    }

    /// Says whether nft can list it: its creator may have given it a name that nft does not accept.
    fn is_for_nft(&self) -> bool {
        let is_name = |name: &str| {
            name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
                && name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c))
        };
        self.kind != "meter"
            && family_number(&self.family).is_some()
            && is_name(&self.table)
            && is_name(&self.name)
    }
}

fn put(object: &mut Value, elements: Vec<Value>) {
    let set = KINDS.into_iter().find(|kind| object.get(*kind).is_some());
    if let Some(set) = set.filter(|_| !elements.is_empty()) {
        object[set]["elem"] = Value::Array(elements);
    }
}

/// Queries the kernel for the elements of a set of addresses, and says whether some are listed twice; `None` if they are more
/// than addresses.
fn addresses(
    place: &ListedSet,
    version: u8,
    socket: &mut NetfilterSocket,
) -> Option<(Vec<Value>, bool)> {
    let family = family_number(&place.family)?;
    let keys = socket.elements(family, &place.table, &place.name).ok()??;
    let keys: Vec<&Key> = keys.iter().collect();
    let mut ranges = ranges(&keys, version, place.is_interval)?;
    // The kernel lists elements in the order of its own tables.
    ranges.sort_unstable();
    let has_doubles = ranges.windows(2).any(|pair| pair[0] == pair[1]);
    Some((ranges.into_iter().map(|range| element(range, version)).collect(), has_doubles))
}
