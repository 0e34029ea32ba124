//! Splits a rule file into lines and words, each with its position.

use crate::mistake::{Span, SpannedFault, quoted, wrong};

/// A word of a line.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Word {
    pub(super) text: String,
    pub(super) span: Span,
}

/// The non-empty lines of a text. A line that ends with a backslash continues on the next.
pub(super) fn lines(text: &str) -> Vec<Vec<Word>> {
    let mut lines = Vec::new();
    let mut at = 0;
    while at < text.len() {
        let (words, end) = line(text, at);
        if !words.is_empty() {
            lines.push(words);
        }
        at = end;
    }
    lines
}

/// The words from a position to the end of its line, and the start of the next line.
fn line(text: &str, start: usize) -> (Vec<Word>, usize) {
    let mut line = Line { text, at: start, words: Vec::new() };
    while let Some(letter) = line.peek() {
        match letter {
            '\n' => {
                line.at += 1;
                break;
            }
            '\\' if line.rest().starts_with("\\\n") => line.at += 2,
            '\\' if line.rest().starts_with("\\\r\n") => line.at += 3,
            '\\' if line.rest() == "\\" || line.rest().starts_with("\\\r") => line.at += 1,
            '#' => line.skip_to_end(),
            '/' if line.rest().starts_with("//") => line.skip_to_end(),
            _ if letter.is_whitespace() => line.at += letter.len_utf8(),
            _ => line.word(),
        }
    }
    (line.words, line.at)
}

struct Line<'a> {
    text: &'a str,
    at: usize,
    words: Vec<Word>,
}

impl<'a> Line<'a> {
    fn rest(&self) -> &'a str {
        self.text.get(self.at..).unwrap_or_default()
    }

    fn peek(&self) -> Option<char> {
        self.rest().chars().next()
    }

    fn skip_to_end(&mut self) {
        self.at += self.rest().find('\n').unwrap_or(self.rest().len());
    }

    /// Reads a word. Spaces after a comma do not end it, as in ipfw(8).
    fn word(&mut self) {
        let start = self.at;
        let mut word = String::new();
        let mut quote = None;
        while let Some(letter) = self.peek() {
            match letter {
                '\n' | '#' => break,
                '\'' | '"' if quote.is_none() => quote = Some(letter),
                _ if quote == Some(letter) => quote = None,
                '\\' => {
                    let next = self.rest().chars().nth(1);
                    let Some(next) = next.filter(|next| !matches!(next, '\r' | '\n')) else {
                        break;
                    };
                    word.push(next);
                    self.at += next.len_utf8();
                }
                _ if quote.is_none() && letter.is_whitespace() => {
                    if !word.ends_with(',') {
                        break;
                    }
                }
                _ => word.push(letter),
            }
            self.at += letter.len_utf8();
        }
        self.push(word, start..self.at);
    }

    /// Adds a word; braces around several words become words of their own.
    fn push(&mut self, mut word: String, span: Span) {
        if word.len() > 1 && word.starts_with(['{', '(']) {
            self.words.push(Word { text: word.remove(0).into(), span: span.start..span.start + 1 });
        }
        let closes = word.len() > 1
            && (word.ends_with('}') && !word.contains('{')
                || word.ends_with(')') && !word.contains('('));
        let end = closes.then(|| word.pop()).flatten();
        self.words.push(Word { text: word, span: span.clone() });
        if let Some(end) = end {
            let at = span.end.saturating_sub(1).max(span.start);
            self.words.push(Word { text: end.into(), span: at..span.end });
        }
    }
}

/// A cursor over the words of a line.
pub(super) struct Words<'a> {
    words: &'a [Word],
    at: usize,
}

impl<'a> Words<'a> {
    pub(super) fn new(words: &'a [Word]) -> Self {
        Self { words, at: 0 }
    }

    pub(super) fn peek(&self) -> Option<&'a str> {
        self.words.get(self.at).map(|word| word.text.as_str())
    }

    /// The word `ahead` positions after the next.
    pub(super) fn peek_at(&self, ahead: usize) -> Option<&'a str> {
        self.words.get(self.at + ahead).map(|word| word.text.as_str())
    }

    pub(super) fn next(&mut self) -> Option<&'a Word> {
        let word = self.words.get(self.at)?;
        self.at += 1;
        Some(word)
    }

    pub(super) fn back(&mut self) {
        self.at = self.at.saturating_sub(1);
    }

    /// Takes the next word if it is this one.
    pub(super) fn take(&mut self, text: &str) -> bool {
        let is = self.peek() == Some(text);
        self.at += usize::from(is);
        is
    }

    /// The next word, or a mistake if there is none.
    pub(super) fn need(&mut self, what: &str) -> Result<&'a Word, SpannedFault> {
        let place = self.place();
        self.next().map_or_else(
            || wrong(&place, format!("{what} is missing at the end of the line"), "write it"),
            Ok,
        )
    }

    /// The next word as a number up to `most`.
    pub(super) fn number(&mut self, what: &str, most: u32) -> Result<u32, SpannedFault> {
        let word = self.need(what)?;
        let Some(number) = number(&word.text, most) else {
            let what = format!("{} is no {what}", quoted(&word.text));
            return wrong(&word.span, what, format!("write a number up to {most}"));
        };
        Ok(number)
    }

    /// The position of the next word, or of the last one.
    pub(super) fn place(&self) -> Span {
        let last = self.words.len().saturating_sub(1);
        self.words.get(self.at.min(last)).map_or(0..0, |word| word.span.clone())
    }

    /// The position of the last word taken.
    pub(super) fn taken(&self) -> Span {
        self.words.get(self.at.saturating_sub(1)).map_or(0..0, |word| word.span.clone())
    }
}

/// A number in C's notation: decimal, or hexadecimal after `0x`.
pub(super) fn number(text: &str, most: u32) -> Option<u32> {
    let number = match text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")) {
        Some(digits) if digits.starts_with('+') => return None,
        Some(digits) => u32::from_str_radix(digits, 16).ok()?,
        None if text.starts_with('+') => return None,
        None => text.parse().ok()?,
    };
    (number <= most).then_some(number)
}
