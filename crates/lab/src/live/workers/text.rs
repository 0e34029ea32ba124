//! The workers' figures in sentences.

use std::collections::BTreeMap;

use super::{PROCESSORS, SHARED_CORE};

/// What was measured; empty if nothing was. Lines have at most 80 columns.
pub(in super::super) fn render(figures: &BTreeMap<String, f64>) -> String {
    let figure = |name: &str| figures.get(name).copied();
    let Some(processors) = figure(PROCESSORS) else { return String::new() };
    if processors < 2.0 {
        return "two workers: not measured, they need two processors and this process may use one\n"
            .to_owned();
    }
    let ratio = |name: &str| {
        let [median, min, max] = ["", "_min", "_max"]
            .map(|suffix| figure(&format!("{name}{suffix}")).unwrap_or(f64::NAN));
        format!("{median:.2} ({min:.2} to {max:.2})")
    };
    let mpps = |name: &str| figure(name).unwrap_or(f64::NAN);
    let mut text = format!(
        "two workers of one router, against one: {}, {} rounds\n",
        ratio("workers_two_ratio"),
        mpps("workers_rounds"),
    );
    text += &format!(
        "  two routers that share nothing, against one: {}\n",
        ratio("workers_two_apart_ratio")
    );
    text += &format!(
        "  memory to memory: one worker {:.1} Mpps, two {:.1} Mpps\n",
        mpps("workers_one_mpps"),
        mpps("workers_two_mpps"),
    );
    if figure(SHARED_CORE) == Some(1.0) {
        text += "  both processors are threads of one core, which limits the ratio\n";
    }
    text
}
