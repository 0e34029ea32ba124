//! The lines of a save: tables, chains with policies and counts, and rules.

use std::collections::HashMap;

use super::Family;
use super::rule::{self, Parsed};
use super::words::{self, Word};
use crate::ir::{Hook, Policy};
use crate::mistake::{Fault, Ledger, Span, SpannedFault, quoted, wrong};

/// A parsed table.
#[derive(Debug)]
pub(super) struct Table {
    pub(super) kind: &'static Kind,
    pub(super) chains: Vec<Chain>,
    /// The position of each chain, by name.
    names: HashMap<String, usize>,
    /// Its name in the file, until its `COMMIT`.
    open: Option<Span>,
}

/// A known table.
#[derive(Debug)]
pub(super) struct Kind {
    pub(super) name: &'static str,
    /// Its built-in chains with their hooks and priorities.
    chains: &'static [(&'static str, Hook, i32)],
}

/// A chain of a table.
#[derive(Debug)]
pub(super) struct Chain {
    pub(super) name: String,
    /// The line that declares it.
    pub(super) line: usize,
    /// Its hook, priority and policy; `None` for a user chain.
    pub(super) base: Option<(Hook, i32, Policy)>,
    /// Initial counts of its policy.
    pub(super) counts: (u64, u64),
    pub(super) rules: Vec<Line>,
}

/// A rule with its place.
#[derive(Debug)]
pub(super) struct Line {
    pub(super) number: usize,
    pub(super) text: String,
    pub(super) counts: (u64, u64),
    pub(super) rule: Parsed,
}

const RAW: i32 = -300;
const MANGLE: i32 = -150;
const DNAT: i32 = -100;
const FILTER: i32 = 0;
const SECURITY: i32 = 50;
const SNAT: i32 = 100;

/// Longest name of a chain: `XT_EXTENSION_MAXNAMELEN` without the NUL.
const LONGEST_NAME: usize = 28;

const KINDS: [Kind; 5] = [
    Kind {
        name: "raw",
        chains: &[("PREROUTING", Hook::Prerouting, RAW), ("OUTPUT", Hook::Output, RAW)],
    },
    Kind {
        name: "mangle",
        chains: &[
            ("PREROUTING", Hook::Prerouting, MANGLE),
            ("INPUT", Hook::Input, MANGLE),
            ("FORWARD", Hook::Forward, MANGLE),
            ("OUTPUT", Hook::Output, MANGLE),
            ("POSTROUTING", Hook::Postrouting, MANGLE),
        ],
    },
    Kind {
        name: "nat",
        chains: &[
            ("PREROUTING", Hook::Prerouting, DNAT),
            ("INPUT", Hook::Input, SNAT),
            ("OUTPUT", Hook::Output, DNAT),
            ("POSTROUTING", Hook::Postrouting, SNAT),
        ],
    },
    Kind {
        name: "filter",
        chains: &[
            ("INPUT", Hook::Input, FILTER),
            ("FORWARD", Hook::Forward, FILTER),
            ("OUTPUT", Hook::Output, FILTER),
        ],
    },
    Kind {
        name: "security",
        chains: &[
            ("INPUT", Hook::Input, SECURITY),
            ("FORWARD", Hook::Forward, SECURITY),
            ("OUTPUT", Hook::Output, SECURITY),
        ],
    },
];

/// Parses all lines.
pub(super) fn tables(text: &str, family: Family, ledger: &mut Ledger<'_>) -> Vec<Table> {
    let mut tables: Vec<Table> = Vec::new();
    let (mut start, mut number) = (0, 0);
    for whole in text.split_inclusive('\n') {
        number += 1;
        if let Err((span, fault)) = line(&mut tables, whole, start, number, family) {
            ledger.value(span, fault);
        }
        start += whole.len();
    }
    if let Some(span) = tables.last().and_then(|table| table.open.clone()) {
        let fault = Fault::new("this table has no COMMIT", "write it behind the table's last rule");
        ledger.value(span, fault);
    }
    tables
}

fn line(
    tables: &mut Vec<Table>,
    whole: &str,
    start: usize,
    number: usize,
    family: Family,
) -> Result<(), SpannedFault> {
    let trimmed = whole.trim_start();
    if trimmed.is_empty() || trimmed.starts_with('#') {
        return Ok(());
    }
    let words = words::split(whole, start)?;
    let Some((first, rest)) = words.split_first() else { return Ok(()) };
    let open = tables.last_mut().filter(|table| table.open.is_some());
    match (first.text.as_bytes().first(), open) {
        (Some(b'*'), Some(_)) => wrong(
            &first.span,
            "this table begins before the one above ends",
            "write COMMIT behind the table's last rule",
        ),
        (Some(b'*'), None) => begin(tables, first, rest),
        (_, None) => wrong(
            &first.span,
            format!("{} is in no table", quoted(&first.text)),
            "write the table's line before it, like *filter",
        ),
        (Some(b':'), Some(table)) => table.declare(first, rest, number),
        (_, Some(table)) if first.is("COMMIT") => {
            table.open = None;
            no_more(rest)
        }
        (_, Some(table)) => table.rule(&words, whole, start, number, family),
    }
}

