//! From the intermediate form to the line of rules that the classifier takes.
//!
//! All chains lie in the line, each once: base chains of a hook by priority, each with a rule behind it
//! that says its policy, then the other chains, those behind that are jumped to, each with a return
//! behind it. A jump is a call to the chain's place. So nothing is multiplied out but what a rule itself
//! has several of: alternatives, elements of maps, and of sets of several keys.
//!
//! What a rule looks at before it does anything becomes conditions, which are all tried at once. Where it
//! looks at more after it has done something, or has done several things in a row with maps, it is cut
//! into parts that lie behind each other; a rule without conditions before each part keeps others out.
//!
//! At hook ingress a frame with a tag meets the chains of the device below first, then those of the VLAN's:
//! the chains lie there once for each level of links (`levels.rs`). So it is with VRFs at hook prerouting.
//!
//! Large named sets of addresses are no part of the line: rules ask a set that changes while packets flow
//! (`flatten/live.rs` says which). Small ones, and those of other keys, are written out as conditions.
//!
//! Links are numbers here: a pattern stands for the links of that time, so that rules are compiled again
//! when links come or go.

mod conditions;
mod levels;
mod live;
mod parts;
mod place;
#[cfg(test)]
pub(in crate::filter) mod tests;

use std::sync::Arc;

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::stages::filter::{Count, Filter, FilterError, Limit, LimitUnit, Point};

use super::eval::Link;
use super::ir::{self, Ruleset};
use super::{log, undone};
use levels::Level;
use live::Live;
pub(crate) use live::live_versions;
use place::Layout;

/// Why a ruleset could not be compiled.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlattenError {
    /// The form itself is wrong.
    #[error(transparent)]
    Form(#[from] ir::IrError),
    /// More rules than a classifier has room for.
    #[error("{0:?} has more than {most} rules, sets of several keys spread out", most = tollway_dataplane::stages::filter::MOST_RULES)]
    TooMany(Point),
    /// The classifier did not take the rules.
    #[error("the rules of {0:?} do not fit the classifier: {1:?}")]
    Classifier(Point, FilterError),
    /// No room is left for the sets.
    #[error("the sets do not fit: {0:?}")]
    Sets(FilterError),
}

/// Compiles a ruleset; `links` are the router's in the order of their numbers, `epochs` are those of the
/// tables that the filter will be in.
///
/// Counters, limits and logs of the filter have the numbers that they have in the ruleset; behind the
/// ruleset's limits there is one for each log. Next hops that rules name are [`super::hops::resolve`]'s to
/// find.
///
/// # Errors
/// See [`FlattenError`].
pub fn flatten(
    rules: &Ruleset,
    links: &[Link],
    epochs: &Arc<Epochs>,
) -> Result<Filter, FlattenError> {
    rules.check()?;
    let own = rules.limits.iter().map(limit);
    let limits = own.chain(log::logs(rules).map(|_| log::LINES)).collect();
    let mut filter = Filter::new(rules.counters.len(), limits);
    filter.begin_at(rules.counters.iter().map(|c| Count { packets: c.packets, bytes: c.bytes }));
    if rules.past_auth {
        filter.look_past_auth();
    }
    let live = Live::choose(rules, &mut filter, epochs).map_err(FlattenError::Sets)?;
    for (point, hooks) in
        [Point::Ingress, Point::Prerouting, Point::Forward].into_iter().zip(undone::LINES)
    {
        let levels = match point {
            Point::Ingress => Level::ingress(links),
            Point::Prerouting => Level::prerouting(links),
            Point::Forward => vec![Level::forward(links)],
        };
        let versions: &[u8] = if point == Point::Ingress { &[4, 6, 0] } else { &[4, 6] };
        for version in versions.iter().copied() {
            let Some(line) = Layout::new(rules, &live, &levels, version).line(hooks) else {
                continue;
            };
            let line = line.map_err(|_| FlattenError::TooMany(point))?;
            filter
                .set(point, version, &line)
                .map_err(|error| FlattenError::Classifier(point, error))?;
        }
    }
    Ok(filter)
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
