//! The flame graph: a box for each function, as wide as its share, on top of its caller.

use std::collections::BTreeMap;
use std::rc::Rc;

use super::stacks::{Stacks, short};
use super::symbols::Frame;
use crate::svg::{Anchor, Svg, fitted};

const WIDTH: f64 = 1200.0;
const MARGIN: f64 = 12.0;
const ROW: f64 = 19.0;
const HEAD: f64 = 64.0;
const FOOT: f64 = 26.0;
const TYPE: f64 = 12.0;

/// The smallest share that is drawn.
const LEAST: f64 = 0.0005;

/// A function as called by the functions below it.
#[derive(Default)]
struct Node {
    count: u64,
    calls: BTreeMap<Frame, Node>,
}

impl Node {
    fn add(&mut self, stack: &[Frame], count: u64) {
        self.count += count;
        if let [first, rest @ ..] = stack {
            self.calls.entry(first.clone()).or_default().add(rest, count);
        }
    }

    /// The number of rows with something to draw.
    fn depth(&self, least: f64) -> usize {
        let shown = self.calls.values().filter(|node| node.count as f64 >= least);
        shown.map(|node| 1 + node.depth(least)).max().unwrap_or(0)
    }
}

/// Draws the stacks; `caption` describes them.
pub(super) fn draw(stacks: &Stacks, caption: &str) -> String {
    let mut root = Node::default();
    for (stack, count) in stacks {
        root.add(stack, *count);
    }
    let all = root.count.max(1) as f64;
    let depth = root.depth(all * LEAST).max(1);
    let height = HEAD + depth as f64 * ROW + FOOT;
    let mut picture =
        Picture { svg: Svg::new(WIDTH, height), scale: (WIDTH - 2.0 * MARGIN) / all, all, height };
    picture.svg.text((WIDTH / 2.0, 28.0), 18.0, Anchor::Middle, caption);
    picture.svg.coloured_text(
        (WIDTH / 2.0, 48.0),
        TYPE,
        Anchor::Middle,
        "#666",
        "as wide as its share of the samples; pale: inlined into the one below",
    );
    picture.calls(&root, MARGIN, 0);
    picture.svg.done()
}

struct Picture {
    svg: Svg,
    /// Width of a sample.
    scale: f64,
    all: f64,
    height: f64,
}

impl Picture {
    fn calls(&mut self, node: &Node, left: f64, level: usize) {
        let mut left = left;
        for (frame, called) in &node.calls {
            if called.count as f64 >= self.all * LEAST {
                self.function(frame, called, left, level);
                self.calls(called, left, level + 1);
            }
            left += called.count as f64 * self.scale;
        }
    }

    fn function(&mut self, frame: &Frame, node: &Node, left: f64, level: usize) {
        let width = node.count as f64 * self.scale;
        let top = self.height - FOOT - (level + 1) as f64 * ROW;
        let share = 100.0 * node.count as f64 / self.all;
        let inlined = if frame.inlined { ", inlined" } else { "" };
        let title = format!("{}{inlined}: {share:.1}%, {} samples", frame.function, node.count);
        let size = ((width - 0.6).max(0.3), ROW - 1.0);
        self.svg.rect((left, top), size, &colour(&frame.function, frame.inlined), &title);
        let text = fitted(&short(&frame.function), TYPE, width - 8.0);
        if !text.is_empty() {
            self.svg.text((left + 4.0, top + ROW - 6.0), TYPE, Anchor::Start, &text);
        }
    }
}

/// A warm colour, always the same for one function.
fn colour(function: &Rc<str>, inlined: bool) -> String {
    let hash = function.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    });
    let hue = 8 + hash % 42;
    let light = if inlined { 78 } else { 63 } + (hash >> 32) % 6;
    format!("hsl({hue},85%,{light}%)")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_as_wide_as_its_share() {
        let stack =
            |names: &[&str]| names.iter().map(|name| Frame::new(name, *name == "b")).collect();
        let stacks: Stacks =
            [(stack(&["root"]), 25), (stack(&["root", "a<T>"]), 50), (stack(&["root", "b"]), 25)]
                .into();
        let text = draw(&stacks, "a row");
        let width = WIDTH - 2.0 * MARGIN;
        for (share, title) in [
            (1.0, "root: 100.0%, 100"),
            (0.5, "a&lt;T&gt;: 50.0%, 50"),
            (0.25, "b, inlined: 25.0%, 25"),
        ] {
            let title = format!("<title>{title} samples</title>");
            let rect = text.lines().find(|line| line.contains(&title)).expect(&title);
            assert!(rect.contains(&format!("width=\"{:.1}\"", width * share - 0.6)), "{rect}");
        }
        assert!(text.contains(">a row</text>") && text.ends_with("</svg>\n"));
    }

    #[test]
    fn nothing_sampled_is_a_picture_too() {
        assert!(draw(&Stacks::new(), "x").contains("</svg>"));
    }
}
