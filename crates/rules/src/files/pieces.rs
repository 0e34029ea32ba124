//! Cuts nft's text into pieces, each small enough for one message to the kernel.
//!
//! nft sends a file as one batch, which has to fit a socket's send buffer. Only root may have a large one
//! (`SO_SNDBUFFORCE`), so an ordinary user's rules are loaded piece by piece. A piece contains some of the
//! file's rules and elements, and what they need around them: variables, and tables with chains and sets.
//! nft accepts the same table, chain or set repeatedly. Like nft, this module loads a table's elements
//! before its rules.

use std::ops::Range;

use super::tokens::{Kind, Token, Tokens};

type Span = Range<usize>;

/// Estimated bytes of a batch for a rule and for an element, beside those for each byte of their text.
const RULE_BYTES: usize = 200;
const RULE_BYTES_PER_BYTE: usize = 18;
const ELEMENT_BYTES: usize = 12;

/// Columns are preserved up to this one: a line may have a hundred thousand elements.
const LAST_COLUMN: usize = 1000;

/// Words that begin a chain's own statements; everything else in a chain is a rule.
const CHAIN_WORDS: [&str; 7] =
    ["type", "policy", "comment", "flags", "devices", "define", "redefine"];

/// A file's text, split into units.
pub(super) struct Pieces<'t> {
    text: &'t str,
    units: Vec<Unit>,
    frames: Vec<Frame>,
    /// Variables; all pieces behind a definition contain it.
    defines: Vec<Span>,
}

/// The smallest part to load: a rule, an element, a command, or a table's frame.
struct Unit {
    span: Span,
    frame: Option<usize>,
    order: Order,
    bytes: usize,
}

/// The number of the unit's command, and its rank there.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Order(usize, Rank);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Rank {
    Frame,
    Element,
    Rule,
}

/// What surrounds units: a table without its rules and elements, or a list without its members.
struct Frame {
    kept: Vec<Span>,
    parent: Option<usize>,
}

/// A piece, with the file's line for each of its lines.
pub(super) struct Piece {
    pub(super) text: String,
    pub(super) lines: Vec<usize>,
    /// The line of its first rule or element.
    pub(super) line: usize,
    /// Where its last line begins.
    begun: usize,
}

impl<'t> Pieces<'t> {
    /// Splits a text.
    pub(super) fn new(text: &'t str) -> Self {
        let mut pieces = Self { text, units: Vec::new(), frames: Vec::new(), defines: Vec::new() };
        let mut tokens = Tokens::new(text);
        let mut command = 0;
        while let Some(statement) = Statement::next(&mut tokens) {
            pieces.command(&statement, command);
            command += 1;
        }
        pieces.units.sort_by_key(|unit| unit.order);
        pieces
    }

    /// Returns pieces of at most `bytes` bytes for the kernel, by estimate; each contains at least one unit.
    pub(super) fn of(&self, bytes: usize) -> Vec<Piece> {
        let starts = line_starts(self.text);
        let (mut pieces, mut first, mut sum) = (Vec::new(), 0, 0);
        for (index, unit) in self.units.iter().enumerate() {
            if index > first && sum + unit.bytes > bytes {
                pieces.push(self.piece(&self.units[first..index], &starts));
                (first, sum) = (index, 0);
            }
            sum += unit.bytes;
        }
        pieces.push(self.piece(&self.units[first..], &starts));
        pieces
    }

    /// The number of units, which is the greatest number of pieces.
    pub(super) const fn most(&self) -> usize {
        self.units.len()
    }

    fn piece(&self, units: &[Unit], starts: &[usize]) -> Piece {
        let mut spans: Vec<Span> = units.iter().map(|unit| unit.span.clone()).collect();
        let last = units.iter().map(|unit| unit.span.start).max().unwrap_or(0);
        spans.extend(self.defines.iter().filter(|define| define.start < last).cloned());
        let mut frames: Vec<usize> =
            units.iter().flat_map(|unit| self.around(unit.frame)).collect();
        frames.sort_unstable();
        frames.dedup();
        spans.extend(frames.iter().flat_map(|frame| self.frames[*frame].kept.iter().cloned()));
        spans.sort_unstable_by_key(|span| (span.start, span.end));
        let line = units.first().map_or(0, |unit| line_of(unit.span.start, starts));
        let mut piece = Piece { text: String::new(), lines: Vec::new(), line, begun: 0 };
        for span in spans.into_iter().filter(|span| !span.is_empty()) {
            piece.add(self.text, span, starts);
        }
        piece.text.push('\n');
        piece
    }

    /// A frame and all frames around it.
    fn around(&self, frame: Option<usize>) -> impl Iterator<Item = usize> {
        std::iter::successors(frame, |frame| self.frames[*frame].parent)
    }

    fn frame(&mut self, parent: Option<usize>) -> usize {
        self.frames.push(Frame { kept: Vec::new(), parent });
        self.frames.len() - 1
    }

