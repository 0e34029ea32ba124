//! Tables: addresses, links or numbers, each with a value.

use std::collections::BTreeMap;

use super::address;
use super::names;
use super::words::{Word, Words, number};
use crate::ir::Range;
use crate::mistake::{SpannedFault, quoted, wrong};

/// The type of a table's keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Address,
    Link,
    Number,
}

/// A key of a table.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Key {
    /// An IPv4 prefix: its address and length.
    Four(u32, u8),
    /// An IPv6 prefix.
    Six(u128, u8),
    Link(String),
    Number(u32),
}

/// A table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Table {
    pub(super) kind: Kind,
    pub(super) entries: BTreeMap<Key, u32>,
}

/// Tables by name.
pub(super) type Tables = BTreeMap<String, Table>;

impl Table {
    fn new(kind: Kind) -> Self {
        Self { kind, entries: BTreeMap::new() }
    }

    /// Ranges of one version's addresses, not overlapping: those whose longest prefix has this value, or all.
    pub(super) fn prefixes(&self, version: u8, value: Option<u32>) -> Vec<Range> {
        let prefixes = self.entries.iter().filter_map(|(key, own)| match *key {
            Key::Four(address, len) if version == 4 => {
                Some((Range::prefix(address.into(), len.into(), 32), *own))
            }
            Key::Six(address, len) if version == 6 => {
                Some((Range::prefix(address, len.into(), 128), *own))
            }
            _ => None,
        });
        join(layers(prefixes.collect()), value)
    }

    /// Ranges of numbers with this value, or all.
    pub(super) fn numbers(&self, value: Option<u32>) -> Vec<Range> {
        let numbers = self.entries.iter().filter_map(|(key, own)| match key {
            Key::Number(number) => Some((Range::one((*number).into()), *own)),
            _ => None,
        });
        join(numbers.collect(), value)
    }

    /// Links with this value, or all.
    pub(super) fn links(&self, value: Option<u32>) -> Vec<String> {
        let links = self.entries.iter().filter_map(|(key, own)| match key {
            Key::Link(name) if value.is_none_or(|value| value == *own) => Some(name.clone()),
            _ => None,
        });
        links.collect()
    }
}

/// Turns nested prefixes into ranges that do not overlap; inner prefixes win.
fn layers(mut prefixes: Vec<(Range, u32)>) -> Vec<(Range, u32)> {
    prefixes.sort_by_key(|(range, _)| (range.first, std::cmp::Reverse(range.last)));
    let (mut out, mut open) = (Vec::new(), Vec::<(u128, u32)>::new());
    // The first number that is not covered yet; `None` after the last.
    let mut next = Some(0_u128);
    let mut upto = |next: &mut Option<u128>, last: u128, value: u32| {
        if let Some(first) = next.filter(|first| *first <= last) {
            out.push((Range::new(first, last), value));
            *next = last.checked_add(1);
        }
    };
    for (range, value) in prefixes {
        while let Some((last, outer)) = open.last().copied() {
            if last >= range.first {
                if let Some(before) = range.first.checked_sub(1) {
                    upto(&mut next, before, outer);
                }
                break;
            }
            upto(&mut next, last, outer);
            open.pop();
        }
        next = Some(range.first);
        open.push((range.last, value));
    }
    while let Some((last, outer)) = open.pop() {
        upto(&mut next, last, outer);
    }
    out
}

/// Ranges of one value, with adjacent ones merged.
fn join(ranges: Vec<(Range, u32)>, value: Option<u32>) -> Vec<Range> {
    let mut joined: Vec<Range> = Vec::new();
    for (range, own) in ranges {
        if value.is_some_and(|value| value != own) {
            continue;
        }
        match joined.last_mut() {
            Some(last) if last.last.checked_add(1) == Some(range.first) => last.last = range.last,
            _ => joined.push(range),
        }
    }
    joined
}

/// Executes the command that follows `table`.
pub(super) fn command(
    tables: &mut Tables,
    words: &mut Words<'_>,
    quiet: bool,
) -> Result<(), SpannedFault> {
    let name = words.need("the table's name")?;
    if name.text == "all" {
        let word = words.need("what to do")?;
        return match word.text.as_str() {
            "flush" | "destroy" => {
                tables.clear();
                Ok(())
            }
            "list" | "info" | "detail" => Ok(()),
            _ => unknown(word),
        };
    }
    if !address::table_name(&name.text) {
        return wrong(
            &name.span,
            format!("{} is no name of a table", quoted(&name.text)),
            "write letters, digits, - and _",
        );
    }
    let word = words.need("what to do with the table")?;
    match word.text.as_str() {
        "create" => create(tables, name, words),
        "add" => add(tables, name, words, quiet),
        "atomic" if words.take("add") => add(tables, name, words, quiet),
        "delete" => delete(tables, name, words),
        "flush" => {
            if let Some(table) = tables.get_mut(&name.text) {
                table.entries.clear();
            }
            Ok(())
        }
        "destroy" => {
            tables.remove(&name.text);
            Ok(())
        }
        "list" | "info" | "detail" | "lookup" | "lock" | "unlock" => Ok(()),
        _ => unknown(word),
    }
}

