//! Stacks of functions, and each function's share.

use std::collections::{BTreeMap, HashSet};
use std::rc::Rc;

use serde::{Deserialize, Serialize};

use super::sampler::Addresses;
use super::symbols::{Frame, Maps, Symbols};

/// The functions that call the measured code: stacks start there.
const ROOTS: [&str; 3] = ["forward", "touch", "waste"];

/// Stacks, the outermost function first, and the number of samples of each.
pub(crate) type Stacks = BTreeMap<Vec<Frame>, u64>;

/// Resolves the samples of this process to names.
pub(super) fn named(samples: &[Addresses]) -> Stacks {
    let maps = Maps::of_self();
    let mut symbols = Symbols::default();
    let mut stacks = Stacks::new();
    for addresses in samples {
        let mut stack = Vec::new();
        for (at, address) in addresses.iter().enumerate().rev() {
            // A return address is after the call.
            let address = if at > 0 { address.saturating_sub(1) } else { *address };
            match maps.find(address) {
                Some((object, address)) => {
                    stack.extend(symbols.at(object, address).iter().cloned())
                }
                None => stack.push(Frame::new("[unknown]", false)),
            }
        }
        *stacks.entry(from_root(stack)).or_default() += 1;
    }
    stacks
}

/// The part of a stack inside the measured code.
fn from_root(mut stack: Vec<Frame>) -> Vec<Frame> {
    let root = stack.iter().position(|frame| is_root(&frame.function));
    stack.drain(..root.unwrap_or(0));
    stack
}

fn is_root(function: &str) -> bool {
    let name = function.rsplit("::").next().unwrap_or_default();
    function.contains("tollway_lab::bench::") && ROOTS.contains(&name)
}

/// Whether a function is part of the standard library or a closure, so that its time counts for its
/// caller.
pub(crate) fn is_library(function: &str) -> bool {
    const LIBRARY: [&str; 4] = ["core::", "alloc::", "std::", "core_arch::"];
    let of_library = LIBRARY.iter().any(|library| function.contains(library));
    let name = function.rsplit("::").next().unwrap_or(function);
    name.starts_with("{closure") || (of_library && !function.contains("tollway"))
}

/// A function and its share of the time.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Function {
    /// The function's path.
    pub name: String,
    /// Whether it was inlined everywhere.
    pub inlined: bool,
    /// Share of the samples in the function itself and in inlined standard library code, %.
    pub self_percent: f64,
    /// The 95% interval of that share, `[low, high]` (Wilson's interval).
    pub self_interval_percent: [f64; 2],
    /// Share of the samples in it or in its callees, %.
    pub total_percent: f64,
    /// Time per packet in the function itself, ns.
    pub self_ns: f64,
    /// Samples in the function itself.
    pub self_samples: u64,
    /// Samples in it or in its callees.
    pub total_samples: u64,
}

/// Every function with its shares, most own samples first. `ns` is the time per packet.
pub(crate) fn functions(stacks: &Stacks, ns: f64) -> Vec<Function> {
    #[derive(Default)]
    struct Part {
        own: u64,
        total: u64,
        real: bool,
    }
    let mut parts: BTreeMap<Rc<str>, Part> = BTreeMap::new();
    let mut all = 0;
    for (stack, count) in stacks {
        all += count;
        let last = stack.iter().rposition(|frame| !is_library(&frame.function));
        let Some(last) = last.or(stack.len().checked_sub(1)) else { continue };
        let mut seen = HashSet::new();
        for (at, frame) in stack.iter().enumerate() {
            if is_library(&frame.function) && at != last {
                continue;
            }
            let part = parts.entry(Rc::clone(&frame.function)).or_default();
            part.real |= !frame.inlined;
            part.own += if at == last { *count } else { 0 };
            part.total += if seen.insert(&frame.function) { *count } else { 0 };
        }
    }
    let percent = |count: u64| 100.0 * count as f64 / all.max(1) as f64;
    let function = |(name, part): (Rc<str>, Part)| Function {
        name: name.to_string(),
        inlined: !part.real,
        self_percent: percent(part.own),
        self_interval_percent: wilson(part.own, all).map(|share| 100.0 * share),
        total_percent: percent(part.total),
        self_ns: percent(part.own) / 100.0 * ns,
        self_samples: part.own,
        total_samples: part.total,
    };
    let mut functions: Vec<_> = parts.into_iter().map(function).collect();
    functions.sort_by_key(|of| (u64::MAX - of.self_samples, u64::MAX - of.total_samples));
    functions
}

/// The 95% interval of a share, from `found` of `all` samples.
fn wilson(found: u64, all: u64) -> [f64; 2] {
    const Z: f64 = 1.959_963_984_540_054;
    if all == 0 {
        return [0.0, 1.0];
    }
    let (n, share) = (all as f64, found as f64 / all as f64);
    let middle = share + Z * Z / (2.0 * n);
    let margin = Z * (share * (1.0 - share) / n + Z * Z / (4.0 * n * n)).sqrt();
    let scale = 1.0 + Z * Z / n;
    [((middle - margin) / scale).max(0.0), ((middle + margin) / scale).min(1.0)]
}

