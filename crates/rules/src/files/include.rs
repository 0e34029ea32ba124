//! Expands the include statements of a file.

use std::fs;
use std::path::{Path, PathBuf};

use super::tokens::{Kind, Tokens};

/// Where nft looks for names without a path: `DEFAULT_INCLUDE_PATH`.
const FOLDER: &str = "/etc";
/// The deepest nesting of includes: `MAX_INCLUDE_DEPTH`.
const DEEPEST: usize = 16;

/// An expanded text, with the file and line of each of its lines.
pub(super) struct Expanded {
    pub(super) text: String,
    files: Vec<String>,
    lines: Vec<(usize, usize)>,
}

impl Expanded {
    /// The file and line that a line, counted from 1, comes from.
    pub(super) fn place(&self, line: usize) -> (&str, usize) {
        let place = line.checked_sub(1).and_then(|line| self.lines.get(line));
        let (file, line) = place.copied().unwrap_or((0, 0));
        (self.files.get(file).map_or("", String::as_str), line)
    }

    fn add(&mut self, file: &str, text: &str, depth: usize) {
        let index = self.files.len();
        self.files.push(file.to_owned());
        for (line, number) in text.split_inclusive('\n').zip(1..) {
            match included(line).filter(|_| depth < DEEPEST).and_then(found) {
                Some(files) => {
                    for (file, text) in &files {
                        self.add(file, text, depth + 1);
                    }
                }
                None => {
                    self.text.push_str(line);
                    self.lines.push((index, number));
                }
            }
        }
        if !self.text.is_empty() && !self.text.ends_with('\n') {
            self.text.push('\n');
        }
    }
}

/// The text of a file with all that it includes. An include that nft's search does not find stays as it is.
pub(super) fn expanded(file: &str, text: &str) -> Expanded {
    let mut expanded = Expanded { text: String::new(), files: Vec::new(), lines: Vec::new() };
    expanded.add(file, text, 0);
    expanded
}

/// The name in a line that includes a file and does nothing else.
fn included(line: &str) -> Option<&str> {
    let mut words = Tokens::new(line)
        .filter(|token| !matches!(token.kind, Kind::Line | Kind::Semicolon))
        .map(|token| &line[token.span]);
    let is = words.next() == Some("include");
    let name = words.next()?.strip_prefix('"')?.strip_suffix('"')?;
    (is && words.next().is_none()).then_some(name)
}

/// The files that a name denotes, in order, with their texts: one, or those that match its asterisk.
fn found(name: &str) -> Option<Vec<(String, String)>> {
    let apart = name.starts_with('/') || name.starts_with("./") || name.starts_with("../");
    let path = if apart { PathBuf::from(name) } else { Path::new(FOLDER).join(name) };
    let files = match name.contains(['*', '?', '[', '\\']) {
        false => vec![path],
        true => matching(&path)?,
    };
    let read = |path: PathBuf| Some((path.display().to_string(), fs::read_to_string(path).ok()?));
    files.into_iter().map(read).collect()
}

/// Files that match a path with one asterisk in its last part, in the order of glob(3).
fn matching(path: &Path) -> Option<Vec<PathBuf>> {
    let (folder, pattern) = (path.parent()?, path.file_name()?.to_str()?);
    let (head, tail) = pattern.split_once('*')?;
    let special = ['*', '?', '[', '\\'];
    if tail.contains(special) || head.contains(special) || folder.to_str()?.contains(special) {
        return None;
    }
    let is = |name: &str| {
        let hidden = name.starts_with('.') && !head.starts_with('.');
        let long = name.len() >= head.len() + tail.len();
        long && !hidden && name.starts_with(head) && name.ends_with(tail)
    };
    let entries = fs::read_dir(folder).ok()?.flatten();
    let mut files: Vec<_> = entries
        .filter(|entry| entry.file_name().to_str().is_some_and(is))
        .map(|entry| entry.path())
        .collect();
    files.sort();
    Some(files)
}
