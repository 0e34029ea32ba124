//! The firewall's rules, in a file of their own: `filter = "FILE"`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::raw::Section;
use tollway_firewall::ir::Ruleset;
use tollway_firewall::listing::refusals;
use tollway_firewall::mistake::{Fault, Ledger, Mistake};
use tollway_rules::files;

/// Reads the rules file that the configuration names; none if it names none.
///
/// # Errors
/// Every mistake in that file. A rule that only a kernel could evaluate is a mistake.
pub(super) fn read(
    root: &Section<'_>,
    base: &Path,
    ledger: &mut Ledger<'_>,
) -> Result<Option<Arc<Ruleset>>, Vec<Mistake>> {
    let path = root.text("filter", ledger).read(ledger, |text| {
        if text.is_empty() || text.contains('\0') {
            return Fault::err("filter is not a file name", "name the file of rules");
        }
        Ok(base.join(text))
    });
    let Some(path) = path.given().map(|at| at.value) else { return Ok(None) };
    let rules = files::load(&path)?;
    let refusals = refusals(&rules, &path.display().to_string());
    if refusals.is_empty() { Ok(Some(Arc::new(rules))) } else { Err(refusals) }
}

/// Reads the path of the capture file for packets that rules log to a group.
pub(super) fn read_log(
    root: &Section<'_>,
    base: &Path,
    ledger: &mut Ledger<'_>,
) -> Option<PathBuf> {
    let path = root.text("filter_log", ledger).read(ledger, |text| {
        if text.is_empty() || text.contains('\0') {
            return Fault::err("filter_log is not a file name", "name the capture to be written");
        }
        if root.key_span("filter").is_none() {
            return Fault::err("filter_log is given without filter", "name the file of rules too");
        }
        Ok(base.join(text))
    });
    path.given().map(|at| at.value)
}
