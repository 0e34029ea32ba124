//! The layout of a graph's boxes: in layers, callers above, with few crossings (Sugiyama's method).

use std::collections::HashMap;

/// Rounds of sorting and of moving.
const ROUNDS: usize = 24;

/// The positions of boxes and edges.
#[derive(Debug)]
pub(super) struct Layout {
    /// The horizontal centre of each box, and its layer.
    pub(super) nodes: Vec<(f64, usize)>,
    /// For each edge the horizontal centres that it passes, layer by layer, both ends included.
    pub(super) edges: Vec<Vec<(f64, usize)>>,
    pub(super) layers: usize,
    pub(super) width: f64,
}

/// Lays out boxes of these widths, `gap` apart. Edges lead from the first to the second node.
pub(super) fn lay_out(widths: &[f64], edges: &[(usize, usize)], gap: f64) -> Layout {
    let layers = layers(widths.len(), edges);
    let mut graph = Layered::new(widths, edges, &layers, gap);
    graph.sort();
    graph.place();
    let at = |node: usize| (graph.x[node], graph.layer[node]);
    let nodes = (0..widths.len()).map(at).collect();
    let edges =
        graph.chains.iter().map(|chain| chain.iter().map(|node| at(*node)).collect()).collect();
    let right = |node: usize| graph.x[node] + graph.width[node] / 2.0;
    let width = (0..graph.x.len()).map(right).fold(0.0, f64::max);
    Layout { nodes, edges, layers: graph.rows.len(), width }
}

/// The layer of each node: one below the lowest of its predecessors, except edges that close a
/// cycle.
fn layers(nodes: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut next = vec![Vec::new(); nodes];
    for (from, to) in edges {
        next[*from].push(*to);
    }
    let mut order = Vec::new();
    let mut state = vec![0_u8; nodes];
    let mut forward = vec![Vec::new(); nodes];
    let is_called = |node: &usize| edges.iter().any(|(_, to)| to == node);
    let starts = (0..nodes).filter(|node| !is_called(node)).chain(0..nodes);
    for start in starts {
        let mut stack = vec![(start, 0)];
        if state[start] == 0 {
            state[start] = 1;
        } else {
            stack.clear();
        }
        while let Some((node, at)) = stack.pop() {
            let Some(to) = next[node].get(at).copied() else {
                state[node] = 2;
                order.push(node);
                continue;
            };
            stack.push((node, at + 1));
            match state[to] {
                0 => {
                    state[to] = 1;
                    forward[node].push(to);
                    stack.push((to, 0));
                }
                1 => {}
                _ => forward[node].push(to),
            }
        }
    }
    let mut layers = vec![0; nodes];
    for node in order.into_iter().rev() {
        for to in &forward[node] {
            layers[*to] = layers[*to].max(layers[node] + 1);
        }
    }
    layers
}

/// A graph whose edges connect adjacent layers, with a node without a box wherever an edge passes a
/// layer.
struct Layered {
    width: Vec<f64>,
    layer: Vec<usize>,
    x: Vec<f64>,
    above: Vec<Vec<usize>>,
    below: Vec<Vec<usize>>,
    /// The nodes of each layer, from the left.
    rows: Vec<Vec<usize>>,
    /// The nodes that each edge passes.
    chains: Vec<Vec<usize>>,
    gap: f64,
}

impl Layered {
    fn new(widths: &[f64], edges: &[(usize, usize)], layers: &[usize], gap: f64) -> Self {
        let mut made = Self {
            width: widths.to_vec(),
            layer: layers.to_vec(),
            x: Vec::new(),
            above: vec![Vec::new(); widths.len()],
            below: vec![Vec::new(); widths.len()],
            rows: Vec::new(),
            chains: Vec::new(),
            gap,
        };
        for (from, to) in edges {
            let chain = made.chain(*from, *to);
            made.chains.push(chain);
        }
        made.rows = vec![Vec::new(); layers.iter().max().map_or(0, |most| most + 1)];
        for (node, layer) in made.layer.iter().enumerate() {
            made.rows[*layer].push(node);
        }
        made.x = vec![0.0; made.width.len()];
        made
    }

