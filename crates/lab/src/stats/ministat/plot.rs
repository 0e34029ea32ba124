use crate::stats::Sample;

/// Symbols for a value in neither series, the first, the second, or both.
const SYMBOLS: [char; 4] = [' ', 'x', '+', '*'];

/// Maps values to columns.
struct Scale {
    start: f64,
    step: f64,
    width: usize,
}

impl Scale {
    /// A scale with room for all values and bars; `None` if all are equal.
    fn of(series: [&Sample; 2], width: usize) -> Option<Self> {
        let ends = series.iter().flat_map(|sample| {
            let [low, high] = bar(sample);
            [sample.min(), sample.max(), low, high]
        });
        let (mut min, mut max) = (f64::INFINITY, f64::NEG_INFINITY);
        for end in ends {
            (min, max) = (min.min(end), max.max(end));
        }
        let step = (max - min) / (width.max(2) - 1) as f64;
        (step > 0.0).then_some(Self { start: min - step / 2.0, step, width: width.max(2) })
    }

    fn column(&self, value: f64) -> usize {
        (((value - self.start) / self.step) as usize).min(self.width - 1)
    }
}

/// A standard deviation below and above the mean.
fn bar(sample: &Sample) -> [f64; 2] {
    [sample.mean() - sample.deviation(), sample.mean() + sample.deviation()]
}

/// ministat's plot. Above, a column of symbols for every position with values: `x` for the first
/// series, `+` for the second, `*` for both. Below, a bar from one standard deviation below the
/// mean to one above, with the mean `A` and the median `M`.
#[must_use]
pub fn plot(series: [&Sample; 2], width: usize, separate: bool) -> String {
    let Some(scale) = Scale::of(series, width) else {
        return "[no plot, span is zero width]\n".to_owned();
    };
    let rule = format!("+{}+\n", "-".repeat(scale.width));
    let mut text = rule.clone();
    for row in heap(series, &scale).iter().rev() {
        line(&mut text, row.iter().map(|bits| SYMBOLS[*bits]));
    }
    for row in bars(series, &scale, separate) {
        line(&mut text, row.into_iter());
    }
    text + &rule
}

fn line(text: &mut String, symbols: impl Iterator<Item = char>) {
    text.push('|');
    text.extend(symbols);
    text.push_str("|\n");
}

/// The stacked values, the lowest row first. Bits say which series have a value at a position.
fn heap(series: [&Sample; 2], scale: &Scale) -> Vec<Vec<usize>> {
    let mut rows: Vec<Vec<usize>> = Vec::new();
    for (index, sample) in series.iter().enumerate() {
        let mut heights = vec![0; scale.width];
        for value in sample.values() {
            let column = scale.column(*value);
            let height = heights[column];
            heights[column] += 1;
            if height == rows.len() {
                rows.push(vec![0; scale.width]);
            }
            rows[height][column] |= 1 << index;
        }
    }
    rows
}

/// The bars, on one line unless `separate`.
fn bars(series: [&Sample; 2], scale: &Scale, separate: bool) -> Vec<Vec<char>> {
    let mut rows = vec![vec![' '; scale.width]; if separate { 2 } else { 1 }];
    for (index, sample) in series.into_iter().enumerate() {
        let row = &mut rows[if separate { index } else { 0 }];
        let [low, high] = bar(sample).map(|end| scale.column(end));
        row[high] = '|';
        row[low] = '|';
        for place in row.iter_mut().take(high).skip(low + 1).filter(|place| **place == ' ') {
            *place = '_';
        }
        row[scale.column(sample.median())] = 'M';
        row[scale.column(sample.mean())] = 'A';
    }
    rows
}
