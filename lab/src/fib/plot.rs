//! The growth of the costs as a picture.

use std::fs;
use std::path::Path;

use plotters::prelude::*;

use super::growth::{SIZES, name};
use super::scene::Family;
use crate::report::Report;

const WIDTH: u32 = 800;
const HEIGHT: u32 = 480;
const COLOURS: [RGBColor; 2] = [RGBColor(0x1f, 0x5f, 0xa8), RGBColor(0xc8, 0x4b, 0x1a)];

/// Writes the report's growth as SVG.
///
/// # Errors
/// A sentence, where the report has no growth or the file can not be written.
pub fn write(report: &Report, path: &Path) -> Result<(), String> {
    let text = draw(report)?;
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
}

fn draw(report: &Report) -> Result<String, String> {
    let points = |family| -> Vec<(f64, f64)> {
        let figure = |size| report.figures.get(&name(family, size)).map(|y| (size as f64, *y));
        SIZES.into_iter().filter_map(figure).collect()
    };
    let lines = [("IPv4", points(Family::V4)), ("IPv6", points(Family::V6))];
    let all = lines.iter().flat_map(|(_, points)| points);
    let highest = all.map(|(_, y)| *y).fold(0.0, f64::max);
    if highest <= 0.0 {
        return Err("there is nothing to plot: growth was not measured".to_owned());
    }
    let mut text = String::new();
    plot(&mut text, &lines, highest, &report.machine.cpu)
        .map_err(|error| format!("the plot can not be drawn: {error}"))?;
    Ok(text)
}

type Line = (&'static str, Vec<(f64, f64)>);

fn plot(
    text: &mut String,
    lines: &[Line],
    highest: f64,
    cpu: &str,
) -> Result<(), Box<dyn std::error::Error>> {
    let area = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    let largest = SIZES.into_iter().max().unwrap_or(1) as f64;
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .margin_right(32)
        .caption(format!("Forwarding as the table grows ({cpu})"), ("sans-serif", 20))
        .x_label_area_size(48)
        .y_label_area_size(56)
        .build_cartesian_2d((0.8..largest * 1.3).log_scale(), 0.0..highest * 1.15)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc("prefixes in the table")
        .y_desc("TSC clocks a packet, whole path, 64-byte frames")
        .x_label_formatter(&|x| power(*x))
        .y_label_formatter(&|y| format!("{y:.0}"))
        .label_style(("sans-serif", 14))
        .axis_desc_style(("sans-serif", 15))
        .draw()?;
    for ((name, points), colour) in lines.iter().zip(COLOURS) {
        let style = colour.stroke_width(2);
        chart
            .draw_series(LineSeries::new(points.iter().copied(), style))?
            .label(*name)
            .legend(move |(x, y)| PathElement::new([(x, y), (x + 24, y)], style));
        chart.draw_series(points.iter().map(|point| Circle::new(*point, 4, colour.filled())))?;
    }
    chart
        .configure_series_labels()
        .position(SeriesLabelPosition::UpperLeft)
        .label_font(("sans-serif", 15))
        .background_style(WHITE)
        .border_style(BLACK.mix(0.4))
        .draw()?;
    area.present()?;
    Ok(())
}

/// A power of ten as people read it.
fn power(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.0}M", value / 1e6),
        value if value >= 1e3 => format!("{:.0}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::machine::Machine;

    #[test]
    fn a_plot_has_both_lines_and_needs_figures() {
        let mut report = Report::new(Machine::probe(), Vec::new());
        assert!(draw(&report).unwrap_err().contains("nothing to plot"));
        for size in SIZES {
            report.figures.insert(name(Family::V4, size), 20.0);
            report.figures.insert(name(Family::V6, size), 30.0);
        }
        let text = draw(&report).unwrap();
        assert!(text.starts_with("<svg"), "{text}");
        for part in ["IPv4", "IPv6", "prefixes in the table", "100k", "</svg>"] {
            assert!(text.contains(part), "{part}");
        }
        assert_eq!(text.matches("<circle").count(), 12);
    }
}