    /// The nodes of an edge; creates one in each layer that it passes.
    fn chain(&mut self, from: usize, to: usize) -> Vec<usize> {
        let (top, bottom) = (self.layer[from], self.layer[to]);
        let between: Vec<usize> = if top < bottom {
            (top + 1..bottom).collect()
        } else {
            (bottom + 1..top).rev().collect()
        };
        let mut chain = vec![from];
        for layer in between {
            chain.push(self.width.len());
            self.width.push(self.gap);
            self.layer.push(layer);
            self.above.push(Vec::new());
            self.below.push(Vec::new());
        }
        chain.push(to);
        for pair in chain.windows(2) {
            let (mut upper, mut lower) = (pair[0], pair[1]);
            if self.layer[upper] > self.layer[lower] {
                (upper, lower) = (lower, upper);
            }
            if self.layer[upper] < self.layer[lower] {
                self.below[upper].push(lower);
                self.above[lower].push(upper);
            }
        }
        chain
    }

    /// Sorts the layers to reduce crossings: each by the mean position of its neighbours, downwards
    /// and upwards.
    fn sort(&mut self) {
        let mut best = (self.crossings(), self.rows.clone());
        for round in 0..ROUNDS {
            let down = round % 2 == 0;
            let order: Vec<usize> = if down {
                (1..self.rows.len()).collect()
            } else {
                (0..self.rows.len().saturating_sub(1)).rev().collect()
            };
            for row in order {
                let beside = &self.rows[if down { row - 1 } else { row + 1 }];
                let place: HashMap<usize, usize> =
                    beside.iter().enumerate().map(|(at, node)| (*node, at)).collect();
                let neighbours = if down { &self.above } else { &self.below };
                let mean = |at: usize, node: usize| {
                    let places = neighbours[node].iter().filter_map(|other| place.get(other));
                    let (sum, count) =
                        places.fold((0, 0), |(sum, count), at| (sum + at, count + 1));
                    if count == 0 { at as f64 } else { sum as f64 / f64::from(count) }
                };
                let mut keyed: Vec<(f64, usize)> = self.rows[row]
                    .iter()
                    .enumerate()
                    .map(|(at, node)| (mean(at, *node), *node))
                    .collect();
                keyed.sort_by(|a, b| a.0.total_cmp(&b.0));
                self.rows[row] = keyed.into_iter().map(|(_, node)| node).collect();
            }
            let crossings = self.crossings();
            if crossings < best.0 {
                best = (crossings, self.rows.clone());
            }
        }
        self.rows = best.1;
    }

    fn crossings(&self) -> usize {
        let crossings = |pair: &[Vec<usize>]| {
            let place: HashMap<usize, usize> =
                pair[1].iter().enumerate().map(|(at, node)| (*node, at)).collect();
            let ends = pair[0]
                .iter()
                .enumerate()
                .flat_map(|(at, node)| self.below[*node].iter().map(move |to| (at, *to)));
            let ends: Vec<(usize, usize)> =
                ends.filter_map(|(at, to)| Some((at, *place.get(&to)?))).collect();
            let cross = |a: &(usize, usize), b: &(usize, usize)| a.0 < b.0 && a.1 > b.1;
            ends.iter().map(|a| ends.iter().filter(|b| cross(a, b)).count()).sum::<usize>()
        };
        self.rows.windows(2).map(crossings).sum()
    }

    /// Moves the nodes of every layer towards their neighbours, as far as their order permits.
    fn place(&mut self) {
        for row in 0..self.rows.len() {
            let wanted = vec![0.0; self.rows[row].len()];
            self.place_row(row, &wanted);
        }
        for round in 0..ROUNDS {
            let rows = self.rows.len();
            for step in 0..rows {
                let row = if round % 2 == 0 { step } else { rows - 1 - step };
                let wanted: Vec<f64> =
                    self.rows[row].iter().map(|node| self.wanted(*node)).collect();
                self.place_row(row, &wanted);
            }
        }
        let left = |node: usize| self.x[node] - self.width[node] / 2.0;
        let least = (0..self.x.len()).map(left).fold(f64::INFINITY, f64::min);
        for x in &mut self.x {
            *x -= least;
        }
    }