fn unknown(word: &Word) -> Result<(), SpannedFault> {
    wrong(
        &word.span,
        format!("{} is no command for tables here", quoted(&word.text)),
        "write create, add, delete, flush or destroy",
    )
}

fn create(tables: &mut Tables, name: &Word, words: &mut Words<'_>) -> Result<(), SpannedFault> {
    let mut kind = Kind::Address;
    let mut missing = false;
    while let Some(word) = words.next() {
        match word.text.as_str() {
            "type" => kind = read_kind(words.need("the table's type")?)?,
            "valtype" => valtype(words.need("the type of values")?)?,
            "algo" => {
                words.need("the algorithm")?;
            }
            "limit" => {
                words.number("limit", u32::MAX)?;
            }
            "missing" | "or-flush" => missing = true,
            "locked" => {}
            _ => {
                return wrong(
                    &word.span,
                    format!("{} is no option of a table here", quoted(&word.text)),
                    "write type, valtype, algo, limit, locked, missing or or-flush",
                );
            }
        }
    }
    if tables.contains_key(&name.text) && !missing {
        return wrong(
            &name.span,
            format!("table {} is there already", quoted(&name.text)),
            "create it once, before its elements",
        );
    }
    tables.entry(name.text.clone()).or_insert_with(|| Table::new(kind));
    Ok(())
}

fn read_kind(word: &Word) -> Result<Kind, SpannedFault> {
    match word.text.as_str() {
        "addr" | "cidr" => Ok(Kind::Address),
        "iface" => Ok(Kind::Link),
        "number" => Ok(Kind::Number),
        _ => wrong(
            &word.span,
            format!("Tollway does not support tables of type {}", quoted(&word.text)),
            "use addr, iface or number",
        ),
    }
}

/// Accepts only the types of values that rules can compare.
fn valtype(word: &Word) -> Result<(), SpannedFault> {
    let kept = |part: &str| matches!(part, "legacy" | "tag" | "skipto" | "number");
    if word.text.split(',').all(kept) {
        return Ok(());
    }
    wrong(
        &word.span,
        format!("Tollway does not support values of type {}", quoted(&word.text)),
        "leave valtype out and compare numbers: table(name,number)",
    )
}

fn key(kind: Kind, word: &Word) -> Result<Key, SpannedFault> {
    let text = word.text.as_str();
    let key = match kind {
        Kind::Address => {
            let four = || {
                let (address, mask) = address::four(text)?;
                let len = mask.leading_ones();
                (mask.count_ones() == len).then_some(Key::Four(address, len as u8))
            };
            address::six(text).map(|(address, len)| Key::Six(address, len)).or_else(four)
        }
        Kind::Link => (!text.contains(['*', '/'])).then(|| Key::Link(text.to_owned())),
        Kind::Number => {
            number(text, u32::MAX).or_else(|| names::port(text).map(u32::from)).map(Key::Number)
        }
    };
    let what = match kind {
        Kind::Address => "an address or prefix",
        Kind::Link => "the name of a link",
        Kind::Number => "a number",
    };
    key.map_or_else(
        || wrong(&word.span, format!("{} is not {what}", quoted(text)), format!("write {what}")),
        Ok,
    )
}

fn add(
    tables: &mut Tables,
    name: &Word,
    words: &mut Words<'_>,
    quiet: bool,
) -> Result<(), SpannedFault> {
    let table = tables.entry(name.text.clone()).or_insert_with(|| Table::new(Kind::Address));
    loop {
        let word = words.need("an element")?;
        let key = key(table.kind, word)?;
        let value = match words.peek().map(address::value) {
            // A number followed by more words is the next key only in tables of numbers.
            Some(Some(value)) if !is_key(table.kind, words) => {
                words.next();
                value
            }
            _ => 0,
        };
        let before = table.entries.get(&key).copied();
        if before.is_some_and(|before| before != value) && !quiet {
            return wrong(
                &word.span,
                format!("{} is in the table already", quoted(&word.text)),
                "leave one of the two out, or write -q for the last to count",
            );
        }
        table.entries.insert(key, value);
        if words.peek().is_none() {
            return Ok(());
        }
    }
}

/// Says whether the next word, which could be a value, is a key; then the key before it has no value.
fn is_key(kind: Kind, words: &Words<'_>) -> bool {
    let dotted = words.peek().is_some_and(|text| text.contains('.'));
    kind == Kind::Address
        && dotted
        && words.peek_at(1).is_some_and(|text| number(text, u32::MAX).is_some())
}

fn delete(tables: &mut Tables, name: &Word, words: &mut Words<'_>) -> Result<(), SpannedFault> {
    let Some(table) = tables.get_mut(&name.text) else {
        return wrong(
            &name.span,
            format!("there is no table {}", quoted(&name.text)),
            "create it before, or leave the line out",
        );
    };
    while let Some(word) = words.next() {
        table.entries.remove(&key(table.kind, word)?);
    }
    Ok(())
}
