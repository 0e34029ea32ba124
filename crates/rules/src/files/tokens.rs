//! The tokens of nft's text, as far as its structure requires (nft's `src/scanner.l`).

use std::ops::Range;

/// A token and its position.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Token {
    pub(super) kind: Kind,
    pub(super) span: Range<usize>,
}

/// The kind of a token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Word,
    Open,
    Close,
    Comma,
    Semicolon,
    Equals,
    /// The end of a line.
    Line,
}

/// The tokens of a part of a text.
pub(super) struct Tokens<'t> {
    bytes: &'t [u8],
    at: usize,
}

impl<'t> Tokens<'t> {
    /// The tokens of the whole text.
    pub(super) const fn new(text: &'t str) -> Self {
        Self { bytes: text.as_bytes(), at: 0 }
    }

    /// The tokens of a part of the text.
    pub(super) fn within(text: &'t str, span: Range<usize>) -> Self {
        Self { bytes: &text.as_bytes()[..span.end], at: span.start }
    }

    /// Skips all bytes for which `is` is true. Returns the position of the first other byte.
    fn pass(&mut self, is: impl Fn(u8) -> bool) -> usize {
        let rest = &self.bytes[self.at..];
        self.at += rest.iter().position(|byte| !is(*byte)).unwrap_or(rest.len());
        self.at
    }
}

impl Iterator for Tokens<'_> {
    type Item = Token;

    fn next(&mut self) -> Option<Token> {
        loop {
            let start = self.at;
            let kind = match *self.bytes.get(start)? {
                b' ' | b'\t' | b'\r' => {
                    self.at += 1;
                    continue;
                }
                b'\\' if self.bytes.get(start + 1) == Some(&b'\n') => {
                    self.at += 2;
                    continue;
                }
                b'#' => {
                    self.pass(|byte| byte != b'\n');
                    continue;
                }
                b'{' => Kind::Open,
                b'}' => Kind::Close,
                b',' => Kind::Comma,
                b';' => Kind::Semicolon,
                b'=' => Kind::Equals,
                b'\n' => Kind::Line,
                b'"' => {
                    self.at += 1;
                    self.pass(|byte| byte != b'"');
                    self.at = (self.at + 1).min(self.bytes.len());
                    return Some(Token { kind: Kind::Word, span: start..self.at });
                }
                _ => {
                    let ends = b" \t\r\n\\#{},;=\"";
                    self.at += 1;
                    self.pass(|byte| !ends.contains(&byte));
                    return Some(Token { kind: Kind::Word, span: start..self.at });
                }
            };
            self.at += 1;
            return Some(Token { kind, span: start..self.at });
        }
    }
}
