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
//! Links are numbers here: a pattern stands for the links of that time, so that rules are compiled again
//! when links come or go.

mod conditions;
mod parts;
mod place;
#[cfg(test)]
pub(super) mod tests;

use tollway_dataplane::stages::filter::{Filter, FilterError, Limit, LimitUnit, Point};

use super::eval::Link;
use super::ir::{self, Hook, Ruleset};
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
}

/// Compiles a ruleset; `links` are the router's in the order of their numbers.
///
/// Counters and limits of the filter have the numbers that they have in the ruleset.
///
/// # Errors
/// See [`FlattenError`].
pub fn flatten(rules: &Ruleset, links: &[Link]) -> Result<Filter, FlattenError> {
    rules.check()?;
    let mut filter = Filter::new(rules.counters.len(), rules.limits.iter().map(limit).collect());
    for (point, hooks) in [
        (Point::Ingress, &[Hook::Ingress][..]),
        (Point::Prerouting, &[Hook::Prerouting]),
        (Point::Forward, &[Hook::Forward, Hook::Postrouting, Hook::Egress]),
    ] {
        for version in [4, 6] {
            let Some(line) = Layout::new(rules, links, version).line(hooks) else { continue };
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
