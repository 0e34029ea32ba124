//! Words of rules that keep and check states.

use super::rule::{Keep, StateOf};
use super::words::{Word, Words};
use crate::ir::StateLimit;
use crate::mistake::{Span, SpannedFault, quoted, wrong};

/// The name of states whose rule gives none.
const DEFAULT: &str = "default";

/// The longest name.
const MOST_LETTERS: usize = 63;

/// The options of rules that keep states.
const OPTIONS: [&str; 6] =
    ["keep-state", "limit", "record-state", "set-limit", "defer-action", "defer-immediate-action"];

/// Says whether a word begins an option of rules that keep states.
pub(super) fn is_option(text: &str) -> bool {
    OPTIONS.contains(&text)
}

/// The options of a rule that keeps states, as far as they have been parsed.
#[derive(Default)]
pub(super) struct Options {
    keep: Option<Keep>,
    defers: Option<Span>,
}

impl Options {
    /// Parses one of them.
    pub(super) fn option(&mut self, words: &mut Words<'_>) -> Result<(), SpannedFault> {
        let place = words.place();
        if matches!(words.peek(), Some("defer-action" | "defer-immediate-action")) {
            words.next();
            self.defers = Some(place);
            return Ok(());
        }
        if self.keep.replace(keep(words)?).is_some() {
            return wrong(&place, "the rule keeps a state already", "write one option for states");
        }
        Ok(())
    }

    /// How the rule keeps states, if it does.
    pub(super) fn finish(self) -> Result<Option<Keep>, SpannedFault> {
        match (self.keep, self.defers) {
            (Some(keep), defers) => Ok(Some(Keep { defers: defers.is_some(), ..keep })),
            (None, Some(place)) => wrong(
                &place,
                "defer-action is for packets with a state, and the rule keeps none",
                "write record-state or keep-state, too",
            ),
            (None, None) => Ok(None),
        }
    }
}

/// Parses what follows `check-state`.
pub(super) fn checked(words: &mut Words<'_>) -> Result<StateOf, SpannedFault> {
    Ok(match name(words)? {
        Some(name) if name == "any" => StateOf::Any,
        Some(name) => StateOf::Name(name),
        None => StateOf::Name(DEFAULT.to_owned()),
    })
}

/// Parses an option that keeps states.
fn keep(words: &mut Words<'_>) -> Result<Keep, SpannedFault> {
    let word = words.need("an option")?;
    let limits = matches!(word.text.as_str(), "limit" | "set-limit");
    let limit = if limits { Some(limit(words)?) } else { None };
    let place = words.place();
    let name = name(words)?;
    if name.as_deref() == Some("any") {
        return wrong(&place, "\":any\" is no name of a state", "write another name, or none");
    }
    Ok(Keep {
        name: name.unwrap_or_else(|| DEFAULT.to_owned()),
        limit,
        checks: matches!(word.text.as_str(), "keep-state" | "limit"),
        defers: false,
    })
}

/// The option may be neither inverted nor one of several.
pub(super) fn misplaced<T>(word: &Word) -> Result<T, SpannedFault> {
    wrong(
        &word.span,
        format!("{} cannot be inverted, or one of several", quoted(&word.text)),
        "write it once, outside of blocks",
    )
}

/// A name with its colon, if there is one.
fn name(words: &mut Words<'_>) -> Result<Option<String>, SpannedFault> {
    let Some(name) = words.peek().and_then(|text| text.strip_prefix(':')).map(str::to_owned) else {
        return Ok(None);
    };
    let word = words.need("a name")?;
    let is_letter = |letter: char| letter.is_ascii_alphanumeric() || "_-.".contains(letter);
    if name.is_empty() || name.len() > MOST_LETTERS || !name.chars().all(is_letter) {
        return wrong(
            &word.span,
            format!("{} is no name of a state", quoted(&word.text)),
            format!("write a colon and up to {MOST_LETTERS} letters, digits, _, - or ."),
        );
    }
    Ok(Some(name))
}

fn limit(words: &mut Words<'_>) -> Result<StateLimit, SpannedFault> {
    let mut limit = StateLimit::default();
    let mut parts = 0;
    while let Some(text) = words.peek() {
        match text {
            "src-addr" => limit.source = true,
            "dst-addr" => limit.destination = true,
            "src-port" => limit.source_port = true,
            "dst-port" => limit.destination_port = true,
            "all" => {
                limit = StateLimit {
                    source: true,
                    destination: true,
                    source_port: true,
                    destination_port: true,
                    most: 0,
                };
            }
            _ => break,
        }
        parts += 1;
        words.next();
    }
    if parts == 0 {
        let what = "limit has nothing to count by";
        return wrong(&words.place(), what, "write src-addr, src-port, dst-addr or dst-port");
    }
    if words.peek() == Some("tablearg") {
        let what = "limit cannot take its number out of a table";
        return wrong(&words.place(), what, "write a rule for each number");
    }
    let place = words.place();
    limit.most = words.number("number of connections", 65_534)?;
    if limit.most == 0 {
        return wrong(&place, "a limit of 0 lets nothing by", "write deny, or a higher number");
    }
    Ok(limit)
}
