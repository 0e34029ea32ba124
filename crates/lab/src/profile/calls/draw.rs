use std::fmt::Write as _;

use super::layout::{Layout, lay_out};
use super::{Edge, Graph, Node, colour, percent};
use crate::profile::stacks::short;
use crate::svg::{Anchor, Svg, escaped, fitted, width};

const MARGIN: f64 = 24.0;
const HEAD: f64 = 66.0;
const BOX: f64 = 46.0;
const LAYER: f64 = 104.0;
const GAP: f64 = 26.0;
const NAME: f64 = 13.0;
const SMALL: f64 = 11.0;
const WIDEST: f64 = 330.0;

/// The graph as SVG.
pub(in crate::profile) fn draw(graph: &Graph, caption: &str) -> String {
    let widths: Vec<f64> = graph.nodes.iter().map(box_width).collect();
    let edges: Vec<_> = graph.edges.iter().map(|edge| (edge.from, edge.to)).collect();
    let layout = lay_out(&widths, &edges, GAP);
    let full = (layout.width + 2.0 * MARGIN).max(640.0);
    let height = HEAD + layout.layers.max(1) as f64 * LAYER - (LAYER - BOX) + MARGIN;
    let mut svg = Svg::new(full, height);
    svg.text((full / 2.0, 26.0), 18.0, Anchor::Middle, caption);
    let legend = "the redder, the more time in the function itself; on arrows the share of the time in the call; \
                  dashed: inlined";
    svg.coloured_text((full / 2.0, 46.0), 12.0, Anchor::Middle, "#666", legend);
    let left = (full - layout.width) / 2.0;
    svg.raw(
        "<defs><marker id=\"tip\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerUnits=\"userSpaceOnUse\" \
         markerWidth=\"9\" markerHeight=\"9\" orient=\"auto\"><path d=\"M0,0L8,4L0,8z\" fill=\"#555\"/>\
         </marker></defs>",
    );
    for (edge, points) in graph.edges.iter().zip(&layout.edges) {
        arrow(&mut svg, edge, points, left);
    }
    nodes(&mut svg, graph, &layout, &widths, left);
    // Labels come last, so that no arrow runs through them.
    for (edge, points) in graph.edges.iter().zip(&layout.edges) {
        label(&mut svg, edge, points, left);
    }
    svg.done()
}

fn figures(node: &Node) -> String {
    let inlined = if node.inlined { ", inlined" } else { "" };
    format!("self {}, total {}{inlined}", percent(node.own), percent(node.total))
}

fn box_width(node: &Node) -> f64 {
    let name = width(&short(&node.name), NAME).min(WIDEST);
    name.max(width(&figures(node), SMALL)) + 20.0
}

fn top(layer: usize) -> f64 {
    HEAD + layer as f64 * LAYER
}

fn nodes(svg: &mut Svg, graph: &Graph, layout: &Layout, widths: &[f64], left: f64) {
    for ((node, (x, layer)), width) in graph.nodes.iter().zip(&layout.nodes).zip(widths) {
        let (x, y) = (x + left, top(*layer));
        let dashes = if node.inlined { " stroke-dasharray=\"4 2\"" } else { "" };
        svg.raw(&format!(
            "<rect x=\"{:.1}\" y=\"{y:.1}\" width=\"{width:.1}\" height=\"{BOX}\" rx=\"4\" fill=\"{}\" \
             stroke=\"#555\"{dashes}><title>{}</title></rect>",
            x - width / 2.0,
            colour(node.own),
            escaped(&format!("{}: {}", node.name, figures(node)))
        ));
        let name = fitted(&short(&node.name), NAME, width - 10.0);
        svg.text((x, y + 19.0), NAME, Anchor::Middle, &name);
        svg.coloured_text((x, y + 36.0), SMALL, Anchor::Middle, "#333", &figures(node));
    }
}

/// The points of an edge: its start, what it passes, its end.
fn path(points: &[(f64, usize)], left: f64) -> Vec<(f64, f64)> {
    let last = points.len() - 1;
    let downwards = points[last].1 >= points[0].1;
    let y = |at: usize, layer: usize| match (at, downwards) {
        (0, true) => top(layer) + BOX,
        (0, false) => top(layer),
        (at, true) if at == last => top(layer) - 1.0,
        (at, false) if at == last => top(layer) + BOX + 1.0,
        _ => top(layer) + BOX / 2.0,
    };
    points.iter().enumerate().map(|(at, (x, layer))| (x + left, y(at, *layer))).collect()
}

fn arrow(svg: &mut Svg, edge: &Edge, points: &[(f64, usize)], left: f64) {
    let path = path(points, left);
    let mut curve = format!("M{:.1},{:.1}", path[0].0, path[0].1);
    for pair in path.windows(2) {
        let [(x1, y1), (x2, y2)] = [pair[0], pair[1]];
        let bend = (y2 - y1) / 2.0;
        let _ = write!(curve, "C{x1:.1},{:.1} {x2:.1},{:.1} {x2:.1},{y2:.1}", y1 + bend, y2 - bend);
    }
    let dashes = if edge.inlined { " stroke-dasharray=\"5 3\"" } else { "" };
    svg.raw(&format!(
        "<path d=\"{curve}\" fill=\"none\" stroke=\"#777\" stroke-width=\"{:.1}\"{dashes} marker-end=\"url(#tip)\"/>",
        0.8 + 3.0 * edge.share
    ));
}

/// Writes the share halfway to the first layer that the edge reaches.
fn label(svg: &mut Svg, edge: &Edge, points: &[(f64, usize)], left: f64) {
    let path = path(points, left);
    let at = path.len().div_ceil(2).min(path.len() - 1);
    let [(x1, y1), (x2, y2)] = [path[at - 1], path[at]];
    let (x, y) = (f64::midpoint(x1, x2), f64::midpoint(y1, y2));
    let text = percent(edge.share);
    let room = width(&text, SMALL);
    svg.raw(&format!(
        "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{room:.1}\" height=\"14\" fill=\"#fff\" opacity=\"0.85\"/>",
        x - room / 2.0,
        y - 8.0
    ));
    svg.coloured_text((x, y + 3.0), SMALL, Anchor::Middle, "#333", &text);
}

#[cfg(test)]
mod tests {
    use super::super::{graph, tests::stacks};
    use super::*;
    use crate::profile::stacks::Stacks;

    #[test]
    fn every_function_has_a_box_and_every_call_an_arrow() {
        let graph = graph(&stacks());
        let text = draw(&graph, "a row");
        assert_eq!(text.matches("rx=\"4\"").count(), graph.nodes.len());
        assert_eq!(text.matches("marker-end").count(), graph.edges.len());
        for part in ["<title>b: self 80.0%, total 80.0%, inlined</title>", ">60.0%</text>", "a row"]
        {
            assert!(text.contains(part), "{part}");
        }
        assert!(draw(&super::super::graph(&Stacks::new()), "x").ends_with("</svg>\n"));
    }
}
