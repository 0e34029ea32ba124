use std::fmt::Write as _;

use super::{Graph, colour, percent};

/// The graph in graphviz's language, for other layouts.
pub(in crate::profile) fn dot(graph: &Graph, caption: &str) -> String {
    let mut text = format!(
        "digraph calls {{\n  label={};\n  labelloc=t;\n  node [shape=box, style=filled, fontname=\"sans-serif\"];\n  \
         edge [fontname=\"sans-serif\"];\n",
        quoted(caption)
    );
    for (at, node) in graph.nodes.iter().enumerate() {
        let inlined = if node.inlined { "\ninlined" } else { "" };
        let label = format!(
            "{}\nself {} total {}{inlined}",
            node.name,
            percent(node.own),
            percent(node.total)
        );
        let _ = writeln!(
            text,
            "  n{at} [label={}, fillcolor=\"{}\"];",
            quoted(&label),
            colour(node.own)
        );
    }
    for edge in &graph.edges {
        let style = if edge.inlined { ", style=dashed" } else { "" };
        let (share, width) = (percent(edge.share), 0.5 + 3.0 * edge.share);
        let _ = writeln!(
            text,
            "  n{} -> n{} [label=\"{share}\", penwidth={width:.2}{style}];",
            edge.from, edge.to
        );
    }
    text + "}\n"
}

fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n"))
}

#[cfg(test)]
mod tests {
    use super::super::{graph, tests::stacks};
    use super::*;

    #[test]
    fn text_is_a_graph_for_graphviz() {
        let text = dot(&graph(&stacks()), "a \"row\"");
        assert!(text.starts_with("digraph calls {\n  label=\"a \\\"row\\\"\";"), "{text}");
        assert!(
            text.contains("[label=\"b\\nself 80.0% total 80.0%\\ninlined\", fillcolor=\"#"),
            "{text}"
        );
        assert_eq!(text.matches(" -> ").count(), 6);
        assert!(text.contains("[label=\"60.0%\", penwidth=2.30, style=dashed];"), "{text}");
    }
}
