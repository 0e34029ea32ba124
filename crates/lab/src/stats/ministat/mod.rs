//! The output of FreeBSD's ministat for two series, which reviewers of packet paths know.

mod plot;
mod print;

use super::{Difference, Sample, pooled};
pub use plot::plot;
use print::general;

/// Options of the output.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Options {
    /// Columns of the plot, ministat's `-w`.
    pub width: usize,
    /// Whether each series has its bar on a separate line, `-s`.
    pub separate: bool,
    /// The confidence as a share; ministat's `-c` in percent. The level 99.5 differs: ministat's
    /// table has the values of 99.8 there.
    pub confidence: f64,
}

impl Default for Options {
    fn default() -> Self {
        Self { width: 74, separate: false, confidence: 0.95 }
    }
}

/// ministat's complete output for two series: legend, plot, table and significance. `None` if
/// either has fewer than three values, as ministat requires.
#[must_use]
pub fn text(names: [&str; 2], series: [&Sample; 2], options: Options) -> Option<String> {
    if series.iter().any(|sample| sample.values().len() < 3) {
        return None;
    }
    let mut text = format!("x {}\n+ {}\n", names[0], names[1]);
    text += &plot(series, options.width, options.separate);
    text += &table(series);
    text += &proof(series, options.confidence)?;
    Some(text)
}

fn table(series: [&Sample; 2]) -> String {
    let mut text =
        "    N           Min           Max        Median           Avg        Stddev\n".to_owned();
    for (symbol, sample) in ['x', '+'].into_iter().zip(series) {
        let figures =
            [sample.min(), sample.max(), sample.median(), sample.mean(), sample.deviation()];
        let figures: Vec<_> =
            figures.iter().map(|figure| format!("{:>13}", general(*figure, 8))).collect();
        text += &format!("{symbol} {:>3} {}\n", sample.values().len(), figures.join(" "));
    }
    text
}

/// ministat's statement on the difference.
fn proof(series: [&Sample; 2], confidence: f64) -> Option<String> {
    let found = pooled(series[0], series[1], confidence)?;
    let level = format!("{:.1}% confidence", confidence * 100.0);
    if !found.is_proven() {
        return Some(format!("No difference proven at {level}\n"));
    }
    let Difference { difference, margin, deviation, .. } = found;
    let base = series[0].mean();
    let percent = |value: f64| general(value * 100.0 / base, 6);
    Some(format!(
        "Difference at {level}\n\t{} +/- {}\n\t{}% +/- {}%\n\t(Student's t, pooled s = {})\n",
        general(difference, 6),
        general(margin, 6),
        percent(difference),
        percent(margin),
        general(deviation, 6)
    ))
}

#[cfg(test)]
mod tests;
