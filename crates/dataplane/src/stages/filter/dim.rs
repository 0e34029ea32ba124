//! The lookup of one field: from its value to the set of rules that it does not exclude.

use std::collections::HashMap;

use super::bits::{Collector, Sets, put, take};
use super::cut::Cut;
use super::{Field, FilterError};
use crate::epoch::Epochs;
use crate::fib::{Capacity, Fib, Root};
use crate::id::NextHopId;
use crate::prefix::Prefix;

/// The maximum number of fields that are looked up for every packet. Conditions on other fields are
/// checked when a rule is reached.
pub(super) const MOST_DIMS: usize = 16;

/// The maximum number of bounds to compare one by one, for all packets at once; this takes less time
/// than a lookup.
const MOST_BOUNDS: usize = 32;

/// The number of parts of the address space above which addresses are looked up in a trie.
const MOST_STARTS: usize = 1 << 16;

/// The number of search steps up to which a search is preferred to a table of all values, which takes
/// more cache.
const SHORT: u32 = 2;

/// A field that rules match on.
#[derive(Debug)]
pub(super) struct Dim {
    /// The field.
    pub(super) field: Field,
    /// From value to class.
    pub(super) lookup: Lookup,
    /// The class of packets that lack the field.
    pub(super) absent: u32,
    /// The sets of the classes.
    pub(super) sets: Sets,
}

/// A lookup from a value to its class.
#[derive(Debug)]
pub(super) enum Lookup {
    /// The class is the value.
    Value,
    /// The class is the number of these bounds that do not exceed the value; values have 32 bits.
    Bounds(Vec<u32>),
    /// Values of up to 32 bits, in many ranges.
    Cut(Cut),
    /// A class for each value of 16 bits.
    Table(Box<[u16; 1 << 16]>),
    /// Addresses.
    Trie {
        /// A FIB whose next hops are classes.
        fib: Box<Fib>,
        /// Its only table.
        root: Root,
    },
    /// Any values: where each class begins.
    Search(Vec<(u128, u32)>),
}

/// The ranges of a field by rule.
pub(super) type Ranges = Vec<(u32, Vec<(u128, u128)>)>;

impl Dim {
    /// Builds the lookup of a field; `all` is the set of all rules.
    pub(super) fn build(field: Field, ranges: &Ranges, all: &[u64]) -> Result<Self, FilterError> {
        let bits = field.bits();
        let wild = wild(ranges, all);
        let starts = starts(ranges, bits);
        if field.is_address() && (bits == 128 || starts.len() > MOST_STARTS) {
            return trie(field, ranges, &wild);
        }
        let few = bits <= 32 && starts.len() <= MOST_BOUNDS;
        let mut collector = Collector::new(all.len(), !few);
        let classes = sweep(ranges, &starts, &wild, &mut collector);
        let absent = collector.class(&wild);
        let cut = (bits <= 32 && !few).then(|| Cut::new(&starts, &classes, bits)).flatten();
        let is_short = |cut: &Cut| bits > 16 || cut.steps() <= SHORT;
        let lookup = if few {
            Lookup::Bounds(starts.iter().skip(1).map(|start| *start as u32).collect())
        } else if let Some(cut) = cut.filter(is_short) {
            Lookup::Cut(cut)
        } else if field.is_address() {
            return trie(field, ranges, &wild);
        } else if bits <= 16 && collector.count() <= u32::from(u16::MAX) {
            Lookup::Table(table(&starts, &classes)?)
        } else {
            Lookup::Search(starts.into_iter().zip(classes).collect())
        };
        Ok(Self { field, lookup, absent, sets: collector.finish() })
    }

    /// Builds the lookup of a field for the BPF programs: a trie of addresses, or where each class of values begins.
    pub(super) fn for_engine(
        field: Field,
        ranges: &Ranges,
        all: &[u64],
    ) -> Result<Self, FilterError> {
        let wild = wild(ranges, all);
        if field.is_address() {
            return trie(field, ranges, &wild);
        }
        let starts = starts(ranges, field.bits());
        let mut collector = Collector::new(all.len(), true);
        let classes = sweep(ranges, &starts, &wild, &mut collector);
        let absent = collector.class(&wild);
        let lookup = Lookup::Search(starts.into_iter().zip(classes).collect());
        Ok(Self { field, lookup, absent, sets: collector.finish() })
    }

    /// The lookup of a field for a partition, without sets. The class is the value's number; that of
    /// packets that lack the field is the greatest.
    pub(super) fn of_numbers(field: Field, lookup: Lookup) -> Self {
        let sets = Collector::new(0, false).finish();
        Self { field, lookup, absent: u32::MAX, sets }
    }

    /// The class of a value, or of packets that lack the field.
    pub(super) fn class(&self, number: Option<u128>) -> u32 {
        let Some(number) = number else { return self.absent };
        match &self.lookup {
            Lookup::Value => number as u32,
            Lookup::Bounds(bounds) => {
                bounds.iter().filter(|bound| u128::from(**bound) <= number).count() as u32
            }
            Lookup::Cut(cut) => cut.class(number as u32),
            Lookup::Table(table) => table[usize::from(number as u16)].into(),
            Lookup::Trie { fib, root } => fib.lookup(*root, number << (128 - self.field.bits())).0,
            Lookup::Search(starts) => {
                let behind = starts.partition_point(|(start, _)| *start <= number);
                starts[behind - 1].1
            }
        }
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let lookup = match &self.lookup {
            Lookup::Value => 0,
            Lookup::Bounds(bounds) => bounds.len() * size_of::<u32>(),
            Lookup::Cut(cut) => cut.memory_bytes(),
            Lookup::Table(_) => size_of::<[u16; 1 << 16]>(),
            Lookup::Trie { fib, .. } => fib.memory_bytes(),
            Lookup::Search(starts) => starts.len() * size_of::<(u128, u32)>(),
        };
        lookup + self.sets.memory_bytes()
    }
}

