//! nftables: the JSON of `nft -j list ruleset` (libnftables-json(5)), into the intermediate form.

use super::ir::Ruleset;
use crate::mistake::Mistake;

/// Reads a ruleset in nft's JSON; `file` is its name, for messages.
///
/// # Errors
/// Every mistake found. What is sound but cannot be done exactly is none: it becomes
/// [`super::ir::Step::Unsupported`].
pub fn read(_text: &str, _file: &str) -> Result<Ruleset, Vec<Mistake>> {
    Ok(Ruleset::default())
}
