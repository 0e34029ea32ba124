//! Mistakes in a file that people write (configuration, rules): where they are, and how to correct
//! them.

use std::fmt::{self, Write as _};
use std::ops::Range;

/// A range of bytes in the configuration's text.
pub type Span = Range<usize>;

/// The limits of excerpts and quoted values, so that one absurd line cannot flood a terminal.
const EXCERPT_LIMIT: usize = 160;
const QUOTE_LIMIT: usize = 60;

/// One mistake in a file: where it is, what is wrong, and how to correct it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mistake {
    /// The file name, as the caller gave it.
    pub file: String,
    /// The line, counted from 1; 0 if the file could not be read at all.
    pub line: usize,
    /// The column in characters, counted from 1; 0 if the file could not be read at all.
    pub column: usize,
    /// What is wrong, without a full stop.
    pub what: String,
    /// How to correct it, without a full stop.
    pub remedy: String,
    /// The line itself, for display; empty if there is none or it is too long.
    pub excerpt: String,
    /// How many characters from `column` the mistake covers on its line; at least 1.
    pub length: usize,
}

impl Mistake {
    /// A mistake with a line but no column; line 0 means the whole file.
    pub fn placeless(file: String, line: usize, what: String, remedy: &str) -> Self {
        let column = line.min(1);
        let remedy = remedy.to_owned();
        Self { file, line, column, what, remedy, excerpt: String::new(), length: 1 }
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&printable(&self.file))?;
        if self.line > 0 {
            write!(f, ":{}", self.line)?;
        }
        write!(f, ": {}; {}", printable(&self.what), printable(&self.remedy))
    }
}

impl std::error::Error for Mistake {}

/// Formats mistakes for a terminal. Each one is `file:line:col: what - remedy`, followed by the
/// line itself with the place marked.
pub fn report(mistakes: &[Mistake]) -> String {
    let mut out = String::new();
    for mistake in mistakes {
        render(mistake, &mut out);
    }
    out
}

fn render(mistake: &Mistake, out: &mut String) {
    let Mistake { file, line, column, what, remedy, excerpt, length } = mistake;
    // File names and suggested names may contain any character.
    let [file, what, remedy] = [file, what, remedy].map(|text| printable(text));
    // Writing to a `String` cannot fail.
    let _ = match line {
        0 => writeln!(out, "{file}: {what} - {remedy}"),
        _ => writeln!(out, "{file}:{line}:{column}: {what} - {remedy}"),
    };
    if excerpt.is_empty() {
        return;
    }
    let number = line.to_string();
    let gutter = " ".repeat(number.len());
    let lead = " ".repeat(column.saturating_sub(1));
    let mark = "^".repeat(*length);
    let _ = writeln!(out, " {number} | {excerpt}\n {gutter} | {lead}{mark}");
}

/// A mistake without a place. The checks of single values return these.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fault {
    /// What is wrong.
    pub what: String,
    /// How to mend it.
    pub remedy: String,
}

impl Fault {
    /// A mistake, and how to mend it.
    pub fn new(what: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { what: what.into(), remedy: remedy.into() }
    }

    /// As [`Fault::new`], in a result.
    ///
    /// # Errors
    /// Always.
    pub fn err<T>(what: impl Into<String>, remedy: impl Into<String>) -> Result<T, Self> {
        Err(Self::new(what, remedy))
    }
}

/// A mistake and the bytes of the text that it is about.
pub type SpannedFault = (Span, Fault);

/// A mistake at these bytes of the text, in a result.
///
/// # Errors
/// Always.
pub fn wrong<T>(
    span: &Span,
    what: impl Into<String>,
    remedy: impl Into<String>,
) -> Result<T, SpannedFault> {
    Err((span.clone(), Fault::new(what, remedy)))
}

/// Quotes a value of the file, with its control characters escaped and its length limited.
pub fn quoted(value: &str) -> String {
    let mut out = String::from('"');
    out.extend(value.chars().take(QUOTE_LIMIT).flat_map(char::escape_debug));
    if value.chars().nth(QUOTE_LIMIT).is_some() {
        out.push_str("...");
    }
    out.push('"');
    out
}

/// How much of the file a mistake depends on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum MistakeScope {
    Syntax,
    /// Wrong, whatever the rest of the file says.
    Value,
    /// Wrong because of something present or missing elsewhere.
    Relation,
}

struct Entry {
    span: Span,
    scope: MistakeScope,
    fault: Fault,
}

