//! The kernel's choice among the routes to one destination, for packets without a type of service.

use super::bodies::{Bodies, Body, BodyId};
use super::shelf::Alias;
use super::state::{State, Use};
use crate::mirror::kernel::{Family, Hops, Route, RouteKind};

/// Which route to a destination counts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None of them: a shorter prefix does.
    Nothing,
    /// Only the kernel can say which.
    Kernel,
    /// This one.
    Is(BodyId),
}

/// Whether a route ends the search, whatever the state of its next hops.
fn use_of(state: &State, family: Family, route: &Route) -> Use {
    let reject = |kind| {
        use RouteKind::{Blackhole, Prohibit, Throw, Unreachable};
        matches!(kind, Blackhole | Unreachable | Prohibit | Throw)
    };
    match &route.hops {
        _ if reject(route.kind) => Use::Yes,
        Hops::Object(id) => state.object(*id, family),
        _ if matches!(route.kind, RouteKind::Local | RouteKind::Anycast) => Use::Yes,
        Hops::None => Use::Yes,
        hops if hops.list().iter().any(|hop| state.is_usable(hop, family)) => Use::Yes,
        _ => Use::No,
    }
}

pub(super) fn choose(bodies: &Bodies, state: &State, prefix_len: u8, aliases: &[Alias]) -> Choice {
    let Some(first) = aliases.first() else { return Choice::Nothing };
    match bodies.get(first.body).family {
        Family::V4 => choose4(bodies, state, prefix_len, aliases),
        Family::V6 => choose6(bodies, state, aliases),
    }
}

/// `fib_table_lookup`: the first that is usable. An object that is not has the search go on at a
/// shorter prefix.
fn choose4(bodies: &Bodies, state: &State, prefix_len: u8, aliases: &[Alias]) -> Choice {
    for alias in aliases {
        let body = bodies.get(alias.body);
        if alias.body == BodyId::FULL || body.tos != 0 || body.route.odd {
            return Choice::Kernel;
        }
        let is_object = matches!(body.route.hops, Hops::Object(_));
        match use_of(state, Family::V4, &body.route) {
            Use::Unknown => return Choice::Kernel,
            Use::No if is_object => return Choice::Nothing,
            Use::No => {}
            // Among several default routes `fib_select_default` asks whose router answers.
            Use::Yes if prefix_len == 0 && rivals(bodies, aliases, body) > 1 => {
                return Choice::Kernel;
            }
            Use::Yes => return Choice::Is(alias.body),
        }
    }
    Choice::Nothing
}

/// `find_rr_leaf`: one of the lowest metric, or where none of that is usable, one of all others. Of
/// several, those by the input device win (`rt6_score_route`), or they take turns as their routers
/// answer; so only one that stands alone can be told, be it with several next hops.
fn choose6(bodies: &Bodies, state: &State, aliases: &[Alias]) -> Choice {
    let Some(first) = aliases.first() else { return Choice::Nothing };
    let (lowest, others) = aliases.split_at(rivals(bodies, aliases, bodies.get(first.body)));
    match alone(bodies, state, lowest) {
        Choice::Nothing if !others.is_empty() => alone(bodies, state, others),
        choice => choice,
    }
}

fn alone(bodies: &Bodies, state: &State, aliases: &[Alias]) -> Choice {
    let [alias] = aliases else { return Choice::Kernel };
    let body = bodies.get(alias.body);
    if alias.body == BodyId::FULL || body.route.odd {
        return Choice::Kernel;
    }
    match use_of(state, Family::V6, &body.route) {
        Use::Yes => Choice::Is(alias.body),
        Use::No => Choice::Nothing,
        Use::Unknown => Choice::Kernel,
    }
}

fn rivals(bodies: &Bodies, aliases: &[Alias], body: &Body) -> usize {
    aliases.iter().filter(|alias| bodies.get(alias.body).is_rival(body)).count()
}