fn begin(tables: &mut Vec<Table>, word: &Word, rest: &[Word]) -> Result<(), SpannedFault> {
    let name = &word.text[1..];
    let Some(kind) = KINDS.iter().find(|kind| kind.name == name) else {
        return wrong(
            &word.span,
            format!("{} is no table", quoted(name)),
            "write raw, mangle, nat, filter or security",
        );
    };
    let again = tables.iter().any(|table| table.kind.name == name);
    tables.push(Table {
        kind,
        chains: Vec::new(),
        names: HashMap::new(),
        open: Some(word.span.clone()),
    });
    if again {
        return wrong(&word.span, format!("the table {name} is there twice"), "leave one");
    }
    no_more(rest)
}

fn no_more(rest: &[Word]) -> Result<(), SpannedFault> {
    match rest.first() {
        None => Ok(()),
        Some(word) => {
            wrong(&word.span, format!("{} is too much here", quoted(&word.text)), "take it out")
        }
    }
}

impl Table {
    pub(super) fn is_nat(&self) -> bool {
        self.kind.name == "nat"
    }

    /// The position of a chain, by name.
    pub(super) fn position(&self, name: &str) -> Option<usize> {
        self.names.get(name).copied()
    }

    /// A line like `:FORWARD DROP [7:420]`.
    fn declare(&mut self, first: &Word, rest: &[Word], line: usize) -> Result<(), SpannedFault> {
        let name = &first.text[1..];
        let sound = !name.is_empty() && name.len() <= LONGEST_NAME && !name.starts_with(['-', '!']);
        if !sound || name.contains(|char: char| char.is_control()) {
            return wrong(
                &first.span,
                format!("{} is no name of a chain", quoted(name)),
                format!("write 1 to {LONGEST_NAME} characters that do not begin with - or !"),
            );
        }
        if self.position(name).is_some() {
            return wrong(&first.span, format!("the chain {name} is there twice"), "leave one");
        }
        let (policy, rest) = match rest.split_first() {
            Some((policy, rest)) => (Some(policy), rest),
            None => (None, rest),
        };
        let hook = self.kind.chains.iter().find(|(own, ..)| *own == name);
        let base = match (hook, policy.map(|policy| policy.text.as_str())) {
            (Some((_, hook, priority)), Some("ACCEPT")) => Some((*hook, *priority, Policy::Accept)),
            (Some((_, hook, priority)), Some("DROP")) => Some((*hook, *priority, Policy::Drop)),
            (None, None | Some("-")) => None,
            (Some(_), _) => {
                return wrong(
                    &policy.unwrap_or(first).span,
                    format!("the chain {name} needs a policy"),
                    "write ACCEPT or DROP behind it",
                );
            }
            (None, _) => {
                return wrong(
                    &policy.unwrap_or(first).span,
                    format!(
                        "{name} is no built-in chain of {}, so it has no policy",
                        self.kind.name
                    ),
                    "write - behind it",
                );
            }
        };
        let (counts, rest) = match rest.split_first() {
            Some((word, rest)) => (counts(word)?, rest),
            None => ((0, 0), rest),
        };
        no_more(rest)?;
        let name = name.to_owned();
        self.names.insert(name.clone(), self.chains.len());
        self.chains.push(Chain { name, line, base, counts, rules: Vec::new() });
        Ok(())
    }

    /// A line like `[7:420] -A FORWARD -j DROP`.
    fn rule(
        &mut self,
        words: &[Word],
        whole: &str,
        start: usize,
        number: usize,
        family: Family,
    ) -> Result<(), SpannedFault> {
        let (counts, first, rest) = match words {
            [word, first, rest @ ..] if word.text.starts_with('[') => (counts(word)?, first, rest),
            [first, rest @ ..] => ((0, 0), first, rest),
            [] => return Ok(()),
        };
        if !first.is("-A") && !first.is("--append") {
            return wrong(
                &first.span,
                format!("{} is no line of a save", quoted(&first.text)),
                "load the rules and let iptables-save write them",
            );
        }
        let Some((name, rest)) = rest.split_first() else {
            return wrong(
                &first.span,
                format!("{} has no chain", first.text),
                "write one behind it",
            );
        };
        let Some(chain) = self.position(&name.text) else {
            return wrong(
                &name.span,
                format!("the table {} has no chain {}", self.kind.name, quoted(&name.text)),
                "declare it above with a line like :NAME - [0:0]",
            );
        };
        let rule = rule::parse(first, rest, family)?;
        let text = whole.get(first.span.start - start..).unwrap_or_default().trim_end().to_owned();
        self.chains[chain].rules.push(Line { number, text, counts, rule });
        Ok(())
    }
}

/// Packets and bytes, like `[7:420]`.
fn counts(word: &Word) -> Result<(u64, u64), SpannedFault> {
    let inner = word.text.strip_prefix('[').and_then(|text| text.strip_suffix(']'));
    let counts = inner.and_then(|text| text.split_once(':'));
    let decimal = |text: &str| {
        text.bytes().all(|byte| byte.is_ascii_digit()).then(|| text.parse().ok()).flatten()
    };
    match counts.and_then(|(packets, bytes)| Some((decimal(packets)?, decimal(bytes)?))) {
        Some(counts) => Ok(counts),
        None => wrong(
            &word.span,
            format!("{} are no counts", quoted(&word.text)),
            "write packets and bytes, like [7:420]",
        ),
    }
}
