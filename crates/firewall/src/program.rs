//! Compiles the intermediate form into the linear program of rules that the classifier takes.
//!
//! The program contains every chain once. Base chains of a hook come first, by priority, each followed by a
//! rule that states its policy. The other chains follow, each after those that jump to it and each followed
//! by a return. A jump becomes a call to the chain's position. So the compiler multiplies out only a rule's
//! own alternatives, elements of maps, and elements of sets of several keys.
//!
//! A rule's tests before its first action become conditions, which the classifier tries all at once. A rule
//! that tests more after an action, or does several things in a row with maps, is cut into consecutive parts.
//! Before each part, a rule without conditions keeps other packets out.
//!
//! At hook ingress a tagged frame meets the chains of the lower device first, then those of the VLAN. So the
//! program contains those chains once for each level of links (`levels.rs`). VRFs at hook prerouting work the
//! same way.
//!
//! Large named sets of addresses are not part of the program: rules query a set that changes while packets
//! flow (`program/live.rs` says which). Small sets, and those of other keys, become conditions.
//!
//! Links are numbers here. A pattern becomes the links that exist at compile time, so rules are compiled
//! again when links come or go.

mod conditions;
mod context;
mod levels;
mod live;
mod parts;
mod place;
#[doc(hidden)]
#[cfg(any(test, feature = "testkit"))]
pub mod tests;

use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::stages::filter::{
    Count, Filter, FilterError, FlowFilter, Limit, LimitUnit, Point, Tracker,
};

use super::ir::{self, Ruleset, Tracking, Translation};
use super::links::Link;
use super::{aliases, log, undone};
use levels::Level;
use live::Live;
pub use live::live_versions;
use place::Layout;

/// Says whether a program has a base chain.
type IsPart = fn(&ir::Base) -> bool;

/// Why a ruleset could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProgramError {
    /// The intermediate form is invalid.
    #[error(transparent)]
    Form(#[from] ir::IrError),
    /// The classifier has no room for so many rules.
    #[error("{0:?} has more than {most} rules, sets of several keys spread out", most = tollway_dataplane::stages::filter::MOST_RULES)]
    TooMany(Point),
    /// The classifier rejected the rules.
    #[error("the rules of {0:?} do not fit the classifier: {1:?}")]
    Classifier(Point, FilterError),
    /// There is no room for the sets.
    #[error("the sets do not fit: {0:?}")]
    Sets(FilterError),
}

/// Compiles a ruleset. `links` are the router's links in the order of their numbers; `epochs` are those of
/// the tables that will contain the filter.
///
/// Counters, limits and logs of the filter keep the numbers that they have in the ruleset. After the
/// ruleset's limits comes one limit for each log. [`super::hops::resolve`] resolves the next hops that rules
/// name.
///
/// # Errors
/// See [`ProgramError`].
pub fn compile(
    rules: &Ruleset,
    links: &[Link],
    epochs: &Arc<Epochs>,
) -> Result<Filter, ProgramError> {
    rules.check()?;
    let mut filter = Filter::new(rules.counters.len(), limits(rules));
    filter.set_state_rules(rules.state_rules.clone());
    filter.set_aliases(aliases::configs(rules, links));
    if let Some(Tracking { invalid, full, translation }) = rules.tracking {
        let is_by_op = [4, 6].map(|version| rules.has_early_chains(version));
        let mut tracker = Tracker::new((invalid.0 as u32, full.0 as u32), is_by_op);
        if let Some(Translation { clash, versions }) = translation {
            tracker = tracker.translating(versions, clash.0 as u32);
            filter.set_addresses(links.iter().map(|link| link.addresses.clone()).collect());
        }
        filter.track(tracker);
    }
    fill(&mut filter, rules, links, epochs)?;
    let translates = |is_of: fn(ir::Family) -> bool| {
        rules.chains.iter().any(|chain| chain.is_nat() && is_of(chain.family))
    };
    filter.set_translates([translates(ir::Family::has_ip4), translates(ir::Family::has_ip6)]);
    Ok(filter)
}

