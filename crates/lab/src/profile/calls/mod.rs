//! The call graph: callers, callees and shares of the time, as DOT and as a picture.

mod dot;
mod draw;
mod layout;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::rc::Rc;

use super::stacks::{Stacks, is_library};
use super::symbols::Frame;

pub(super) use dot::dot;
pub(super) use draw::draw;

/// The share below which functions and calls are omitted.
const LEAST: f64 = 0.005;

/// The most functions in the graph.
const MOST: usize = 40;

/// Functions and their calls, as shares of all samples.
#[derive(Debug, PartialEq)]
pub(super) struct Graph {
    pub(super) nodes: Vec<Node>,
    pub(super) edges: Vec<Edge>,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Node {
    pub(super) name: Rc<str>,
    pub(super) inlined: bool,
    /// Share in the function itself.
    pub(super) own: f64,
    /// Share including its callees.
    pub(super) total: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub(super) struct Edge {
    pub(super) from: usize,
    pub(super) to: usize,
    pub(super) share: f64,
    /// Whether the callee is inlined there.
    pub(super) inlined: bool,
}

/// Caller and callee.
type Call = (Rc<str>, Rc<str>);

/// The graph of stacks. Standard library code counts for its caller.
pub(super) fn graph(stacks: &Stacks) -> Graph {
    let mut nodes: BTreeMap<Rc<str>, Node> = BTreeMap::new();
    let mut calls: BTreeMap<Call, (u64, bool)> = BTreeMap::new();
    let all = stacks.values().sum::<u64>().max(1) as f64;
    for (stack, count) in stacks {
        let shown: Vec<&Frame> = stack.iter().filter(|of| !is_library(&of.function)).collect();
        let (mut seen, mut called) = (BTreeSet::new(), BTreeSet::new());
        for (at, frame) in shown.iter().enumerate() {
            let name = &frame.function;
            let fresh = || Node { name: Rc::clone(name), inlined: true, own: 0.0, total: 0.0 };
            let node = nodes.entry(Rc::clone(name)).or_insert_with(fresh);
            node.inlined &= frame.inlined;
            let share = *count as f64 / all;
            node.own += if at + 1 == shown.len() { share } else { 0.0 };
            node.total += if seen.insert(Rc::clone(name)) { share } else { 0.0 };
            let Some(before) = at.checked_sub(1).map(|before| &shown[before].function) else {
                continue;
            };
            let call = (Rc::clone(before), Rc::clone(name));
            if before != name && called.insert(call.clone()) {
                let sum = calls.entry(call).or_insert((0, true));
                sum.0 += count;
                sum.1 &= frame.inlined;
            }
        }
    }
    let mut nodes: Vec<Node> = nodes.into_values().filter(|node| node.total >= LEAST).collect();
    nodes.sort_by(|a, b| b.total.total_cmp(&a.total).then_with(|| a.name.cmp(&b.name)));
    nodes.truncate(MOST);
    let numbers: HashMap<Rc<str>, usize> =
        nodes.iter().enumerate().map(|(at, node)| (Rc::clone(&node.name), at)).collect();
    let edge = |(call, found): (&Call, &(u64, bool))| {
        let share = found.0 as f64 / all;
        let (from, to) = (*numbers.get(&call.0)?, *numbers.get(&call.1)?);
        (share >= LEAST).then_some(Edge { from, to, share, inlined: found.1 })
    };
    let edges = calls.iter().filter_map(edge).collect();
    Graph { nodes, edges }
}

/// The colour of a share: pale yellow for little, red for much.
fn colour(share: f64) -> String {
    // Most shares of single functions are small; the square root separates them.
    let heat = share.clamp(0.0, 1.0).sqrt();
    let mix = |cold: f64, hot: f64| (cold + (hot - cold) * heat).round() as u8;
    format!("#{:02x}{:02x}{:02x}", mix(252.0, 226.0), mix(248.0, 70.0), mix(236.0, 40.0))
}

fn percent(share: f64) -> String {
    format!("{:.1}%", 100.0 * share)
}

#[cfg(test)]
mod tests {
    use super::*;

    pub(super) fn stacks() -> Stacks {
        let stack = |names: &str| -> Vec<Frame> {
            let frame =
                |name: &str| Frame::new(name.trim_start_matches('~'), name.starts_with('~'));
            names.split(' ').map(frame).collect()
        };
        [
            (stack("root a ~b"), 500),
            (stack("root a ~b core::ptr::read"), 100),
            (stack("root c ~b"), 200),
            (stack("root a b2 a"), 198),
            (stack("root rare"), 2),
        ]
        .into()
    }

    #[test]
    fn calls_have_the_share_of_their_stacks() {
        let graph = graph(&stacks());
        let node = |name: &str| graph.nodes.iter().position(|node| &*node.name == name).unwrap();
        let b = &graph.nodes[node("b")];
        assert_eq!(
            (percent(b.own), percent(b.total), b.inlined),
            ("80.0%".into(), "80.0%".into(), true)
        );
        let share = |from, to| {
            let edge =
                graph.edges.iter().find(|edge| (edge.from, edge.to) == (node(from), node(to)));
            edge.map(|edge| percent(edge.share)).unwrap_or_default()
        };
        assert_eq!(share("root", "a"), "79.8%");
        assert_eq!(share("a", "b"), "60.0%");
        assert_eq!(share("c", "b"), "20.0%");
        assert_eq!(share("b2", "a"), "19.8%");
        assert!(graph.nodes.iter().all(|node| &*node.name != "rare"), "under half a per cent");
    }

    #[test]
    fn the_hotter_the_redder() {
        assert_eq!(colour(0.0), "#fcf8ec");
        assert_eq!(colour(1.0), "#e24628");
    }
}
