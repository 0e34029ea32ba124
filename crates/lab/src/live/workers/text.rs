//! The workers' figures in sentences.

use std::collections::BTreeMap;

use super::{PROCESSORS, SHARED_CORE};

/// What was measured; empty if nothing was. Lines have at most 80 columns.
pub(in super::super) fn render(figures: &BTreeMap<String, f64>) -> String {
    let figures = Figures(figures);
    let Some(processors) = figures.get(PROCESSORS) else { return String::new() };
    if processors < 2.0 {
        return "two workers: not measured, they need two processors and this process may use one\n"
            .to_owned();
    }
    let parts = [figures.scaling(), figures.veth(), figures.hung(), figures.overload()];
    let text: String = parts.into_iter().flatten().collect();
    let shared = figures.get(SHARED_CORE) == Some(1.0) && !text.is_empty();
    text + if shared {
        "both processors are threads of one core, which limits the ratio\n"
    } else {
        ""
    }
}

struct Figures<'a>(&'a BTreeMap<String, f64>);

impl Figures<'_> {
    fn get(&self, name: &str) -> Option<f64> {
        self.0.get(name).copied()
    }

    /// The median of a ratio and how far it spread.
    fn ratio(&self, name: &str) -> Option<String> {
        let part = |suffix: &str| self.get(&format!("{name}{suffix}"));
        Some(format!("{:.2} ({:.2} to {:.2})", part("")?, part("_min")?, part("_max")?))
    }

    fn scaling(&self) -> Option<String> {
        Some(format!(
            "two workers of one router, against one: {}, {} rounds\n  \
             two routers that share nothing, against one: {}\n  \
             memory to memory: one worker {:.1} Mpps, two {:.1} Mpps\n",
            self.ratio("workers_two_ratio")?,
            self.get("workers_rounds")?,
            self.ratio("workers_two_apart_ratio")?,
            self.get("workers_one_mpps")?,
            self.get("workers_two_mpps")?,
        ))
    }

    fn veth(&self) -> Option<String> {
        Some(format!(
            "the same between interfaces (veth): {}, {} rounds\n  \
             each with a generator on its processor: one {:.3} Mpps, two {:.3} Mpps\n",
            self.ratio("workers_two_veth_ratio")?,
            self.get("workers_veth_rounds")?,
            self.get("workers_one_veth_mpps")?,
            self.get("workers_two_veth_mpps")?,
        ))
    }

    fn hung(&self) -> Option<String> {
        let repeats = self.get("hung_worker_repeats")?;
        let mut text =
            format!("a worker of two hangs for 1 s, 20 kpps each, {repeats} times, at most\n");
        for (worker, name) in [(1, "hung_worker"), (0, "hung_worker0")] {
            text += &format!(
                "  worker {worker}: {:.1} ms of its traffic lost, {} frames of the other's\n",
                self.get(&format!("{name}_lost_ms"))?,
                self.get(&format!("{name}_others_lost"))?,
            );
        }
        Some(text)
    }

    fn overload(&self) -> Option<String> {
        Some(format!(
            "twice of what one worker can, {:.3} instead of {:.3} Mpps: goodput {:.0}%\n  \
             ({:.0} to {:.0}%, {} rounds); {} frames lost but not counted; at most {} of\n  \
             {} pings of the router lost, one every 2 ms\n",
            self.get("overload_offered_mpps")?,
            self.get("overload_best_mpps")?,
            self.get("overload_goodput_percent")?,
            self.get("overload_goodput_percent_min")?,
            self.get("overload_goodput_percent_max")?,
            self.get("overload_rounds")?,
            self.get("overload_uncounted")?,
            self.get("overload_pings_lost")?,
            self.get("overload_pings")?,
        ))
    }
}
