//! Pictures of costs that grow with a size.

use std::fs;
use std::path::Path;

use plotters::coord::ranged1d::ValueFormatter;
use plotters::prelude::*;

const WIDTH: u32 = 800;
const HEIGHT: u32 = 480;
const COLOURS: [RGBColor; 4] = [
    RGBColor(0x1f, 0x5f, 0xa8),
    RGBColor(0xc8, 0x4b, 0x1a),
    RGBColor(0x7f, 0xa8, 0xd4),
    RGBColor(0xe3, 0xa4, 0x86),
];

/// A ratio of largest to least clocks above which the axis is logarithmic.
const WIDE: f64 = 20.0;

/// A line's name and its points: size and clocks.
pub(crate) type Line = (&'static str, Vec<(f64, f64)>);

/// The content of a picture.
pub(crate) struct Growth<'a> {
    /// The picture's caption.
    pub(crate) caption: &'a str,
    /// Label of the size axis.
    pub(crate) x: &'a str,
    /// The processor of the measurement.
    pub(crate) cpu: &'a str,
    /// The lines, at most four.
    pub(crate) lines: Vec<Line>,
}

impl Growth<'_> {
    /// Writes the picture as SVG.
    ///
    /// # Errors
    /// A message, if there is nothing to draw or the file cannot be written.
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
        plot(&mut text, self, highest).map_err(|error| format!("cannot draw the plot: {error}"))?;
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
    let mut builder = ChartBuilder::on(&area);
    builder
        .margin(16)
        .margin_right(32)
        .caption(format!("{} ({})", growth.caption, growth.cpu), ("sans-serif", 20))
        .x_label_area_size(48)
        .y_label_area_size(68);
    let x = (0.8..largest * 1.3).log_scale();
    let clocks = lines.iter().flat_map(|(_, points)| points).map(|(_, y)| *y);
    let least = clocks.fold(highest, f64::min);
    // On a linear axis, small costs would all lie on the x axis.
    if least > 0.0 && highest / least > WIDE {
        // Leave room above for the names.
        let y = (least * 0.7..highest * 8.0).log_scale();
        lines_on(builder.build_cartesian_2d(x, y)?, growth)?;
    } else {
        lines_on(builder.build_cartesian_2d(x, 0.0..highest * 1.15)?, growth)?;
    }
    area.present()?;
    Ok(())
}

/// A chart with a logarithmic size axis.
type Chart<'a, 'text, Y> = ChartContext<'a, SVGBackend<'text>, Cartesian2d<LogCoord<f64>, Y>>;

/// Draws axes, lines and their names.
fn lines_on<'a, 'text: 'a, Y>(
    mut chart: Chart<'a, 'text, Y>,
    growth: &Growth<'_>,
) -> Result<(), Box<dyn std::error::Error>>
where
    Y: Ranged<ValueType = f64> + ValueFormatter<f64>,
{
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
    for ((name, points), colour) in growth.lines.iter().zip(COLOURS) {
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
    Ok(())
}

/// A power of ten in readable form.
fn power(value: f64) -> String {
    match value {
        value if value >= 1e6 => format!("{:.0}M", value / 1e6),
        value if value >= 1e3 => format!("{:.0}k", value / 1e3),
        value => format!("{value:.0}"),
    }
}
