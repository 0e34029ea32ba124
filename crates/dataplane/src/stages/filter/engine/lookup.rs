//! The lookup of a field in words: from its value to a class, and the class's set of rules.

use super::super::Field;
use super::super::bits;
use super::super::dim::{Dim, Lookup};
use super::{SetRoots, Words, field};
use crate::fib::Root;

/// How a class is found.
const BY_PAGE: u32 = 0;
const BY_TRIE: u32 = 1;
/// As [`BY_PAGE`], by whether a set has the address.
const BY_SET: u32 = 2;

/// Values of a page.
const PAGE: usize = 256;

/// The set of all rules, in 64 words at most.
pub(super) fn all(count: usize) -> Vec<u64> {
    let mut all = vec![0; bits::width(count)];
    (0..count).for_each(|rule| bits::put(&mut all, rule as u32));
    all
}

/// Adds the lookup of a field; returns its descriptor.
pub(super) fn add(
    words: &mut Words,
    version: u8,
    (dim, rules): (&Dim, usize),
    roots: SetRoots<'_>,
) -> [u32; 8] {
    let (mut kind, [one, mut two, three]) = match &dim.lookup {
        Lookup::Trie { fib, root } => {
            let flat = fib.flatten(*root);
            let nodes: Vec<u32> = flat.nodes.iter().flatten().copied().collect();
            let (nodes, values) = (words.add(&nodes), words.add(&flat.values));
            (BY_TRIE, [flat.shift, nodes, values])
        }
        Lookup::Search(starts) => (BY_PAGE, [add_pages(words, starts), 0, 0]),
        // The engine asks for no others.
        _ => (BY_PAGE, [add_pages(words, &[(0, 0)]), 0, 0]),
    };
    if let Field::InSet { set, .. } = dim.field
        && let Some(root) = root_of(roots, set)
    {
        (kind, two) = (BY_SET, root.0);
    }
    let (sets, more) = add_sets(words, dim, rules);
    let number = field::number(dim.field).unwrap_or(0);
    let is_low = u32::from(version == 6);
    [number | kind << 8 | is_low << 16, one, two, three, sets, more, dim.absent, 0]
}

/// Where programs find a set's elements, if they do.
pub(super) fn root_of(roots: SetRoots<'_>, set: u16) -> Option<Root> {
    roots.get(usize::from(set)).copied().flatten()
}

/// Adds pages of classes, two in a word, for values of 16 bits; returns the line of the pages' index.
fn add_pages(words: &mut Words, starts: &[(u128, u32)]) -> u32 {
    let mut classes = vec![0_u16; PAGE * PAGE];
    let ends = starts.iter().skip(1).map(|(start, _)| *start as usize).chain([classes.len()]);
    for ((start, class), end) in starts.iter().zip(ends) {
        classes[*start as usize..end].fill(*class as u16);
    }
    let mut pages: Vec<&[u16]> = Vec::new();
    let mut index = Vec::with_capacity(PAGE);
    for page in classes.chunks_exact(PAGE) {
        // Most values are in few pages.
        let known = pages.iter().rposition(|known| *known == page);
        let number = known.unwrap_or_else(|| {
            pages.push(page);
            pages.len() - 1
        });
        index.push(number as u32);
    }
    let pairs = pages.concat();
    let pairs = pairs.chunks_exact(2).map(|two| u32::from(two[0]) | u32::from(two[1]) << 16);
    let pages = words.add(&pairs.collect::<Vec<_>>());
    // As lines: a page has eight.
    let index: Vec<u32> =
        index.iter().map(|page| pages + page * (PAGE / 2 / super::LINE) as u32).collect();
    words.add(&index)
}

/// Adds the sets of all classes; returns the lines of their records, and of the words of long sets.
///
/// A record has four words: a set of at most 64 rules, or else which of its words are not 0, and the number of the
/// first of these.
fn add_sets(words: &mut Words, dim: &Dim, rules: usize) -> (u32, u32) {
    let width = bits::width(rules);
    let (mut records, mut more) = (Vec::new(), Vec::new());
    for class in 0..dim.sets.classes() {
        let set = (0..width).map(|word| dim.sets.word(class, word));
        let (bits, first) = if width == 1 {
            (set.fold(0, |_, word| word), 0)
        } else {
            let first = more.len() as u32;
            let mut bits = 0;
            for (number, word) in set.enumerate().filter(|(_, word)| *word != 0) {
                bits |= 1 << number;
                more.push(word);
            }
            (bits, first)
        };
        records.extend([bits as u32, (bits >> 32) as u32, first, 0]);
    }
    let more: Vec<u32> =
        more.iter().flat_map(|word| [*word as u32, (*word >> 32) as u32]).collect();
    (words.add(&records), words.add(&more))
}
