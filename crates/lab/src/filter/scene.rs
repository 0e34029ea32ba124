//! The rows: which rules, on which path, with which packets.

use std::sync::Arc;

use tollway_dataplane::stages::filter::{Filter, Op, Point, Rule, Rules};

use super::rules::{self, ANYTHING, Tuple};
use super::sets::{self, MILLION};
use super::testbed::{Trace, bench, failed, filter, flows};
use crate::bench::Bench;

/// A row.
#[derive(Clone, Copy, Debug)]
pub(super) struct Scene {
    pub(super) name: &'static str,
    pub(super) title: &'static str,
    kind: Kind,
    flows: usize,
    /// Whether packets have VLAN tags in and out, in a VRF.
    tagged: bool,
}

/// Kinds of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    None,
    /// A number of rules of one shape.
    Uniform(usize),
    Mixed(usize),
    /// The list as it is.
    List,
    /// A number of rules in the list's style.
    Style(usize),
    /// One rule that drops the sources in a set of that many addresses.
    Set(usize),
    /// One prefix, dropped before the route lookup.
    EarlyDrop,
}

const FEW: usize = 4096;
const MANY: usize = 65_536;

const fn row(name: &'static str, title: &'static str, kind: Kind, flows: usize) -> Scene {
    Scene { name, title, kind, flows, tagged: false }
}

/// Every row, in the table's order.
pub(super) const ROWS: &[Scene] = &[
    row("none", "no rules, 4,096 flows", Kind::None, FEW),
    row("rules-1", "1 rule", Kind::Uniform(1), FEW),
    row("rules-100-uniform", "100 rules of one shape", Kind::Uniform(100), FEW),
    row("rules-100-mixed", "100 rules of mixed shapes", Kind::Mixed(100), FEW),
    row("rules-1000-mixed", "1,000 rules of mixed shapes", Kind::Mixed(1000), FEW),
    row("acl1-941-64k", "ClassBench's acl1, 65,536 flows", Kind::List, MANY),
    row("acl1-10k-64k", "10,000 rules in its style, 65,536 flows", Kind::Style(10_000), MANY),
    row("set-1m", "a set of 1,000,000 sources dropped, 65,536 flows", Kind::Set(MILLION), MANY),
    row("early-drop", "one prefix dropped before the route", Kind::EarlyDrop, FEW),
    Scene {
        tagged: true,
        ..row(
            "vlan-vrf-100-mixed-64k",
            "VLAN tag in and out, VRF, 100 mixed, 65,536 flows",
            Kind::Mixed(100),
            MANY,
        )
    },
];

impl Scene {
    /// The kinds of packets for the row.
    pub(super) const fn traces(&self) -> &'static [Trace] {
        match self.kind {
            Kind::None | Kind::EarlyDrop => &[Trace::Random],
            _ => &[Trace::Miss, Trace::Random],
        }
    }

    /// A bench of the row.
    pub(super) fn bench(&self, list: &[Tuple], trace: Trace) -> Result<Bench, String> {
        if let Kind::Set(count) = self.kind {
            return Ok(sets::under(count, trace, self.flows)?.0);
        }
        let tuples = match self.kind {
            Kind::None | Kind::Set(_) => Vec::new(),
            Kind::EarlyDrop => rules::uniform(1),
            Kind::Uniform(count) => rules::uniform(count),
            Kind::Mixed(count) => rules::mixed(count),
            Kind::List => list.to_vec(),
            Kind::Style(count) => rules::in_the_style_of(list, count),
        };
        let flows = flows(&tuples, trace, self.flows);
        let mut bench = bench(flows, self.tagged)?;
        match self.kind {
            Kind::None => {}
            Kind::EarlyDrop => bench.filter(early_drop(&tuples[0])?, true),
            _ => bench.filter(filter(&tuples)?, false),
        }
        Ok(bench)
    }
}

/// A rule in hook prerouting that drops one source prefix.
fn early_drop(tuple: &Tuple) -> Result<Arc<Filter>, String> {
    let prefix = Tuple { src: tuple.src, ..ANYTHING };
    let drop = Rule { conditions: prefix.conditions(), ops: vec![Op::Drop], next: 1 };
    let accept = Rule { conditions: Vec::new(), ops: vec![Op::Accept], next: 2 };
    let mut filter = Filter::new(0, Vec::new());
    let rules = Rules { rules: vec![drop, accept], end: 1 };
    filter.set(Point::Prerouting, 4, &rules).map_err(failed)?;
    Ok(Arc::new(filter))
}