    fn keep(&mut self, frame: usize, span: Span) {
        if !self.text[span.clone()].trim().is_empty() {
            self.frames[frame].kept.push(span);
        }
    }

    fn unit(&mut self, span: Span, frame: Option<usize>, order: Order) {
        let bytes = match order.1 {
            Rank::Frame => 0,
            Rank::Element => ELEMENT_BYTES + span.len(),
            Rank::Rule => RULE_BYTES + RULE_BYTES_PER_BYTE * span.len(),
        };
        self.units.push(Unit { span, frame, order, bytes });
    }

    /// Splits a command of the file.
    fn command(&mut self, statement: &Statement, number: usize) {
        let mut words = statement.words(self.text);
        let first = words.next().unwrap_or_default();
        let object = if matches!(first, "add" | "create") {
            words.next().unwrap_or_default()
        } else {
            first
        };
        let (elements, rule) = (Order(number, Rank::Element), Order(number, Rank::Rule));
        match (object, statement.body()) {
            ("define" | "redefine" | "undefine", _) => self.defines.push(statement.span.clone()),
            ("table" | "chain" | "set" | "map", Some(body)) => {
                let frame = self.frame(None);
                let start = statement.span.start;
                self.unit(start..start, Some(frame), Order(number, Rank::Frame));
                let mut inside = Inside { frame, from: statement.span.start, number };
                self.block(object, body, &mut inside);
                self.keep(frame, inside.from..statement.span.end);
            }
            ("element", Some(body)) => self.list(statement, body, None, elements),
            _ => self.unit(statement.span.clone(), None, rule),
        }
    }

    /// Splits the content between the braces of a table, a chain, a set or a map.
    fn block(&mut self, object: &str, body: Span, inside: &mut Inside) {
        let text = self.text;
        let mut tokens = Tokens::within(text, body);
        while let Some(statement) = Statement::next(&mut tokens) {
            let first = statement.words(text).next().unwrap_or_default();
            let order = Order(inside.number, Rank::Rule);
            match (object, first, statement.body()) {
                ("table", "chain" | "set" | "map", Some(inner)) => self.block(first, inner, inside),
                ("chain", first, _) if !CHAIN_WORDS.contains(&first) => {
                    self.keep(inside.frame, inside.from..statement.span.start);
                    self.unit(statement.span.clone(), Some(inside.frame), order);
                    inside.from = statement.span.end;
                }
                ("set" | "map", "elements", body) => {
                    self.keep(inside.frame, inside.from..statement.span.start);
                    let order = Order(inside.number, Rank::Element);
                    match body {
                        Some(body) => self.list(&statement, body, Some(inside.frame), order),
                        None => self.unit(statement.span.clone(), Some(inside.frame), order),
                    }
                    inside.from = statement.span.end;
                }
                (_, "include", _) => {
                    self.keep(inside.frame, inside.from..statement.span.start);
                    self.unit(statement.span.clone(), Some(inside.frame), order);
                    inside.from = statement.span.end;
                }
                _ => {}
            }
        }
    }

    /// Splits a list of elements, separated by commas.
    fn list(&mut self, statement: &Statement, body: Span, parent: Option<usize>, order: Order) {
        let frame = self.frame(parent);
        self.keep(frame, statement.span.start..body.start);
        let (mut first, mut depth, mut last) = (None, 0_usize, body.start);
        for token in Tokens::within(self.text, body.clone()) {
            match token.kind {
                Kind::Line => continue,
                Kind::Open => depth += 1,
                Kind::Close => depth = depth.saturating_sub(1),
                Kind::Comma if depth == 0 => {
                    let start = first.take().unwrap_or(token.span.start);
                    self.unit(start..token.span.end, Some(frame), order);
                    continue;
                }
                _ => {}
            }
            first.get_or_insert(token.span.start);
            last = token.span.end;
        }
        if let Some(start) = first {
            self.unit(start..last, Some(frame), order);
        }
        self.keep(frame, body.end..statement.span.end);
    }
}

/// The position in a block.
struct Inside {
    frame: usize,
    /// Start of the text that is not yet kept or part of a unit.
    from: usize,
    /// The command's number.
    number: usize,
}

/// Tokens up to the end of a line or a semicolon, outside of braces.
struct Statement {
    span: Span,
    tokens: Vec<Token>,
}

impl Statement {
    fn next(tokens: &mut Tokens<'_>) -> Option<Self> {
        let mut found: Vec<Token> = Vec::new();
        let (mut depth, mut end) = (0_usize, 0);
        for token in tokens {
            match token.kind {
                Kind::Line | Kind::Semicolon if depth == 0 && found.is_empty() => continue,
                Kind::Open => depth += 1,
                Kind::Close => depth = depth.saturating_sub(1),
                _ => {}
            }
            end = token.span.end;
            if depth == 0 && matches!(token.kind, Kind::Line | Kind::Semicolon) {
                break;
            }
            found.push(token);
        }
        let start = found.first()?.span.start;
        Some(Self { span: start..end, tokens: found })
    }

