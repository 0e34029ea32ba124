//! nftables: reads the JSON of `nft -j list ruleset` (libnftables-json(5)) into the intermediate form.
//!
//! A rule in the kernel is a list of small expressions, each of which breaks if it does not hold. A rule of
//! the intermediate form is the same, in the same order. nft omits expressions that others imply from a
//! listing (`tcp dport 22` implies `meta l4proto tcp`). This module puts them back where nft puts them
//! (`payload_gen_dependency` in its `src/payload.c`).
//!
//! A statement that cannot be executed exactly becomes [`super::ir::Step::Unsupported`] at its place in the
//! rule. Such statements are NAT of a kernel, sets that packets fill, and all that this module
//! does not know. Only packets that reach that step take the kernel path. Limits:
//!
//! - Tables of family arp do not concern IP and are omitted; chains of dormant tables are attached nowhere.
//! - The JSON of nft 1.0.6 names neither the devices of chains nor dormant tables, as later versions do.
//!   [`complete`] adds them from the text listing; without that, packets of such chains take the kernel path.
//! - nft omits conditions from its JSON that it considers implied. In a file of JSON, they stay omitted. For
//!   rules in nft's own text, which nft loads itself, the kernel's expressions show them.
//! - A fragment header of IPv6 behind an authentication header is not seen.
//! - Counters of set elements do not count.

mod chains;
mod complete;
mod expression;
mod forms;
pub mod json;
mod listing;
mod mangle;
mod module;
mod named_bits;
mod names;
mod nat;
mod nat_map;
mod refusal;
mod rule;
mod sets;
mod statement;
mod text;
mod value;

#[cfg(test)]
mod tests;

pub use complete::complete;
pub use forms::Forms;

use serde_json::Value;

use super::ir::Ruleset;
use crate::mistake::{Fault, Ledger, Mistake};

/// The member of an `xt` statement that says what this module of iptables means for flows of known connections.
///
/// nft does not list it; who knows the kernel's own rules adds it. It is `{"mangle": ...}` as in nft's JSON, or
/// `{"any": [[...], ...]}`: alternatives, each with conditions (`{"match": ...}`) that all have to hold.
pub const MEANING: &str = "meaning";

/// Reads a ruleset in nft's JSON for a router that tracks connections itself; `file` is its name, for messages.
///
/// # Errors
/// Every mistake found. Valid input that cannot be executed exactly is no mistake: it becomes
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

/// Like [`read`], for JSON that is already parsed; its mistakes have no position.
///
/// # Errors
/// As [`read`].
pub fn read_value(value: &Value, file: &str) -> Result<Ruleset, Vec<Fault>> {
    chains::read(value, file, true).map(|(rules, _)| rules.with_tracking())
}

/// Reads the rules of a kernel that tracks connections itself, for packets and for flows of known connections.
///
/// # Errors
/// As [`read`].
pub fn read_forms(value: &Value, file: &str) -> Result<Forms, Vec<Fault>> {
    chains::read(value, file, false).map(|(rules, ends)| Forms::of(rules, ends))
}

/// A rule of the listing in nft's syntax, on one line.
pub fn words(rule: &Value) -> String {
    text::rule(rule)
}

/// serde's message without the position that it appends.
fn problem(error: &serde_json::Error) -> String {
    let text = error.to_string();
    text.split(" at line ").next().unwrap_or_default().to_owned()
}
