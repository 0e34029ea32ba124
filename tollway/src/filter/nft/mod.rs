//! nftables: the JSON of `nft -j list ruleset` (libnftables-json(5)), into the intermediate form.
//!
//! The kernel's rule is a line of small steps that each break off where they do not hold; so is ours, and
//! they are in the same order. nft leaves steps out of a listing that others imply (`tcp dport 22` says
//! `meta l4proto tcp` as well); they are put back where nft puts them (`payload_gen_dependency` in its
//! `src/payload.c`).
//!
//! What cannot be done exactly (connection tracking, NAT, sets that packets fill, whatever this does not
//! know) is [`super::ir::Step::Unsupported`] where it stands: only packets that get there are the
//! kernel's. Limits:
//!
//! - Tables of family arp are not IP's and are left out; dormant tables hang nowhere.
//! - The JSON of nft 1.0.6 names neither the devices of chains nor dormant tables, as later versions do:
//!   [`complete`] adds them from the listing in its text; without that such chains are the kernel's.
//! - nft leaves conditions out of its JSON that it takes for implied: a file of JSON means what it says. Of rules in
//!   nft's own text ([`load`]) the kernel says what they are.
//! - A fragment header of IPv6 behind an authentication header is not seen.
//! - Elements' own counters are not counted.

mod chains;
mod complete;
mod expression;
mod fields;
mod include;
pub(crate) mod json;
mod mangle;
mod names;
mod pieces;
mod rule;
mod script;
mod sets;
mod statement;
mod text;
mod tokens;
mod value;

#[cfg(test)]
pub(in crate::filter) mod tests;

pub use complete::complete;
pub use script::load;
#[cfg(test)]
pub(crate) use script::{loaded, script};

use serde_json::Value;

use super::ir::Ruleset;
use crate::mistake::{Fault, Ledger, Mistake};

/// Reads a ruleset in nft's JSON; `file` is its name, for messages.
///
/// # Errors
/// Every mistake found. What is sound but cannot be done exactly is none: it becomes
/// [`super::ir::Step::Unsupported`].
pub fn read(text: &str, file: &str) -> Result<Ruleset, Vec<Mistake>> {
    let mut ledger = Ledger::new(file, text);
    let read = serde_json::from_str(text).map_err(|error| {
        let before = text.split_inclusive('\n').take(error.line().saturating_sub(1));
        let start = before.map(str::len).sum::<usize>() + error.column().saturating_sub(1);
        let fault = Fault::new(
            format!("this is no JSON: {}", problem(&error)),
            "give what `nft -j list ruleset` writes",
        );
        (start, vec![fault])
    });
    let read = read.and_then(|value| read_value(&value, file).map_err(|faults| (0, faults)));
    match read {
        Ok(rules) => Ok(rules),
        Err((start, faults)) => {
            for fault in faults {
                ledger.value(start..start + 1, fault);
            }
            Err(ledger.finish())
        }
    }
}

/// The same for JSON that is read already, with mistakes that have no place.
pub(crate) fn read_value(value: &Value, file: &str) -> Result<Ruleset, Vec<Fault>> {
    chains::read(value, file)
}

/// A rule of the listing as nft writes it, on one line.
pub(crate) fn words(rule: &Value) -> String {
    text::rule(rule)
}

/// What serde says, without the place that it adds.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}