    /// The words before the first brace.
    fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let words = self.tokens.iter().take_while(|token| token.kind == Kind::Word);
        words.map(|token| &text[token.span.clone()])
    }

    /// The text between the first brace and its closing brace.
    fn body(&self) -> Option<Span> {
        let open = self.tokens.iter().position(|token| token.kind == Kind::Open)?;
        let mut depth = 0_usize;
        for token in &self.tokens[open..] {
            match token.kind {
                Kind::Open => depth += 1,
                Kind::Close => depth -= 1,
                _ => {}
            }
            if depth == 0 {
                return Some(self.tokens[open].span.end..token.span.start);
            }
        }
        None
    }
}

impl Piece {
    /// Adds a span of the file, in its original column.
    fn add(&mut self, text: &str, span: Span, starts: &[usize]) {
        let line = line_of(span.start, starts);
        let column = span.start - starts[line - 1];
        if self.begun == self.text.len() || self.lines.last() != Some(&line) {
            if self.begun < self.text.len() {
                self.text.push('\n');
                self.begun = self.text.len();
            }
            self.lines.push(line);
        }
        let wanted = column.min(LAST_COLUMN);
        let missing = wanted.saturating_sub(self.text.len() - self.begun);
        self.text.extend(std::iter::repeat_n(' ', missing));
        let stretch = &text[span];
        for (part, number) in stretch.split_inclusive('\n').zip(line..) {
            if number > line {
                self.lines.push(number);
            }
            self.text.push_str(part);
            if part.ends_with('\n') {
                self.begun = self.text.len();
            }
        }
    }
}

/// The line of a byte, counted from 1.
fn line_of(at: usize, starts: &[usize]) -> usize {
    starts.partition_point(|start| *start <= at)
}

/// The offsets at which lines begin.
fn line_starts(text: &str) -> Vec<usize> {
    let ends = text.bytes().enumerate().filter(|(_, byte)| *byte == b'\n');
    std::iter::once(0).chain(ends.map(|(at, _)| at + 1)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "define wan = { eth0, eth1 }
flush ruleset
table ip t { # ours {
  set s { type ipv4_addr; elements = { 10.0.0.1, # one }
    10.0.0.2 }
  }
  chain c {
    type filter hook forward priority 0; policy drop
    iif $wan ip saddr { 1.2.3.4, 5.6.7.8 } \\
      drop; accept # done
    comment \"; } {\"
  }
}
add element ip t s { 10.0.0.3, 10.0.0.4 }
";

    fn texts(bytes: usize) -> Vec<String> {
        let pieces = Pieces::new(TEXT).of(bytes);
        let lines: Vec<_> = TEXT.lines().collect();
        for piece in &pieces {
            // Every line of a piece is a line of the file with parts removed.
            for (line, number) in piece.text.lines().zip(&piece.lines) {
                let whole = lines[number - 1].bytes();
                let same = line.bytes().zip(whole).all(|(one, other)| one == b' ' || one == other);
                assert!(same, "{number}: {line}");
            }
        }
        pieces
            .into_iter()
            .map(|piece| piece.text.split_whitespace().collect::<Vec<_>>().join(" "))
            .collect()
    }

    #[test]
    fn a_piece_has_what_its_rules_stand_in() {
        let wan = "define wan = { eth0, eth1 }";
        let set = "table ip t { # ours { set s { type ipv4_addr;";
        let chain = "} chain c { type filter hook forward priority 0; policy drop";
        let rest = "comment \"; } {\" } }";
        let rule = "iif $wan ip saddr { 1.2.3.4, 5.6.7.8 } \\ drop;";
        assert_eq!(
            texts(1),
            [
                format!("{wan} flush ruleset"),
                format!("{wan} {set} {chain} {rest}"),
                format!("{wan} {set} elements = {{ 10.0.0.1, }} {chain} {rest}"),
                format!("{wan} {set} elements = {{ 10.0.0.2 }} {chain} {rest}"),
                format!("{wan} {set} {chain} {rule} {rest}"),
                format!("{wan} {set} {chain} accept # done {rest}"),
                format!("{wan} add element ip t s {{ 10.0.0.3, }}"),
                format!("{wan} add element ip t s {{ 10.0.0.4 }}"),
            ]
        );
    }

    #[test]
    fn one_piece_is_all() {
        let all = TEXT.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(texts(usize::MAX), [all.replace("# one } ", "")]);
    }

    #[test]
    fn texts_that_end_in_the_middle_are_taken_apart() {
        for end in 0..TEXT.len() {
            let pieces = Pieces::new(&TEXT[..end]).of(1);
            assert!(!pieces.is_empty());
            let _ = Pieces::new(&TEXT[end..]).of(1);
        }
    }
}
