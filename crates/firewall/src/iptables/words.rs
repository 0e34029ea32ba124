//! Splits a line into words, as `iptables-restore` does.

use crate::mistake::{Span, SpannedFault, wrong};

/// A word, without its quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    /// Its position in the file.
    pub(super) span: Span,
    /// Whether it is quoted, and so not an option.
    quoted: bool,
}

impl Word {
    /// Says whether it begins an option or negates one.
    pub(super) fn is_option(&self) -> bool {
        !self.quoted && (self.text == "!" || self.text.len() > 1 && self.text.starts_with('-'))
    }

    /// Says whether it is this word, unquoted.
    pub(super) fn is(&self, text: &str) -> bool {
        !self.quoted && self.text == text
    }
}

/// Splits a line that begins at this byte of the file.
pub(super) fn split(line: &str, start: usize) -> Result<Vec<Word>, SpannedFault> {
    let mut words = Vec::new();
    let mut word: Option<Word> = None;
    let mut quote: Option<(char, usize)> = None;
    let mut chars = line.char_indices();
    while let Some((at, char)) = chars.next() {
        let at = start + at;
        let is_open = quote.is_some_and(|(open, _)| open == char);
        if is_open {
            quote = None;
        } else if quote.is_none() && char.is_ascii_whitespace() {
            words.extend(word.take());
            continue;
        }
        let word =
            word.get_or_insert_with(|| Word { text: String::new(), span: at..at, quoted: false });
        word.span.end = at + char.len_utf8();
        match char {
            _ if is_open => {}
            '"' | '\'' if quote.is_none() => {
                quote = Some((char, at));
                word.quoted = true;
            }
            '\\' if quote.is_some() => {
                let Some((at, escaped)) = chars.next() else { break };
                word.span.end = start + at + escaped.len_utf8();
                word.text.push(escaped);
            }
            _ => word.text.push(char),
        }
    }
    if let Some((_, at)) = quote {
        let span = at..start + line.len();
        return wrong(&span, "this quotation does not end on its line", "close it");
    }
    words.extend(word);
    Ok(words)
}

/// The words of a line from a position on.
pub(super) struct Cursor<'w> {
    words: &'w [Word],
}

impl<'w> Cursor<'w> {
    pub(super) const fn new(words: &'w [Word]) -> Self {
        Self { words }
    }

    pub(super) fn next(&mut self) -> Option<&'w Word> {
        let (first, rest) = self.words.split_first()?;
        self.words = rest;
        Some(first)
    }

    /// The value that an option requires.
    pub(super) fn value(&mut self, option: &Word) -> Result<&'w Word, SpannedFault> {
        self.next().map_or_else(
            || wrong(&option.span, format!("{} has no value", option.text), "write one behind it"),
            Ok,
        )
    }

    /// Skips the values of an unknown option: everything up to the next option.
    pub(super) fn skip_values(&mut self) {
        while self.words.first().is_some_and(|word| !word.is_option()) {
            self.next();
        }
    }
}
