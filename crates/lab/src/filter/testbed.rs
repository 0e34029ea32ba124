//! The router that rules are measured on, and the packets that it forwards.

use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;

use tollway_dataplane::id::Vid;
use tollway_dataplane::prefix::{Prefix, RoutePrefix};
use tollway_dataplane::stages::filter::{Filter, FilterError, Op, Point};
use tollway_dataplane::tables::{Tables, TablesError};
use tollway_dataplane::wire::eth::ethertype;

use super::rules::{self, ANYTHING, Tuple};
use crate::bench::Bench;
use crate::frames::{self, Flow4, Source, Xorshift};

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

const ROUTER_MAC: [[u8; 6]; 2] = [[2, 0, 0, 0, 0, 1], [2, 0, 0, 0, 0, 2]];
const NEIGH_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x22];
const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];
const VIDS: [u16; 2] = [100, 200];
const MTU: u16 = 1500;

/// A bench with rules that accept everything.
pub(super) fn under(tuples: &[Tuple], trace: Trace, count: usize) -> Result<Bench, String> {
    let mut bench = bench(flows(tuples, trace, count), false)?;
    bench.filter(filter(tuples)?, false);
    Ok(bench)
}

pub(super) fn bench(flows: Vec<Flow4>, tagged: bool) -> Result<Bench, String> {
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

pub(super) fn failed(error: FilterError) -> String {
    format!("cannot compile the rules: {error:?}")
}

/// Rules in hook forward.
pub(super) fn filter(tuples: &[Tuple]) -> Result<Arc<Filter>, String> {
    let mut filter = Filter::new(0, Vec::new());
    filter.set(Point::Forward, 4, &rules::accepting(tuples)).map_err(failed)?;
    Ok(Arc::new(filter))
}

/// Rules in hook forward that count, the last one accepting, too.
pub(super) fn counting_filter(tuples: &[Tuple]) -> Result<Arc<Filter>, String> {
    let mut rules = rules::accepting(tuples);
    for (number, rule) in (0..).zip(&mut rules.rules) {
        let is_last = rule.conditions.is_empty();
        rule.ops = [Op::Count(number)].into_iter().chain(is_last.then_some(Op::Accept)).collect();
    }
    let mut filter = Filter::new(rules.rules.len(), Vec::new());
    filter.set(Point::Forward, 4, &rules).map_err(failed)?;
    Ok(Arc::new(filter))
}

/// `count` flows for rules.
pub(super) fn flows(tuples: &[Tuple], trace: Trace, count: usize) -> Vec<Flow4> {
    let mut rng = Xorshift::new(0xf10e);
    let mut flow = || match trace {
        Trace::Random => {
            let tuple = match tuples.len() {
                0 => ANYTHING,
                rules => tuples[(rng.next() >> 11) as usize % rules],
            };
            tuple.draw(&mut rng)
        }
        // Most random packets match only the last rule; in lists that end with wide rules they hit
        // those.
        Trace::Miss => (0..64)
            .map(|_| ANYTHING.draw(&mut rng))
            .find(|flow| !tuples.iter().any(|tuple| tuple.has(flow)))
            .unwrap_or_else(|| ANYTHING.draw(&mut rng)),
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
