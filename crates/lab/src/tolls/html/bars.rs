//! Horizontal bars from zero to the left or right, each with the interval of its value.

use crate::svg::{Anchor, Svg};

const WIDTH: f64 = 980.0;
const NAMES: f64 = 250.0;
const FIGURES: f64 = 80.0;
const ROW: f64 = 24.0;
const HEAD: f64 = 12.0;
const FOOT: f64 = 44.0;

/// A bar.
pub(super) struct Bar {
    pub(super) name: String,
    /// Grey text beside the name.
    pub(super) note: String,
    pub(super) title: String,
    pub(super) value: f64,
    pub(super) interval: [f64; 2],
    pub(super) colour: &'static str,
}

/// Draws the bars one below the other; empty if there are none.
pub(super) fn draw(bars: &[Bar], unit: &str) -> String {
    if bars.is_empty() {
        return String::new();
    }
    let ends = || bars.iter().flat_map(|bar| bar.interval.into_iter().chain([bar.value, 0.0]));
    let (low, high) = (ends().fold(0.0, f64::min), ends().fold(0.0, f64::max));
    let step = step(high - low);
    let (low, high) = ((low / step).floor() * step, (high / step).ceil().max(1.0) * step);
    let room = WIDTH - NAMES - FIGURES;
    let x = |value: f64| NAMES + (value - low) / (high - low) * room;
    let bottom = HEAD + bars.len() as f64 * ROW;
    let mut svg = Svg::new(WIDTH, bottom + FOOT);
    let ticks = ((high - low) / step).round() as usize;
    for tick in 0..=ticks {
        let value = low + tick as f64 * step;
        let colour = if value.abs() < step / 2.0 { "#666" } else { "#e2e2e2" };
        svg.line((x(value), HEAD), (x(value), bottom + 4.0), colour, 1.0);
        svg.coloured_text(
            (x(value), bottom + 18.0),
            12.0,
            Anchor::Middle,
            "#555",
            &label(value, step),
        );
    }
    svg.coloured_text(
        (f64::midpoint(x(low), x(high)), bottom + 36.0),
        12.0,
        Anchor::Middle,
        "#555",
        unit,
    );
    for (at, bar) in bars.iter().enumerate() {
        let top = HEAD + at as f64 * ROW;
        let middle = top + ROW / 2.0;
        svg.text((4.0, middle + 4.0), 13.0, Anchor::Start, &bar.name);
        svg.coloured_text((NAMES - 10.0, middle + 4.0), 10.5, Anchor::End, "#999", &bar.note);
        let (left, right) = (x(bar.value.min(0.0)), x(bar.value.max(0.0)));
        svg.rect((left, top + 4.0), (right - left, ROW - 8.0), bar.colour, &bar.title);
        let [from, to] = bar.interval.map(x);
        svg.line((from, middle), (to, middle), "#111", 1.4);
        for end in [from, to] {
            svg.line((end, middle - 4.0), (end, middle + 4.0), "#111", 1.4);
        }
        svg.text((WIDTH - 6.0, middle + 4.0), 12.5, Anchor::End, &format!("{:+.2}", bar.value));
    }
    svg.done()
}

/// The distance between about six marks: 1, 2 or 5 times a power of ten.
pub(super) fn step(range: f64) -> f64 {
    let rough = (range / 6.0).max(1e-6);
    let power = 10_f64.powf(rough.log10().floor());
    let round = [1.0, 2.0, 5.0, 10.0].into_iter().find(|round| round * power >= rough);
    round.unwrap_or(10.0) * power
}

/// A mark's figure, with as many decimals as its step needs.
pub(super) fn label(value: f64, step: f64) -> String {
    let decimals = if step >= 1.0 { 0 } else { (-step.log10()).ceil() as usize };
    // Zero has no sign.
    let value = if value.abs() < step / 2.0 { 0.0 } else { value };
    format!("{value:.decimals$}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_bar_is_as_long_as_its_value() {
        let bar = |value: f64| Bar {
            name: "n".to_owned(),
            note: String::new(),
            title: format!("t{value}"),
            value,
            interval: [value - 1.0, value + 1.0],
            colour: "#123456",
        };
        let text = draw(&[bar(10.0), bar(5.0), bar(-5.0)], "ns");
        let width = |title: &str| -> f64 {
            let line = text.lines().find(|line| line.contains(title)).unwrap();
            let (_, rest) = line.split_once("width=\"").unwrap();
            rest.split_once('"').unwrap().0.parse().unwrap()
        };
        assert!((width(">t10<") - 2.0 * width(">t5<")).abs() < 0.2);
        assert!((width(">t-5<") - width(">t5<")).abs() < 0.2);
        assert!(text.contains(">+10.00</text>") && text.contains(">-5.00</text>"));
        assert_eq!(draw(&[], "ns"), "");
    }

    #[test]
    fn marks_are_round_numbers() {
        for (range, expected) in [(6.0, 1.0), (7.0, 2.0), (60.0, 10.0), (0.5, 0.1), (100.0, 20.0)] {
            assert!((step(range) - expected).abs() < 1e-9, "{range}: {}", step(range));
        }
        assert_eq!(
            (label(-0.0, 1.0), label(0.5, 0.1), label(-20.0, 10.0)),
            ("0".into(), "0.5".into(), "-20".into())
        );
    }
}