    /// The mean position of a node's neighbours.
    fn wanted(&self, node: usize) -> f64 {
        let all = self.above[node].iter().chain(&self.below[node]);
        let (sum, count) =
            all.fold((0.0, 0), |(sum, count), other| (sum + self.x[*other], count + 1));
        if count == 0 { self.x[node] } else { sum / f64::from(count) }
    }

    /// Places a layer with the least sum of squared distances from the wanted positions. Nodes that
    /// are too close move together (isotonic regression).
    fn place_row(&mut self, row: usize, wanted: &[f64]) {
        let mut offsets = Vec::with_capacity(wanted.len());
        let mut offset = 0.0;
        for (at, node) in self.rows[row].iter().enumerate() {
            if at > 0 {
                let before = self.rows[row][at - 1];
                offset += f64::midpoint(self.width[before], self.width[*node]) + self.gap;
            }
            offsets.push(offset);
        }
        let mut blocks: Vec<(f64, usize)> = Vec::new();
        for (wanted, offset) in wanted.iter().zip(&offsets) {
            let mut block = (wanted - offset, 1);
            while let Some(before) = blocks.pop_if(|before| before.0 >= block.0) {
                let count = before.1 + block.1;
                let sum = before.0 * before.1 as f64 + block.0 * block.1 as f64;
                block = (sum / count as f64, count);
            }
            blocks.push(block);
        }
        let places = blocks.iter().flat_map(|(place, count)| std::iter::repeat_n(*place, *count));
        for ((node, offset), place) in self.rows[row].iter().zip(offsets).zip(places) {
            self.x[*node] = place + offset;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn callers_are_above_and_circles_do_no_harm() {
        let edges = [(0, 1), (0, 2), (1, 3), (2, 3), (0, 3), (3, 1)];
        let layout = lay_out(&[100.0; 4], &edges, 20.0);
        let layer = |node: usize| layout.nodes[node].1;
        assert_eq!(layer(0), 0);
        assert!(layer(1) > layer(0) && layer(2) > layer(0));
        for (at, (from, to)) in edges.iter().enumerate() {
            let points = &layout.edges[at];
            assert_eq!(points[0], layout.nodes[*from]);
            assert_eq!(points[points.len() - 1], layout.nodes[*to]);
            assert!(points.windows(2).all(|pair| pair[0].1.abs_diff(pair[1].1) <= 1), "{points:?}");
        }
    }

    #[test]
    fn boxes_of_a_layer_do_not_touch() {
        let edges: Vec<(usize, usize)> = (1..12).map(|to| (to / 3, to)).collect();
        let widths: Vec<f64> = (0..12).map(|at| 60.0 + 10.0 * f64::from(at)).collect();
        let layout = lay_out(&widths, &edges, 20.0);
        for a in 0..12 {
            for b in 0..a {
                let ((left, above), (right, beside)) = (layout.nodes[a], layout.nodes[b]);
                let room = f64::midpoint(widths[a], widths[b]) + 20.0 - 1e-6;
                assert!(above != beside || (left - right).abs() >= room, "{a} and {b}");
            }
            assert!(layout.nodes[a].0 - widths[a] / 2.0 >= -1e-9);
            assert!(layout.nodes[a].0 + widths[a] / 2.0 <= layout.width + 1e-9);
        }
    }

    #[test]
    fn edges_that_need_not_cross_do_not() {
        // 0 and 1 lead to 3 and 2: in the given order they cross.
        let layout = lay_out(&[50.0; 4], &[(0, 3), (1, 2)], 10.0);
        let x = |node: usize| layout.nodes[node].0;
        assert_eq!(x(0) < x(1), x(3) < x(2));
        assert!((x(0) - x(3)).abs() < 1e-6, "straight down");
    }
}
