//! ipfw: reads FreeBSD's rule files (ipfw(8)) into the intermediate form.
//!
//! A file is the argument of `ipfw FILE`, a script of `ipfw add ...` lines without variables, or the output
//! of `ipfw list` or `ipfw show`. Rules mean what `ipfw_chk` does with them (`sys/netpfil/ipfw/ip_fw2.c`,
//! FreeBSD 13 and later).
//!
//! - Each packet passes the list twice: when received (`in`, hook prerouting, before the route lookup) and
//!   before it is sent (`out`, hook forward). If the file has rules about layer 2 (`layer2`, `mac`,
//!   `mac-type`), the packet passes it four times: at hooks ingress and egress too, as with
//!   `net.link.ether.ipfw=1`. Then the whole list applies to layer 2 as well; rules that are not meant for it
//!   say `not layer2`. All passes share a rule's counter.
//! - `allow` ends the pass only: a packet allowed `in` can be denied `out`. Rule 65535 denies.
//! - Before the rules, as in FreeBSD, packets with truncated headers and IPv6 packets with unknown headers
//!   are denied. They have counters of their own.
//! - `skipto` never jumps backwards; `call` may, but not in a loop.
//! - Tables: addresses (longest prefix first), links, and numbers, with values that rules compare.
//!
//! - States: `keep-state`, `limit`, `record-state`, `set-limit`, `defer-action` and `check-state`, with names. A packet is looked
//!   up once in each pass for each name, at the first rule that asks for it; all passes share the states. A packet
//!   that gets no state is denied.
//!
//! - Translation: `nat N` and `nat global`, of IPv4. As with `net.inet.ip.fw.one_pass=1`, FreeBSD's default, the rule accepts the
//!   packet, so no rule behind it in the same pass sees it; the pass `out` sees what the pass `in` has translated.
//!
//! Limits: no pipes, no `me`, no `call` beside states, no `nat` beside rules about layer 2: each is a mistake, and its message says what to write
//! instead. The reader reports all mistakes of a file. IPv6 packets with an authentication header are denied,
//! since the reader does not look behind it. So are later fragments whose first header is another extension
//! header. Unknown types of routing headers are not denied. `logamount` is accepted but does not stop the
//! log. The bytes counted at layer 2 for received packets include those behind the packet. The rules do not
//! see what the router itself sends: it takes the kernel path.

mod action;
mod address;
mod body;
mod chains;
mod conditions;
mod guard;
mod list;
mod names;
mod nat;
mod nats;
mod options;
mod redirects;
mod rule;
mod state_rules;
mod states;
mod table;
#[cfg(test)]
pub(crate) mod tests;
mod words;

use super::ir::Ruleset;
use crate::mistake::{Ledger, Mistake};
use list::List;
use rule::{Action, Links, Lookup, Rule, Test};
use table::Kind;

/// Reads a rule file; `file` is its name, for messages.
///
/// # Errors
/// Every mistake found. A rule that cannot be executed exactly is a mistake too: the kernel cannot
/// decide instead, as it does not know the rules.
pub fn read(text: &str, file: &str) -> Result<Ruleset, Vec<Mistake>> {
    let mut ledger = Ledger::new(file, text);
    let list = List::read(text, &mut ledger);
    for rule in &list.rules {
        check_relations(&list, rule, &mut ledger);
    }
    let rules = chains::chains(&list, file);
    if rules.check().is_err() {
        let keeps = |rule: &&Rule| rule.keep.is_some();
        if let Some(rule) = list.rules.iter().find(keeps) {
            ledger.relation(
                rule.span.clone(),
                "packets with states of several names could go in a loop",
                "give all states one name, or end the rules that keep them with allow or deny",
            );
            return Err(ledger.finish());
        }
        let calls = |rule: &&Rule| matches!(rule.action, Action::Call(_));
        let place = list.rules.iter().find(calls).map_or(0..0, |rule| rule.span.clone());
        ledger.relation(
            place,
            "the calls form a loop, or are nested more than 16 deep",
            "end each called part with return, and call forwards only",
        );
    }
    let mistakes = ledger.finish();
    if mistakes.is_empty() { Ok(rules) } else { Err(mistakes) }
}

/// Reports what is wrong with a rule in the context of others: pipes of rules that run, tables of another
/// type.
fn check_relations(list: &List, rule: &Rule, ledger: &mut Ledger<'_>) {
    if list.disabled >> rule.set & 1 == 1 {
        return;
    }
    if rule.action == Action::Pipe {
        ledger.relation(
            rule.span.clone(),
            "Tollway does not support pipes and queues yet",
            "write allow instead, or disable the rule's set",
        );
    }
    if let Action::Nat(nat) = rule.action {
        check_nat(list, rule, nat, ledger);
    }
    if rule.action == Action::Return && rule.keep.is_some() {
        ledger.relation(
            rule.span.clone(),
            "a rule that returns keeps no states",
            "keep the state in a rule before, with count",
        );
    }
    let calls = matches!(rule.action, Action::Call(_));
    if calls && list.rules.iter().any(|other| other.checks().is_some() || other.keep.is_some()) {
        ledger.relation(
            rule.span.clone(),
            "Tollway does not support call in a file with states yet",
            "write skipto instead, and a skipto back",
        );
    }
    check_tables(list, rule, ledger);
}

/// Reports a rule that translates by an instance that is not there, or beside rules about layer 2.
fn check_nat(list: &List, rule: &Rule, nat: Option<u16>, ledger: &mut Ledger<'_>) {
    let span = || rule.span.clone();
    let mut instances = list.nats.iter().map(|nat| nat.config.number);
    match nat {
        Some(number) if !instances.any(|one| one == number) => {
            let what = format!("there is no nat instance {number}");
            ledger.relation(span(), what, format!("add the line: nat {number} config if LINK"));
        }
        None if list.nats.is_empty() => {
            ledger.relation(span(), "there is no nat instance", "add a line: nat 1 config if LINK");
        }
        _ => {}
    }
    let is_active = |rule: &&Rule| list.disabled >> rule.set & 1 == 0;
    let active: Vec<Rule> = list.rules.iter().filter(is_active).cloned().collect();
    if chains::passes(&active).iter().any(|pass| pass.is_ether()) {
        ledger.relation(
            span(),
            "Tollway does not support nat in a file with rules about layer 2 yet",
            "take out layer2, mac and mac-type, or filter by addresses instead",
        );
    }
}

fn check_tables(list: &List, rule: &Rule, ledger: &mut Ledger<'_>) {
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
