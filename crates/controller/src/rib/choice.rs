//! The kernel's choice among the routes to one destination, for packets without a type of service.

use super::attrs_store::{RouteAttrs, RouteAttrsId, RouteAttrsStore};
use super::route_store::Alias;
use super::state::{State, Usability};
use crate::kernel::{Family, Hops, Route, RouteKind};

/// The route to a destination that applies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Choice {
    /// None of them: a shorter prefix applies.
    Nothing,
    /// Only the kernel can decide.
    Kernel,
    /// This one.
    Is(RouteAttrsId),
}

/// Whether a route ends the search, regardless of the state of its next hops.
fn use_of(state: &State, family: Family, route: &Route) -> Usability {
    let reject = |kind| {
        use RouteKind::{Blackhole, Prohibit, Throw, Unreachable};
        matches!(kind, Blackhole | Unreachable | Prohibit | Throw)
    };
    match &route.hops {
        _ if reject(route.kind) => Usability::Yes,
        Hops::Object(id) => state.object(*id, family),
        _ if matches!(route.kind, RouteKind::Local | RouteKind::Anycast) => Usability::Yes,
        Hops::None => Usability::Yes,
        hops if hops.list().iter().any(|hop| state.is_usable(hop, family)) => Usability::Yes,
        _ => Usability::No,
    }
}

pub(super) fn choose(
    attrs_store: &RouteAttrsStore,
    state: &State,
    prefix_len: u8,
    aliases: &[Alias],
) -> Choice {
    let Some(first) = aliases.first() else { return Choice::Nothing };
    match attrs_store.get(first.attrs).family {
        Family::V4 => choose4(attrs_store, state, prefix_len, aliases),
        Family::V6 => choose6(attrs_store, state, aliases),
    }
}

/// `fib_table_lookup`: the first usable route. If an object is not usable, the search continues at a
/// shorter prefix.
fn choose4(
    attrs_store: &RouteAttrsStore,
    state: &State,
    prefix_len: u8,
    aliases: &[Alias],
) -> Choice {
    for alias in aliases {
        let attrs = attrs_store.get(alias.attrs);
        if alias.attrs == RouteAttrsId::FULL || attrs.tos != 0 || attrs.route.unsupported {
            return Choice::Kernel;
        }
        let is_object = matches!(attrs.route.hops, Hops::Object(_));
        match use_of(state, Family::V4, &attrs.route) {
            Usability::Unknown => return Choice::Kernel,
            Usability::No if is_object => return Choice::Nothing,
            Usability::No => {}
            // Among several default routes, `fib_select_default` prefers one whose gateway answers.
            Usability::Yes if prefix_len == 0 && same_key(attrs_store, aliases, attrs) > 1 => {
                return Choice::Kernel;
            }
            Usability::Yes => return Choice::Is(alias.attrs),
        }
    }
    Choice::Nothing
}

/// `find_rr_leaf`: a route of the lowest metric or, if none of that is usable, any other. Among several,
/// those by the input device win (`rt6_score_route`), or they take turns as their gateways answer. So the
/// choice is only known for a single route, which may have several next hops.
fn choose6(attrs_store: &RouteAttrsStore, state: &State, aliases: &[Alias]) -> Choice {
    let Some(first) = aliases.first() else { return Choice::Nothing };
    let (lowest, others) =
        aliases.split_at(same_key(attrs_store, aliases, attrs_store.get(first.attrs)));
    match alone(attrs_store, state, lowest) {
        Choice::Nothing if !others.is_empty() => alone(attrs_store, state, others),
        choice => choice,
    }
}

fn alone(attrs_store: &RouteAttrsStore, state: &State, aliases: &[Alias]) -> Choice {
    let [alias] = aliases else { return Choice::Kernel };
    let attrs = attrs_store.get(alias.attrs);
    if alias.attrs == RouteAttrsId::FULL || attrs.route.unsupported {
        return Choice::Kernel;
    }
    match use_of(state, Family::V6, &attrs.route) {
        Usability::Yes => Choice::Is(alias.attrs),
        Usability::No => Choice::Nothing,
        Usability::Unknown => Choice::Kernel,
    }
}

fn same_key(attrs_store: &RouteAttrsStore, aliases: &[Alias], attrs: &RouteAttrs) -> usize {
    aliases.iter().filter(|alias| attrs_store.get(alias.attrs).has_same_key(attrs)).count()
}
