//! Elements of sets of addresses, and how changes of nothing but elements apply to live sets.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::net::{Ipv4Addr, Ipv6Addr};

use serde_json::{Value, json};
use tollway_dataplane::stages::filter::Element;

use super::ElementChange;
use super::message::{Elements, Key};

/// How the rules of the fast path use a set whose elements may change while the rules stay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetUse {
    /// As a live set of addresses of this version of IP.
    Live {
        /// 4 or 6.
        version: u8,
        /// Whether the kernel stores the ends of intervals.
        is_interval: bool,
    },
    /// As a part of the rules.
    Fixed,
}

/// The effect of a change of nothing but elements.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ElementsEffect {
    /// The changes of live sets; none if no rule of the fast path looks the sets up.
    Applies(Vec<ElementChange>),
    /// The rules have to be read again. These sets are not live sets but could be.
    Reread(Vec<String>),
}

/// Evaluates a change of elements, given in order.
pub(super) fn outcome(change: &[Elements], uses: &HashMap<String, SetUse>) -> ElementsEffect {
    let mut sets: BTreeMap<&str, [Option<Vec<&Key>>; 2]> = BTreeMap::new();
    for elements in change {
        let both =
            sets.entry(&elements.set).or_insert_with(|| [Some(Vec::new()), Some(Vec::new())]);
        let side = &mut both[usize::from(elements.added)];
        *side = side.take().zip(elements.keys.as_ref()).map(|(mut all, keys)| {
            all.extend(keys);
            all
        });
    }
    let (mut changes, mut fixed, mut is_clear) = (Vec::new(), Vec::new(), true);
    for (name, [gone, added]) in sets {
        let (version, is_interval) = match uses.get(name) {
            None => continue,
            Some(SetUse::Fixed) => {
                fixed.push(name.to_owned());
                continue;
            }
            Some(SetUse::Live { version, is_interval }) => (*version, *is_interval),
        };
        let ranges = |keys: Option<Vec<&Key>>| ranges(&keys?, version, is_interval);
        match (ranges(gone), ranges(added)) {
            // For an element both added and removed the order decides, but it is not kept.
            (Some(remove), Some(add)) if are_apart(&remove, &add) => {
                changes.push(ElementChange { set: name.to_owned(), add, remove });
            }
            _ => is_clear = false,
        }
    }
    if is_clear && fixed.is_empty() {
        ElementsEffect::Applies(changes)
    } else {
        ElementsEffect::Reread(fixed)
    }
}

fn are_apart(one: &[Element], other: &[Element]) -> bool {
    let one: HashSet<_> = one.iter().collect();
    other.iter().all(|element| !one.contains(element))
}

/// The elements that keys denote; `None` if that is not clear.
pub(super) fn ranges(keys: &[&Key], version: u8, is_interval: bool) -> Option<Vec<Element>> {
    let all = if version == 4 { u128::from(u32::MAX) } else { u128::MAX };
    let (mut whole, mut starts, mut ends) = (Vec::new(), Vec::new(), Vec::new());
    for key in keys {
        let first = number(&key.value, version)?;
        match (&key.last, key.is_end, is_interval) {
            (Some(last), false, _) => whole.push((first, number(last, version)?)),
            (None, false, false) => whole.push((first, first)),
            (None, false, true) => starts.push(first),
            // The kernel also stores the end of the gap before the first interval, even if that begins at 0.
            (None, true, true) if first == 0 => {}
            (None, true, true) => ends.push(first),
            _ => return None,
        }
    }
    starts.sort_unstable();
    ends.sort_unstable();
    let mut ends = ends.into_iter().peekable();
    for (at, start) in starts.iter().enumerate() {
        let next = starts.get(at + 1);
        let last = match (ends.next_if(|end| end > start), next) {
            (Some(end), _) => end - 1,
            // The interval extends to the last address.
            (None, None) => all,
            (None, Some(_)) => return None,
        };
        // The next interval begins where this one ends, or later.
        if next.is_some_and(|next| *next <= last) {
            return None;
        }
        whole.push((*start, last));
    }
    ends.next().is_none().then_some(whole)
}

/// An element in nft's JSON.
pub(super) fn element((first, last): Element, version: u8) -> Value {
    let address = |number: u128| match version {
        4 => Ipv4Addr::from_bits(number as u32).to_string(),
        _ => Ipv6Addr::from_bits(number).to_string(),
    };
    if first == last {
        return Value::String(address(first));
    }
    json!({ "range": [address(first), address(last)] })
}

fn number(bytes: &[u8], version: u8) -> Option<u128> {
    match version {
        4 => bytes.try_into().ok().map(|bytes| u32::from_be_bytes(bytes).into()),
        _ => bytes.try_into().ok().map(u128::from_be_bytes),
    }
}
