//! Finds circles among the children of each module.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::tree::Tree;

/// The children of a module, what each imports of the others, and one example of each import.
type Graph = BTreeMap<String, BTreeMap<String, String>>;

/// Every circle of the crate as text: its modules, then an example of each import. Of children that
/// are in several circles at once, only the shortest one is reported.
pub fn find(tree: &Tree) -> Vec<String> {
    let mut circles = Vec::new();
    for (parent, graph) in graphs(tree) {
        let mut rest: BTreeSet<&String> = graph.keys().collect();
        while let Some(start) = rest.pop_first() {
            let reachable = |from: &String| {
                graph.keys().filter(|to| path(&graph, from, to).is_some()).collect::<BTreeSet<_>>()
            };
            let mut knot = reachable(start);
            knot.retain(|to| path(&graph, to, start).is_some());
            rest.retain(|child| !knot.contains(child));
            let through = knot.iter().filter_map(|child| path(&graph, child, child));
            let Some(circle) = through.min_by_key(Vec::len) else { continue };
            circles.push(report(tree, parent, &graph, &circle, knot.len()));
        }
    }
    circles
}

/// The graphs of all modules that have children.
fn graphs(tree: &Tree) -> BTreeMap<usize, Graph> {
    let mut graphs: BTreeMap<usize, Graph> = BTreeMap::new();
    for (index, module) in tree.modules.iter().enumerate() {
        for path in &module.scope.paths {
            let Some(to) = tree.resolve(index, &path.names) else { continue };
            let to = &tree.modules[to];
            let shared = module.path.iter().zip(&to.path).take_while(|(a, b)| a == b).count();
            let (Some(x), Some(z)) = (module.path.get(shared), to.path.get(shared)) else {
                continue;
            };
            let parent = (shared..module.path.len()).fold(index, |at, _| tree.modules[at].parent);
            let graph = graphs.entry(parent).or_default();
            graph.entry(z.clone()).or_default();
            graph.entry(x.clone()).or_default().entry(z.clone()).or_insert_with(|| {
                let (from, line) = (module.file.display(), path.line);
                format!("{from}:{line} -> {} ({})", to.file.display(), path.names.join("::"))
            });
        }
    }
    graphs
}

/// The shortest path of at least one import, with both ends.
fn path<'a>(graph: &'a Graph, from: &'a String, to: &String) -> Option<Vec<&'a String>> {
    let mut paths = VecDeque::from([vec![from]]);
    let mut visited = BTreeSet::new();
    while let Some(path) = paths.pop_front() {
        for next in graph.get(*path.last()?)?.keys() {
            let longer = [path.as_slice(), &[next]].concat();
            if next == to {
                return Some(longer);
            }
            if visited.insert(next) {
                paths.push_back(longer);
            }
        }
    }
    None
}

fn report(tree: &Tree, parent: usize, graph: &Graph, circle: &[&String], knot: usize) -> String {
    let names: Vec<_> = circle.iter().map(|name| name.as_str()).collect();
    let parent = [&["crate".to_owned()], tree.modules[parent].path.as_slice()].concat();
    let root = tree.modules[0].file.display();
    let mut text = format!("{root}: {}: {}", parent.join("::"), names.join(" -> "));
    if knot >= circle.len() {
        text += &format!(" (the shortest of several circles among {knot} modules)");
    }
    for pair in circle.windows(2) {
        text += &format!("\n    {}", graph[pair[0]][pair[1]]);
    }
    text
}