/// The rules that have no condition on a field.
fn wild(ranges: &Ranges, all: &[u64]) -> Vec<u64> {
    let mut wild = all.to_vec();
    for (rule, _) in ranges {
        take(&mut wild, *rule);
    }
    wild
}

/// The values of `bits` bits at which the set of matching ranges changes; 0 first.
pub(super) fn starts(ranges: &Ranges, bits: u32) -> Vec<u128> {
    let max = u128::MAX >> (128 - bits);
    let ends = ranges.iter().flat_map(|(_, ranges)| ranges);
    let mut starts: Vec<u128> =
        ends.flat_map(|(first, last)| [Some(*first), last.checked_add(1)]).flatten().collect();
    starts.push(0);
    starts.retain(|start| *start <= max);
    starts.sort_unstable();
    starts.dedup();
    starts
}

/// Sweeps the values in ascending order; returns the class from each start on.
fn sweep(ranges: &Ranges, starts: &[u128], wild: &[u64], collector: &mut Collector) -> Vec<u32> {
    let mut events: Vec<(u128, bool, u32)> = Vec::new();
    for (rule, ranges) in ranges {
        for (first, last) in ranges {
            events.push((*first, true, *rule));
            if let Some(behind) = last.checked_add(1) {
                events.push((behind, false, *rule));
            }
        }
    }
    // Ends before beginnings: a rule may have adjacent ranges.
    events.sort_unstable();
    let mut set = wild.to_vec();
    let mut events = events.into_iter().peekable();
    let class = |start: &u128| {
        while let Some((_, begins, rule)) = events.next_if(|event| event.0 <= *start) {
            if begins { put(&mut set, rule) } else { take(&mut set, rule) }
        }
        collector.class(&set)
    };
    starts.iter().map(class).collect()
}

fn table(starts: &[u128], classes: &[u32]) -> Result<Box<[u16; 1 << 16]>, FilterError> {
    let mut table = vec![0; 1 << 16];
    let ends = starts.iter().skip(1).map(|end| *end as usize).chain([table.len()]);
    for ((start, end), class) in starts.iter().zip(ends.collect::<Vec<_>>()).zip(classes) {
        let end = end.min(1 << 16);
        let start = (*start as usize).min(end);
        table[start..end].fill(*class as u16);
    }
    table.into_boxed_slice().try_into().map_err(|_| FilterError::Memory)
}

/// Builds the lookup of addresses: a class for each prefix in the rules, of all rules whose prefixes
/// cover it.
fn trie(field: Field, ranges: &Ranges, wild: &[u64]) -> Result<Dim, FilterError> {
    let mut rules: HashMap<Prefix, Vec<u32>> = HashMap::new();
    rules.insert(Prefix::v6(0, 0), Vec::new());
    for (rule, ranges) in ranges {
        for (first, last) in ranges {
            for_each_prefix(*first, *last, field.bits(), |prefix| {
                rules.entry(prefix).or_default().push(*rule)
            });
        }
    }
    let mut prefixes: Vec<_> = rules.iter().collect();
    prefixes.sort_unstable_by_key(|(prefix, _)| (prefix.bits(), prefix.len()));
    let mut collector = Collector::new(wild.len(), true);
    let absent = collector.class(wild);
    let (fib, root) = fib(prefixes.len())?;
    // The prefixes that enclose the current one, with their sets.
    let mut around: Vec<(Prefix, Vec<u64>)> = Vec::new();
    for (prefix, rules) in prefixes {
        while around.last().is_some_and(|(outer, _)| !outer.contains(prefix.bits())) {
            around.pop();
        }
        let mut set = around.last().map_or(wild, |(_, set)| set).to_vec();
        for rule in rules {
            put(&mut set, *rule);
        }
        let class = NextHopId(collector.class(&set));
        fib.insert(root, *prefix, class).map_err(|_| FilterError::Memory)?;
        around.push((*prefix, set));
    }
    Ok(Dim {
        field,
        lookup: Lookup::Trie { fib: Box::new(fib), root },
        absent,
        sets: collector.finish(),
    })
}

/// An empty FIB with room for that many prefixes, and its only table.
pub(super) fn fib(prefixes: usize) -> Result<(Fib, Root), FilterError> {
    let nodes = (prefixes * 4 + 64).min(1 << 26);
    let capacity = Capacity { roots: 1, nodes, values: nodes * 8 + (1 << 17) };
    let fib = Fib::new(Epochs::new(), capacity);
    let root = fib.add_root().map_err(|_| FilterError::Memory)?;
    Ok((fib, root))
}

/// Splits a range of numbers of `bits` bits into prefixes.
pub(super) fn for_each_prefix(first: u128, last: u128, bits: u32, mut each: impl FnMut(Prefix)) {
    let shift = 128 - bits;
    let mut first = first;
    loop {
        let aligned = first.trailing_zeros().min(bits);
        let mut open = aligned;
        // The largest block that begins here and does not exceed the end.
        while open > 0 && last - first < (u128::MAX >> (128 - open)) {
            open -= 1;
        }
        each(Prefix::v6(first << shift, (bits - open) as u8));
        let below = if open == 0 { 0 } else { u128::MAX >> (128 - open) };
        match (first + below).checked_add(1) {
            Some(next) if first + below < last => first = next,
            _ => return,
        }
    }
}