/// Collects the mistakes of one file, and converts positions to lines.
pub struct Ledger<'a> {
    file: &'a str,
    text: &'a str,
    line_starts: Vec<usize>,
    entries: Vec<Entry>,
}

impl<'a> Ledger<'a> {
    /// No mistakes yet in a file with this name and text.
    pub fn new(file: &'a str, text: &'a str) -> Self {
        let after_newlines = text.bytes().enumerate().filter(|(_, b)| *b == b'\n');
        let line_starts = std::iter::once(0).chain(after_newlines.map(|(i, _)| i + 1)).collect();
        Self { file, text, line_starts, entries: Vec::new() }
    }

    /// The number of the line that holds a position, counted from 1.
    pub fn line(&self, position: usize) -> usize {
        self.line_starts.partition_point(|start| *start <= position)
    }

    /// Adds a syntax mistake. Later mistakes may be its consequences.
    pub fn syntax(&mut self, span: Span, fault: Fault) {
        self.entries.push(Entry { span, scope: MistakeScope::Syntax, fault });
    }

    /// Adds a value that is wrong, whatever the rest of the file says.
    pub fn value(&mut self, span: Span, fault: Fault) {
        self.entries.push(Entry { span, scope: MistakeScope::Value, fault });
    }

    /// Adds what is wrong because of something present or missing elsewhere.
    pub fn relation(&mut self, span: Span, what: impl Into<String>, remedy: impl Into<String>) {
        let fault = Fault::new(what, remedy);
        self.entries.push(Entry { span, scope: MistakeScope::Relation, fault });
    }

    /// Whether the ledger has an entry for exactly this place. The search begins with the latest
    /// entries, because callers query a place that they have just checked.
    pub fn has_entry(&self, span: &Span) -> bool {
        self.entries.iter().rev().any(|entry| entry.span == *span)
    }

    /// The mistakes worth reporting, in file order.
    pub fn finish(mut self) -> Vec<Mistake> {
        self.drop_consequences();
        self.entries.sort_by_key(|entry| entry.span.start);
        self.entries.iter().map(|entry| self.place(entry)).collect()
    }

    /// A syntax error hides part of the file, so what seems missing or wrong near it may be
    /// correct. Beside syntax errors, the ledger reports only mistakes of single values, and only
    /// on other lines.
    fn drop_consequences(&mut self) {
        let syntax = self.entries.iter().filter(|e| e.scope == MistakeScope::Syntax);
        let bad_lines: Vec<usize> = syntax.map(|e| self.line(e.span.start)).collect();
        if bad_lines.is_empty() {
            return;
        }
        let mut seen = std::collections::BTreeSet::new();
        let lines_of = |span: &Span| (self.line(span.start), self.line(span.end));
        let spans: Vec<_> = self.entries.iter().map(|e| lines_of(&e.span)).collect();
        let bad: std::collections::BTreeSet<usize> = bad_lines.into_iter().collect();
        let mut spans = spans.into_iter();
        self.entries.retain(|entry| {
            let Some((first, last)) = spans.next() else { return false };
            match entry.scope {
                MistakeScope::Syntax => seen.insert(first),
                // For a value that it cannot read, the parser inserts an empty one without a
                // position.
                MistakeScope::Value if entry.span.is_empty() => false,
                MistakeScope::Value => bad.range(first..=last).next().is_none(),
                MistakeScope::Relation => false,
            }
        });
    }

    fn place(&self, entry: &Entry) -> Mistake {
        let start = entry.span.start.min(self.text.len());
        let line = self.line(start);
        let line_start = self.line_starts.get(line - 1).copied().unwrap_or(0);
        let rest = self.text.get(line_start..).unwrap_or_default();
        let content = rest.split('\n').next().unwrap_or_default().trim_end_matches('\r');
        let before = content.get(..start - line_start).unwrap_or(content).chars().count();
        let covered = entry.span.end.saturating_sub(line_start).min(content.len());
        let upto = content.get(..covered).map_or(before, |part| part.chars().count());
        let short = content.chars().nth(EXCERPT_LIMIT).is_none();
        Mistake {
            file: self.file.to_owned(),
            line,
            column: before + 1,
            what: entry.fault.what.clone(),
            remedy: entry.fault.remedy.clone(),
            excerpt: if short { printable(content) } else { String::new() },
            length: upto.saturating_sub(before).max(1),
        }
    }
}

/// Replaces tabs and control characters by spaces, so that the mark stays below its place.
fn printable(line: &str) -> String {
    line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}
