//! The tables of the file with their positions, before their keys are interpreted.
//!
//! Derived serde types stop at the first mistake. The reader therefore walks the spanned tree of
//! the `toml` crate, so that it can check every key separately.

use std::ops::RangeInclusive;

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::nearest::{did_you_mean, nearest};
use tollway_firewall::mistake::{Fault, Ledger, Span, quoted};

/// A value and its position.
#[derive(Clone, Debug)]
pub(super) struct At<T> {
    pub(super) value: T,
    pub(super) span: Span,
}

/// The setting of a key in the file. `Bad` has already been reported and is not reported again.
#[derive(Clone, Debug)]
pub(super) enum Setting<T> {
    Absent,
    Bad,
    Given(At<T>),
}

impl<T> Setting<T> {
    pub(super) fn given(self) -> Option<At<T>> {
        match self {
            Self::Given(at) => Some(at),
            Self::Absent | Self::Bad => None,
        }
    }

    pub(super) fn is_bad(&self) -> bool {
        matches!(self, Self::Bad)
    }

    pub(super) fn is_absent(&self) -> bool {
        matches!(self, Self::Absent)
    }

    /// Converts the value; reports a fault in the ledger.
    pub(super) fn read<U>(
        self,
        ledger: &mut Ledger<'_>,
        read: impl FnOnce(T) -> Result<U, Fault>,
    ) -> Setting<U> {
        match self {
            Self::Absent => Setting::Absent,
            Self::Bad => Setting::Bad,
            Self::Given(At { value, span }) => match read(value) {
                Ok(value) => Setting::Given(At { value, span }),
                Err(fault) => {
                    ledger.value(span, fault);
                    Setting::Bad
                }
            },
        }
    }
}

/// One table of the file.
pub(super) struct Section<'a> {
    /// Its name in messages: `port wan`.
    pub(super) title: String,
    /// The place to mark when a key is missing.
    pub(super) span: Span,
    table: &'a DeTable<'a>,
}

impl<'a> Section<'a> {
    pub(super) fn new(title: String, span: Span, table: &'a DeTable<'a>) -> Self {
        Self { title, span, table }
    }

    /// The position of a key, if present.
    pub(super) fn key_span(&self, key: &str) -> Option<Span> {
        self.table.get_key_value(key).map(|(key, _)| key.span())
    }

    /// Reports every unknown key.
    pub(super) fn check_keys(&self, known: &[&str], ledger: &mut Ledger<'_>) {
        for (key, _) in self.table {
            if known.contains(&key.get_ref().as_ref()) {
                continue;
            }
            let what = format!("{} has the unknown key {}", self.title, quoted(key.get_ref()));
            let remove = || format!("remove it; the keys here are {}", known.join(", "));
            let remedy = did_you_mean(key.get_ref(), known, remove);
            ledger.relation(key.span(), what, remedy);
        }
    }

    /// Reports that a key is missing.
    pub(super) fn missing(&self, key: &str, remedy: &str, ledger: &mut Ledger<'_>) {
        self.missing_any(key, &[key], remedy, ledger);
    }

    /// Reports that all of some keys are missing, unless one is present but mistyped and reported
    /// already.
    pub(super) fn missing_any(
        &self,
        what: &str,
        keys: &[&str],
        remedy: &str,
        ledger: &mut Ledger<'_>,
    ) {
        let mistyped = self
            .table
            .keys()
            .any(|key| nearest(key.get_ref(), keys).is_some() && ledger.has_entry(&key.span()));
        if !mistyped {
            ledger.relation(self.span.clone(), format!("{} has no {what}", self.title), remedy);
        }
    }

    pub(super) fn text(&self, key: &str, ledger: &mut Ledger<'_>) -> Setting<&'a str> {
        self.setting(key).read(ledger, |value| match value {
            DeValue::String(text) => Ok(text.as_ref()),
            other => self.wrong_type(key, other, "a string", "put the value in quotes"),
        })
    }

    pub(super) fn boolean(&self, key: &str, ledger: &mut Ledger<'_>) -> Setting<bool> {
        self.setting(key).read(ledger, |value| match value {
            DeValue::Boolean(value) => Ok(*value),
            other => {
                self.wrong_type(key, other, "true or false", "write true or false without quotes")
            }
        })
    }

    pub(super) fn integer(
        &self,
        key: &str,
        range: RangeInclusive<u32>,
        ledger: &mut Ledger<'_>,
    ) -> Setting<u32> {
        self.number(key, range, ledger, |found, range| out_of_range(key, found, range))
    }

    /// Like [`Section::integer`]; `refuse` describes a number outside the range.
    pub(super) fn number(
        &self,
        key: &str,
        range: RangeInclusive<u32>,
        ledger: &mut Ledger<'_>,
        refuse: impl Fn(&str, &RangeInclusive<u32>) -> Fault,
    ) -> Setting<u32> {
        self.setting(key).read(ledger, |value| match value {
            DeValue::Integer(number) => {
                let parsed = i64::from_str_radix(number.as_str(), number.radix()).ok();
                match parsed.and_then(|n| u32::try_from(n).ok()).filter(|n| range.contains(n)) {
                    Some(n) => Ok(n),
                    None => Err(refuse(&number.to_string(), &range)),
                }
            }
            other => {
                let example = format!("write a whole number without quotes, as {key} = ");
                let example = match other.as_str().and_then(|text| text.parse::<u32>().ok()) {
                    Some(n) if range.contains(&n) => format!("{example}{n}"),
                    _ => format!("{example}{}", range.start()),
                };
                self.wrong_type(key, other, "a whole number", &example)
            }
        })
    }

    pub(super) fn list(
        &self,
        key: &str,
        ledger: &mut Ledger<'_>,
    ) -> Setting<&'a [Spanned<DeValue<'a>>]> {
        self.setting(key).read(ledger, |value| match value {
            DeValue::Array(list) => Ok(list.as_ref()),
            other => self.wrong_type(key, other, "a list", "put the value in square brackets"),
        })
    }

