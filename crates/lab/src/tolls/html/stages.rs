//! Rows as bars divided into stages.

use tollway_dataplane::stages::Stage;

use super::bars::{label, step};
use crate::svg::{Anchor, Svg};
use crate::tolls::Row;

const WIDTH: f64 = 980.0;
const NAMES: f64 = 130.0;
const FIGURES: f64 = 60.0;
const ROW: f64 = 22.0;
const FOOT: f64 = 44.0;
const KEY: f64 = 22.0;

/// The colour of each stage, in path order.
const COLOURS: [&str; 13] = [
    "#1f5fa8", "#7fa8d4", "#0f766e", "#5eb5a6", "#6d8b2f", "#c9a227", "#e3a486", "#c84b1a",
    "#8c2d19", "#7b4fa3", "#b79ad1", "#4a5568", "#a0aec0",
];

/// Draws the rows that have stages; empty if there are none.
pub(super) fn draw(rows: &[Row], ns_per_clock: f64) -> String {
    let rows: Vec<&Row> = rows.iter().filter(|row| !row.row.stages.is_empty()).collect();
    let sum = |row: &&Row| row.row.stages.values().sum::<f64>() * ns_per_clock;
    let most = rows.iter().map(sum).fold(0.0, f64::max);
    if most <= 0.0 {
        return String::new();
    }
    let used: Vec<(Stage, &str)> = Stage::ALL
        .iter()
        .copied()
        .zip(COLOURS.into_iter().cycle())
        .filter(|(stage, _)| rows.iter().any(|row| row.row.stages.contains_key(stage.name())))
        .collect();
    let step = step(most);
    let high = (most / step).ceil() * step;
    let x = |value: f64| NAMES + value / high * (WIDTH - NAMES - FIGURES);
    let head = key_height(used.len());
    let bottom = head + rows.len() as f64 * ROW;
    let mut svg = Svg::new(WIDTH, bottom + FOOT);
    for (at, (stage, colour)) in used.iter().enumerate() {
        let (left, top) =
            (NAMES + (at % PER_LINE) as f64 * 118.0, 4.0 + (at / PER_LINE) as f64 * KEY);
        svg.rect((left, top), (13.0, 13.0), colour, "");
        svg.text((left + 18.0, top + 11.0), 12.5, Anchor::Start, stage.name());
    }
    for tick in 0..=(high / step).round() as usize {
        let value = tick as f64 * step;
        svg.line((x(value), head), (x(value), bottom + 4.0), "#e2e2e2", 1.0);
        svg.coloured_text(
            (x(value), bottom + 18.0),
            12.0,
            Anchor::Middle,
            "#555",
            &label(value, step),
        );
    }
    svg.coloured_text(
        (f64::midpoint(x(0.0), x(high)), bottom + 36.0),
        12.0,
        Anchor::Middle,
        "#555",
        "ns a packet",
    );
    for (at, row) in rows.iter().enumerate() {
        let top = head + at as f64 * ROW;
        svg.text((4.0, top + 15.0), 12.5, Anchor::Start, row.row.name);
        let mut sum = 0.0;
        for (stage, colour) in &used {
            let Some(clocks) = row.row.stages.get(stage.name()) else { continue };
            let ns = clocks.max(0.0) * ns_per_clock;
            let title = format!("{}, {}: {ns:.2} ns", row.row.name, stage.name());
            svg.rect((x(sum), top + 3.0), (x(sum + ns) - x(sum), ROW - 6.0), colour, &title);
            sum += ns;
        }
        svg.text((x(sum) + 6.0, top + 15.0), 12.0, Anchor::Start, &format!("{sum:.1}"));
    }
    svg.done()
}

/// Stages per line of the legend.
const PER_LINE: usize = 7;

fn key_height(stages: usize) -> f64 {
    stages.div_ceil(PER_LINE) as f64 * KEY + 10.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tolls::tests::made;

    #[test]
    fn stages_stand_one_beside_the_other() {
        let text = draw(&made(&[("floor", 1.0), ("ip4-one-flow", 10.0)]).report.rows, 1.0);
        let of = |name: &str, title: &str| -> f64 {
            let line = text.lines().find(|line| line.contains(title)).unwrap();
            let (_, rest) = line.split_once(&format!(" {name}=\"")).unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        let (admit, route) = ("ip4-one-flow, admit: 2.00 ns", "ip4-one-flow, route: 3.00 ns");
        assert!((of("x", admit) + of("width", admit) - of("x", route)).abs() < 0.2);
        assert!((of("width", admit) * 1.5 - of("width", route)).abs() < 0.2);
        assert!(text.contains(">5.0</text>"), "the sum");
        assert!(!text.contains("floor"), "what has no stages");
        assert_eq!(draw(&[], 1.0), "");
    }
}