/// A function's path, shortened for pictures: its last two parts, or type and name of a trait
/// implementation.
pub(crate) fn short(name: &str) -> String {
    if let Some((implementing, rest)) =
        name.strip_prefix('<').and_then(|rest| rest.split_once(" as "))
        && let Some((_, own)) = rest.rsplit_once(">::")
    {
        return format!("{}::{own}", last_parts(implementing, 1));
    }
    // Every stage has a module of that name, so keep one part more.
    let parts = if last_parts(name, 2).starts_with("stage::") { 3 } else { 2 };
    last_parts(name, parts).to_owned()
}

/// The last `count` parts of a path.
fn last_parts(name: &str, count: usize) -> &str {
    // Generic arguments and implementing types contain `::`, too.
    let (mut depth, mut starts) = (0, vec![0]);
    let bytes = name.as_bytes();
    for (at, byte) in bytes.iter().enumerate() {
        match byte {
            b'<' | b'(' | b'[' => depth += 1,
            b'>' if at > 0 && bytes[at - 1] != b'-' => depth -= 1,
            b')' | b']' => depth -= 1,
            b':' if depth == 0 && bytes.get(at + 1) == Some(&b':') => starts.push(at + 2),
            _ => {}
        }
    }
    name.get(starts[starts.len().saturating_sub(count)]..).unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn stack(names: &[&str]) -> Vec<Frame> {
        let frame = |name: &&str| Frame::new(name.trim_start_matches('~'), name.starts_with('~'));
        names.iter().map(frame).collect()
    }

    fn known() -> Stacks {
        let root = "tollway_lab::bench::Bench::forward";
        [
            (stack(&[root, "tollway_dataplane::forward"]), 10),
            (stack(&[root, "tollway_dataplane::forward", "~tollway_dataplane::route"]), 40),
            (
                stack(&[
                    root,
                    "tollway_dataplane::forward",
                    "~tollway_dataplane::route",
                    "~core::ptr::read",
                ]),
                20,
            ),
            (stack(&[root, "tollway_dataplane::forward", "memcpy"]), 30),
        ]
        .into()
    }

    #[test]
    fn every_function_has_its_own_and_what_it_calls() {
        let found = functions(&known(), 20.0);
        let rows: Vec<_> = found
            .iter()
            .map(|of| (&*of.name, of.inlined, of.self_percent, of.total_percent, of.self_ns))
            .collect();
        assert_eq!(
            rows,
            [
                ("tollway_dataplane::route", true, 60.0, 60.0, 12.0),
                ("memcpy", false, 30.0, 30.0, 6.0),
                ("tollway_dataplane::forward", false, 10.0, 100.0, 2.0),
                ("tollway_lab::bench::Bench::forward", false, 0.0, 100.0, 0.0),
            ]
        );
    }

    #[test]
    fn a_function_that_calls_itself_counts_once() {
        let stacks = [(stack(&["a", "b", "a"]), 4)].into();
        let found = functions(&stacks, 1.0);
        assert_eq!((found[0].name.as_str(), found[0].total_samples), ("a", 4));
        assert_eq!(found[0].self_samples, 4);
        assert_eq!(functions(&Stacks::new(), 1.0), []);
    }

    #[test]
    fn frames_outside_of_the_measured_part_are_omitted() {
        let whole = stack(&["main", "tollway_lab::bench::Bench::forward", "x"]);
        assert_eq!(from_root(whole.clone()), whole[1..]);
        assert_eq!(from_root(stack(&["main", "forward"])), stack(&["main", "forward"]));
    }

    /// Agresti and Coull (1998), table 1: the score interval of 9 out of 10 is 0.596 to 0.982.
    #[test]
    fn the_interval_is_wilsons() {
        let [low, high] = wilson(9, 10);
        assert!((low - 0.596).abs() < 5e-4 && (high - 0.982).abs() < 5e-4, "{low} {high}");
        assert_eq!(wilson(0, 0), [0.0, 1.0]);
        assert!(wilson(0, 50)[0] < 1e-9 && wilson(50, 50)[1] > 1.0 - 1e-9);
    }

    #[test]
    fn the_library_and_closures_count_for_who_calls_them() {
        for (name, is) in [
            ("core::ptr::read", true),
            ("core_arch::x86::avx2::_mm256_add_epi32", true),
            ("tollway_dataplane::path::{closure#3}", true),
            ("<tollway_dataplane::x::Y as core::clone::Clone>::clone", false),
            ("<u8 as core::clone::Clone>::clone", true),
            ("malloc", false),
        ] {
            assert_eq!(is_library(name), is, "{name}");
        }
    }

    #[test]
    fn short_names_are_the_last_two_parts() {
        for (name, expected) in [
            ("memcpy", "memcpy"),
            ("a::b", "a::b"),
            ("tollway_dataplane::stages::route::look_up", "route::look_up"),
            ("tollway_dataplane::stages::route::stage::run", "route::stage::run"),
            ("<a::B as c::D<e::F>>::go", "B::go"),
            ("x::y::<impl a::b::C>::z", "<impl a::b::C>::z"),
            ("a::f::{{closure}}", "f::{{closure}}"),
        ] {
            assert_eq!(short(name), expected);
        }
    }
}
