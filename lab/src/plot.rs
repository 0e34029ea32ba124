//! What something costs as it grows, as a picture.

use std::fs;
use std::path::Path;

use plotters::prelude::*;

const WIDTH: u32 = 800;
const HEIGHT: u32 = 480;
const COLOURS: [RGBColor; 4] = [
    RGBColor(0x1f, 0x5f, 0xa8),
    RGBColor(0xc8, 0x4b, 0x1a),
    RGBColor(0x7f, 0xa8, 0xd4),
    RGBColor(0xe3, 0xa4, 0x86),
];

/// A line's name, and its points: size and clocks.
pub(crate) type Line = (&'static str, Vec<(f64, f64)>);

/// What there is to draw.
pub(crate) struct Growth<'a> {
    /// What the picture is of.
    pub(crate) caption: &'a str,
    /// What grows.
    pub(crate) x: &'a str,
    /// What it was measured on.
    pub(crate) cpu: &'a str,
    /// Four lines at most.
    pub(crate) lines: Vec<Line>,
}

impl Growth<'_> {
    /// Writes it as SVG.
    ///
    /// # Errors
    /// A sentence, where there is nothing to draw or the file can not be written.
    pub(crate) fn write(&self, path: &Path) -> Result<(), String> {
        fs::write(path, self.draw()?).map_err(|error| format!("{}: {error}", path.display()))
    }

    pub(crate) fn draw(&self) -> Result<String, String> {
        let all = self.lines.iter().flat_map(|(_, points)| points);
        let highest = all.map(|(_, y)| *y).fold(0.0, f64::max);
        if highest <= 0.0 {
            return Err("there is nothing to plot: growth was not measured".to_owned());
        }
        let mut text = String::new();
        plot(&mut text, self, highest)
            .map_err(|error| format!("the plot can not be drawn: {error}"))?;
        Ok(text)
    }
}

fn plot(
    text: &mut String,
    growth: &Growth<'_>,
    highest: f64,
) -> Result<(), Box<dyn std::error::Error>> {
    let lines = &growth.lines;
    let area = SVGBackend::with_string(text, (WIDTH, HEIGHT)).into_drawing_area();
    area.fill(&WHITE)?;
    let sizes = lines.iter().flat_map(|(_, points)| points).map(|(x, _)| *x);
    let largest = sizes.fold(1.0, f64::max);
    let mut chart = ChartBuilder::on(&area)
        .margin(16)
        .margin_right(32)
        .caption(format!("{} ({})", growth.caption, growth.cpu), ("sans-serif", 20))
        .x_label_area_size(48)
        .y_label_area_size(56)
        .build_cartesian_2d((0.8..largest * 1.3).log_scale(), 0.0..highest * 1.15)?;
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .x_desc(growth.x)
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
