//! ipfw: FreeBSD's rule files (ipfw(8)), into the intermediate form.
//!
//! A file is what is given to `ipfw FILE`, a script of `ipfw add ...` lines without variables, or what
//! `ipfw list` and `ipfw show` print. What rules mean is what `ipfw_chk` does with them
//! (`sys/netpfil/ipfw/ip_fw2.c`, FreeBSD 13 and later).
//!
//! - The list is gone through twice for each packet: received (`in`, hook prerouting, before the route is
//!   looked up) and to be sent (`out`, hook forward). Rules about layer 2 (`layer2`, `mac`, `mac-type`) make
//!   it four times: hooks ingress and egress too, as `net.link.ether.ipfw=1` would; then the whole list
//!   is for layer 2 as well, and rules that are not say `not layer2`. A rule's counter is the same in all.
//! - `allow` ends the pass, not the whole: what is allowed `in` can be denied `out`. Rule 65535 denies.
//! - Before the rules, packets are denied whose headers are not whole, and IPv6 packets of unknown
//!   headers, as in FreeBSD; counters of their own say how many.
//! - `skipto` never goes back; `call` may, but not in a circle.
//! - Tables: addresses (longest prefix first), links, numbers, with values that rules compare.
//!
//! Limits: no states, no translation, no pipes, no `me`: a mistake each, with what to write instead. All
//! mistakes of a file are told. IPv6 packets with an authentication header are denied, as what is
//! behind it is not looked at, and so are later fragments whose first header is another extension
//! header; unknown types of routing headers are not. `logamount` is taken and does not stop the log. Bytes
//! that are counted of what is received at layer 2 are those behind the packet too. What the router itself
//! sends is the kernel's and does not come to these rules.

mod action;
mod address;
mod body;
mod chains;
mod conditions;
mod guard;
mod list;
mod names;
mod options;
mod rule;
mod table;
#[cfg(test)]
pub(in crate::filter) mod tests;
mod words;

use super::ir::Ruleset;
use crate::mistake::{Ledger, Mistake};
use list::List;
use rule::{Action, Links, Lookup, Rule, Test};
use table::Kind;

/// Reads a rule file; `file` is its name, for messages.
///
/// # Errors
/// Every mistake found. A rule that cannot be done exactly is one too: there is no kernel behind that
/// could decide.
pub fn read(text: &str, file: &str) -> Result<Ruleset, Vec<Mistake>> {
    let mut ledger = Ledger::new(file, text);
    let list = List::read(text, &mut ledger);
    for rule in &list.rules {
        hold(&list, rule, &mut ledger);
    }
    let rules = chains::chains(&list, file);
    if rules.check().is_err() {
        let calls = |rule: &&Rule| matches!(rule.action, Action::Call(_));
        let place = list.rules.iter().find(calls).map_or(0..0, |rule| rule.span.clone());
        ledger.relation(
            place,
            "calls go round in a circle, or are more than 16 deep",
            "let each called part end with a return, and call forwards",
        );
    }
    let mistakes = ledger.finish();
    if mistakes.is_empty() { Ok(rules) } else { Err(mistakes) }
}

/// What is wrong with a rule beside others: pipes of rules that run, tables of another type.
fn hold(list: &List, rule: &Rule, ledger: &mut Ledger<'_>) {
    if list.disabled >> rule.set & 1 == 1 {
        return;
    }
    if rule.action == Action::Pipe {
        ledger.relation(
            rule.span.clone(),
            "pipes and queues are not forwarded through yet",
            "write allow instead, or disable the rule's set",
        );
    }
    for term in rule.blocks.iter().flatten() {
        let (name, kind, what) = match &term.test {
            Test::Table(_, name, _) | Test::Lookup(Lookup::Address(_), name) => {
                (name, Kind::Address, "addr")
            }
            Test::Lookup(_, name) => (name, Kind::Number, "number"),
            Test::Link(_, Links::Table(name, _)) => (name, Kind::Link, "iface"),
            _ => continue,
        };
        if list.tables.get(name).is_some_and(|table| table.kind != kind) {
            ledger.relation(
                rule.span.clone(),
                format!("table {name} is not of the type that is looked up here"),
                format!("create it with type {what}"),
            );
        }
    }
}