/// Sets the rules of a filter.
fn fill(
    filter: &mut Filter,
    rules: &Ruleset,
    links: &[Link],
    epochs: &Arc<Epochs>,
) -> Result<(), ProgramError> {
    filter.begin_at(rules.counters.iter().map(|c| Count { packets: c.packets, bytes: c.bytes }));
    if rules.past_auth {
        filter.look_past_auth();
    }
    let live = Live::choose(rules, filter, epochs).map_err(ProgramError::Sets)?;
    let translates = rules.tracking.is_some_and(|tracking| tracking.translation.is_some());
    let tracks = rules.tracking.is_some() || filter.is_for_flows();
    for (point, hooks, part) in parts_of(translates) {
        let levels = match point {
            Point::Ingress => Level::ingress(links),
            Point::Prerouting | Point::DestinationNat | Point::BehindNat => {
                Level::prerouting(links)
            }
            Point::Forward | Point::SourceNat => vec![Level::forward(links)],
        };
        let versions: &[u8] = if point == Point::Ingress { &[4, 6, 0] } else { &[4, 6] };
        for version in versions.iter().copied() {
            let Some(line) = Layout::new(rules, &live, &levels, version, tracks).line(hooks, part)
            else {
                continue;
            };
            let line = line.map_err(|_| ProgramError::TooMany(point))?;
            filter
                .set(point, version, &line)
                .map_err(|error| ProgramError::Classifier(point, error))?;
        }
    }
    Ok(())
}

/// The programs of a filter: their points, hooks, and which base chains of these they have.
fn parts_of(translates: bool) -> Vec<(Point, &'static [ir::Hook], IsPart)> {
    let [ingress, prerouting, forward] = undone::POINTS;
    if !translates {
        return vec![
            (Point::Ingress, ingress, |_| true),
            (Point::Prerouting, prerouting, |_| true),
            (Point::Forward, forward, |_| true),
        ];
    }
    let is_nat: IsPart = |base| base.kind == ir::ChainKind::Nat;
    let is_other: IsPart = |base| base.kind != ir::ChainKind::Nat;
    vec![
        (Point::Ingress, ingress, is_other),
        (Point::Prerouting, prerouting, |base| {
            base.kind != ir::ChainKind::Nat && base.is_before_destination_nat()
        }),
        (Point::DestinationNat, prerouting, is_nat),
        (Point::BehindNat, prerouting, |base| {
            base.kind != ir::ChainKind::Nat && !base.is_before_destination_nat()
        }),
        (Point::Forward, forward, is_other),
        (Point::SourceNat, forward, is_nat),
    ]
}

/// Compiles rules that may test connections, for flows only: see [`Ruleset::for_connections`]. Otherwise
/// like [`compile`].
///
/// # Errors
/// See [`ProgramError`].
pub fn compile_for_flows(
    rules: &Ruleset,
    links: &[Link],
    epochs: &Arc<Epochs>,
) -> Result<FlowFilter, ProgramError> {
    rules.check()?;
    let filled = FlowFilter::with(rules.counters.len(), limits(rules), |filter| {
        fill(filter, rules, links, epochs)
    });
    filled.map(|mut filter| {
        filter.set_translation_order(rules.translation_order());
        filter
    })
}

fn limits(rules: &Ruleset) -> Vec<Limit> {
    let own = rules.limits.iter().map(limit);
    own.chain(log::logs(rules).map(|_| log::LINES)).collect()
}

fn limit(limit: &ir::Limit) -> Limit {
    Limit {
        rate: limit.rate,
        period_ns: limit.period_ns,
        burst: limit.burst,
        unit: match limit.unit {
            ir::LimitUnit::Packets => LimitUnit::Packets,
            ir::LimitUnit::Bytes => LimitUnit::Bytes,
        },
    }
}
