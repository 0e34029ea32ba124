//! The rows: which rules, on which path, with which packets.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tollway_dataplane::features::AllStages;
use tollway_dataplane::id::Vid;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::filter::{Filter, Op, Point, Rule, Rules};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::wire::eth::ethertype;

use super::rules::{self, ANYTHING, Tuple};
use super::sets;
use crate::bench::Bench;
use crate::frames::{self, Flow4, Source, Spread};

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

/// Kinds of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Trace {
    /// Packets that match only the last rule, which accepts everything.
    Miss,
    /// Packets that match rules drawn at random.
    Random,
}

impl Trace {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Miss => "miss",
            Self::Random => "random",
        }
    }
}

const FEW: usize = 4096;
const MANY: usize = 65_536;

/// Addresses in the set.
pub(super) const MILLION: usize = 1_000_000;

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

const ROUTER_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const NEIGH_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const VIDS: [u16; 2] = [100, 200];
const MTU: u16 = 1500;

impl Scene {
    /// The kinds of packets for the row.
    pub(super) const fn traces(&self) -> &'static [Trace] {
        match self.kind {
            Kind::None | Kind::EarlyDrop => &[Trace::Random],
            _ => &[Trace::Miss, Trace::Random],
        }
    }

    /// A bench of the row.
    pub(super) fn bench(&self, list: &[Tuple], trace: Trace) -> Result<Bench<AllStages>, String> {
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

/// A bench with rules that accept everything.
pub(super) fn under(
    tuples: &[Tuple],
    trace: Trace,
    count: usize,
) -> Result<Bench<AllStages>, String> {
    let mut bench = bench(flows(tuples, trace, count), false)?;
    bench.filter(filter(tuples)?, false);
    Ok(bench)
}

pub(super) fn bench(flows: Vec<Flow4>, tagged: bool) -> Result<Bench<AllStages>, String> {
    let (tables, source) = stage(flows, tagged)?;
    Bench::over(tables, source, 64)
}

/// Tables, and frames of flows with or without tags.
pub(super) fn stage(flows: Vec<Flow4>, tagged: bool) -> Result<(Tables, Source), String> {
    let tables = tables(tagged).map_err(|error| format!("tables: {error:?}"))?;
    let tag = [(ethertype::DOT1Q, VIDS[0])];
    let tags: &[_] = if tagged { &tag } else { &[] };
    let (template, l3) = frames::blank4(ROUTER_MAC[0], SENDER_MAC, tags);
    Ok((tables, Source::Flows4(template, l3, flows)))
}

pub(super) fn failed(error: tollway_dataplane::stages::filter::FilterError) -> String {
    format!("the rules cannot be compiled: {error:?}")
}

/// Rules in hook forward.
pub(super) fn filter(tuples: &[Tuple]) -> Result<Arc<Filter>, String> {
    let mut filter = Filter::new(0, Vec::new());
    filter.set(Point::Forward, 4, &rules::accepting(tuples)).map_err(failed)?;
    Ok(Arc::new(filter))
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

/// `count` flows for rules.
pub(super) fn flows(tuples: &[Tuple], trace: Trace, count: usize) -> Vec<Flow4> {
    let mut spread = Spread::new(0xf10e);
    let mut flow = || match trace {
        Trace::Random => {
            let tuple = match tuples.len() {
                0 => ANYTHING,
                rules => tuples[(spread.next() >> 11) as usize % rules],
            };
            tuple.draw(&mut spread)
        }
        // Most random packets match only the last rule; in lists that end with wide rules they hit
        // those.
        Trace::Miss => (0..64)
            .map(|_| ANYTHING.draw(&mut spread))
            .find(|flow| !tuples.iter().any(|tuple| tuple.has(flow)))
            .unwrap_or_else(|| ANYTHING.draw(&mut spread)),
    };
    (0..count).map(|_| flow()).collect()
}

/// Two ports, and a default route from the first through the second, with a known neighbour.
fn tables(tagged: bool) -> Result<Tables, TablesError> {
    let mut tables = Tables::new();
    let main = tables.add_vrf()?;
    let vrf = if tagged { tables.add_vrf()? } else { main };
    let mut links = Vec::new();
    for mac in ROUTER_MAC {
        links.push(tables.add_port(mac, vrf, MTU)?.1);
    }
    if tagged {
        for (link, vid) in links.iter_mut().zip(VIDS) {
            let vid = Vid::new(vid).ok_or(TablesError::Unknown)?;
            let mac = tables.link(*link).mac_bytes;
            *link = tables.add_vlan(*link, ethertype::DOT1Q, vid, mac, vrf, MTU)?;
        }
    }
    let gateway = IpAddr::V4(Ipv4Addr::new(192, 0, 2, 1));
    let next = tables.set_neigh(links[1], gateway, Some(NEIGH_MAC))?;
    tables.insert(vrf, RoutePrefix::V4(Prefix::v4(0, 0)), next)?;
    Ok(tables)
}