    /// The tables under `key`, each with its name, in file order: `[ports.wan]`, `[ports.lan]`.
    pub(super) fn tables(
        &self,
        key: &str,
        title: &str,
        ledger: &mut Ledger<'_>,
    ) -> Vec<(At<&'a str>, Section<'a>)> {
        let hint = format!("write one [{key}.NAME] table for each");
        let table = self.setting(key).read(ledger, |value| match value {
            DeValue::Table(table) => Ok(table),
            other => self.wrong_type(key, other, "a table", &hint),
        });
        let Some(At { value: table, .. }) = table.given() else { return Vec::new() };
        let mut found = Vec::new();
        for (name, value) in table {
            let at = At { value: name.get_ref().as_ref(), span: name.span() };
            let DeValue::Table(inner) = value.get_ref() else {
                let fault = Fault::new(
                    format!("{key}.{} is {}, not a table", bare(at.value), article(value)),
                    &*hint,
                );
                ledger.value(at.span, fault);
                continue;
            };
            let section = Section::new(format!("{title} {}", bare(at.value)), name.span(), inner);
            found.push((at, section));
        }
        found.sort_by_key(|(name, _)| name.span.start);
        found
    }

    /// The tables in the list under `key`: `[[routes]]`, or `nexthops = [{ ... }]`.
    pub(super) fn list_of_tables(
        &self,
        key: &str,
        title: &str,
        ledger: &mut Ledger<'_>,
    ) -> Setting<Vec<Section<'a>>> {
        let (span, list) = match self.list(key, ledger) {
            Setting::Absent => return Setting::Absent,
            Setting::Bad => return Setting::Bad,
            Setting::Given(at) => (at.span, at.value),
        };
        let mut sections = Vec::new();
        for item in list {
            match item.get_ref() {
                DeValue::Table(table) => {
                    sections.push(Section::new(title.to_owned(), item.span(), table));
                }
                _ => {
                    let what = format!("{key} holds {}, not a table", article(item));
                    let remedy = "write each as { key = value, ... }";
                    ledger.value(item.span(), Fault::new(what, remedy));
                }
            }
        }
        // If an item was wrong and reported, the rest is not what the user wrote.
        if sections.len() < list.len() {
            Setting::Bad
        } else {
            Setting::Given(At { value: sections, span })
        }
    }

    fn setting(&self, key: &str) -> Setting<&'a DeValue<'a>> {
        match self.table.get(key) {
            None => Setting::Absent,
            Some(value) => Setting::Given(At { value: value.get_ref(), span: value.span() }),
        }
    }

    fn wrong_type<T>(
        &self,
        key: &str,
        found: &DeValue<'_>,
        wanted: &str,
        remedy: &str,
    ) -> Result<T, Fault> {
        let what = format!("{key} of {} is {}, not {wanted}", self.title, article_of(found));
        Fault::err(what, remedy)
    }
}

/// Formats a name from the file for running text: escaped and shortened, but not in quotes.
pub(super) fn bare(name: &str) -> String {
    let text = quoted(name);
    let inner = text.trim_start_matches('"').trim_end_matches('"');
    if inner.is_empty() { text } else { inner.to_owned() }
}

fn out_of_range(key: &str, found: &str, range: &RangeInclusive<u32>) -> Fault {
    let found: String = found.chars().take(24).collect();
    let (low, high) = (range.start(), range.end());
    Fault::new(
        format!("{key} is {found}, out of range"),
        format!("write a number from {low} to {high}"),
    )
}

fn article(value: &Spanned<DeValue<'_>>) -> &'static str {
    article_of(value.get_ref())
}

fn article_of(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) => "a whole number",
        DeValue::Float(_) => "a number with a fraction",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date or time",
        DeValue::Array(_) => "a list",
        DeValue::Table(_) => "a table",
    }
}
