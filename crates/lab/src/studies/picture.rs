//! A study's result as a picture: a bar for each row, with its interval.

use std::fmt::Write;

use super::report::{Outcome, Row};
use super::text::groups;
use crate::verdict::Verdict;

const WIDTH: f64 = 900.0;
/// Where bars begin and end; the names are to the left, the figures to the right.
const LEFT: f64 = 250.0;
const RIGHT: f64 = 690.0;
const LINE: f64 = 20.0;
const BAR: f64 = 12.0;

/// A ratio of times above which the axis is logarithmic.
const WIDE: f64 = 50.0;

const FILL: &str = "#7fa8d4";
const LESS: &str = "#8fbf8f";
const MORE: &str = "#e3a486";
const NEITHER: &str = "#c9ced4";
const INK: &str = "#1b2733";

/// One bar.
struct Bar<'a> {
    name: &'a str,
    value: f64,
    interval: [f64; 2],
    fill: &'static str,
    label: String,
}

/// The picture as SVG.
pub(super) fn draw(of: &Outcome) -> String {
    let rows = &of.report.rows;
    let bar = |row| if of.by_difference { difference(row) } else { Some(time(row)) };
    let bars: Vec<Bar> = rows.iter().filter_map(bar).collect();
    let ends = bars.iter().flat_map(|bar| [bar.value, bar.interval[0], bar.interval[1]]);
    let (low, high) =
        ends.fold((0.0_f64, 0.0_f64), |(low, high), end| (low.min(end), high.max(end)));
    let least = bars.iter().map(|bar| bar.value).fold(f64::INFINITY, f64::min);
    // On a linear axis, small costs would be indistinguishable.
    let by_powers = !of.by_difference && least > 0.0 && high > WIDE * least;
    let scale = (RIGHT - LEFT) / (high - low).max(f64::MIN_POSITIVE);
    let powers = (RIGHT - LEFT) / (high / (0.7 * least)).ln();
    let x = |value: f64| match by_powers {
        true => LEFT + (value / (0.7 * least)).ln().max(0.0) * powers,
        false => LEFT + (value - low) * scale,
    };
    let mut body = String::new();
    let mut y = 58.0;
    for group in groups(rows) {
        let inside = rows.iter().filter(|row| row.group == group).filter_map(bar);
        let inside: Vec<Bar> = inside.collect();
        if inside.is_empty() {
            continue;
        }
        body += &text(16.0, y + 14.0, "start", "bold", group);
        y += LINE + 4.0;
        for bar in inside {
            body += &draw_bar(&bar, y, &x);
            y += LINE;
        }
        y += 8.0;
    }
    let unit = if of.by_difference { "ns a packet more or less" } else { "ns a packet" };
    let powers = if by_powers { ", by powers" } else { "" };
    let caption = format!("{}: {unit}{powers}, intervals at 95%", of.study);
    let machine = &of.report.machine;
    let below = format!("{}, Linux {}, {} processes", machine.cpu, machine.kernel, of.processes);
    let axis = x(0.0);
    format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {y:.0}\" width=\"{WIDTH}\" height=\"{y:.0}\" \
         font-family=\"sans-serif\" font-size=\"13\" fill=\"{INK}\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n{}{}{body}\
         <line x1=\"{axis:.1}\" x2=\"{axis:.1}\" y1=\"58\" y2=\"{:.1}\" stroke=\"{INK}\"/>\n</svg>\n",
        text(16.0, 24.0, "start", "bold", &caption),
        text(16.0, 44.0, "start", "normal", &below),
        y - 8.0,
    )
}

fn time(row: &Row) -> Bar<'_> {
    let value = row.ns_per_packet.median;
    let label = format!("{value:.2} ns, {:.1} Mpps", row.mpps);
    Bar { name: &row.name, value, interval: row.median_interval_ns, fill: FILL, label }
}

fn difference(row: &Row) -> Option<Bar<'_>> {
    let contrast = row.contrast.as_ref()?;
    let value = contrast.difference_ns;
    let interval = contrast.interval_ns;
    let fill = match contrast.verdict {
        Verdict::Slower => MORE,
        Verdict::Faster => LESS,
        Verdict::BelowAccuracy => NEITHER,
    };
    let label = format!("{value:+.2} ns, {}", contrast.verdict.words());
    Some(Bar { name: &row.name, value, interval, fill, label })
}

fn draw_bar(bar: &Bar<'_>, y: f64, x: &impl Fn(f64) -> f64) -> String {
    let (from, to) = (x(bar.value.min(0.0)), x(bar.value.max(0.0)));
    let [low, high] = bar.interval.map(x);
    let middle = y + LINE / 2.0;
    let mut out = text(LEFT - 8.0, middle + 4.0, "end", "normal", bar.name);
    let _ = writeln!(
        out,
        "<rect x=\"{from:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{BAR}\" fill=\"{}\"/>\n\
         <path d=\"M{low:.1} {middle:.1}H{high:.1}M{low:.1} {:.1}v8M{high:.1} {:.1}v8\" stroke=\"{INK}\" \
         fill=\"none\"/>",
        middle - BAR / 2.0,
        to - from,
        bar.fill,
        middle - 4.0,
        middle - 4.0,
    );
    out + &text(RIGHT + 10.0, middle + 4.0, "start", "normal", &bar.label)
}

fn text(x: f64, y: f64, anchor: &str, weight: &str, words: &str) -> String {
    let words = escaped(words);
    format!(
        "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-weight=\"{weight}\">{words}</text>\n"
    )
}

/// A text with the characters that markup reserves escaped.
pub(super) fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}
