//! Simple changes to texts, as fuzzers make them.

use crate::dice::Dice;

/// The material for changes of a language's texts.
#[derive(Clone, Copy)]
pub struct Changes {
    /// Texts that come before a value.
    pub before: &'static str,
    /// Texts that follow a value.
    pub ends: &'static [char],
    /// Words that lengthen a text or replace a value.
    pub words: &'static [&'static str],
}

/// The last position up to `at` where a character begins.
pub fn floor(text: &str, at: usize) -> usize {
    (0..=at.min(text.len())).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0)
}

/// A text after one of the changes that fuzzers make.
pub fn changed(text: &str, other: &str, with: Changes, dice: &mut Dice) -> String {
    let at = floor(text, dice.below(text.len() + 1));
    let end = floor(text, at + dice.below(12)).max(at);
    let (before, cut, after) = (&text[..at], &text[at..end], &text[end..]);
    match dice.below(7) {
        0 => [before, after].concat(),
        1 => [before, cut, cut, after].concat(),
        2 => [before, dice.pick(with.words), after].concat(),
        3 => [before, char::from(dice.roll() as u8).encode_utf8(&mut [0; 4]), after].concat(),
        4 => [before, &other[floor(other, dice.below(other.len() + 1))..]].concat(),
        5 => lines(text, other, dice),
        _ => value(text, with, dice),
    }
}

/// A text with one of the other's lines in it, or in place of one of its own.
fn lines(text: &str, other: &str, dice: &mut Dice) -> String {
    let mut lines: Vec<_> = text.lines().collect();
    let others: Vec<_> = other.lines().collect();
    if others.is_empty() {
        return String::new();
    }
    let at = dice.below(lines.len() + 1);
    if dice.one_in(2) && at < lines.len() {
        lines.remove(at);
    }
    lines.insert(at, others[dice.below(others.len())]);
    lines.join("\n")
}

/// A text with another value behind one of its keys.
fn value(text: &str, with: Changes, dice: &mut Dice) -> String {
    let keys: Vec<_> =
        text.match_indices(with.before).map(|(at, found)| at + found.len()).collect();
    if keys.is_empty() {
        return text.to_owned();
    }
    let (before, after) = text.split_at(dice.pick(&keys));
    let after = &after[after.find(with.ends).unwrap_or(after.len())..];
    [before, dice.pick(with.words), after].concat()
}
