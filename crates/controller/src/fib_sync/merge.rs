//! The content of a lookup chain for a prefix, where one table shadows another.

use tollway_dataplane::prefix::RoutePrefix;

use super::ChainUse;
use crate::kernel::{Family, RouteKind};
use crate::lookup_chains::{BaseTable, ChainFib, RouteAction};
use crate::rib::{Choice, Dest, Rib};

/// What a FIB has for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// No entry: a shorter prefix answers.
    Nothing,
    /// An entry that says that there is no route.
    NoRoute,
    /// The entry of a route.
    Route(Choice),
    /// An entry for the kernel path: only the kernel can decide.
    Kernel,
    /// The answer for all packets.
    All(RouteAction),
}

/// The content of a lookup chain's FIB for a prefix.
///
/// Until another rule than the defaults is added, the kernel keeps IPv4's tables local and main in one trie.
/// There the longest prefix of either wins (`fib_unmerge`, `net/ipv4/fib_frontend.c`). Afterwards it looks up
/// one table after the other. It does not show which of the two it does. So where that makes a difference,
/// packets take the kernel path. Packets that the local table delivers take it in any case.
pub(super) fn content(rib: &Rib, item: &ChainFib, prefix: RoutePrefix) -> Content {
    content_over(rib, item, prefix, || base(rib, item.base, prefix))
}

/// Like [`content`], for a destination of one of the lookup chain's tables, with the choice there.
/// Most destinations belong to the base table, which then needs no second lookup.
pub(super) fn content_of(rib: &Rib, of: &ChainUse, dest: Dest, choice: Choice) -> Content {
    if of.is_over {
        content(rib, &of.item, dest.prefix)
    } else {
        content_over(rib, &of.item, dest.prefix, || route(choice))
    }
}

fn content_over(
    rib: &Rib,
    item: &ChainFib,
    prefix: RoutePrefix,
    beneath: impl FnOnce() -> Content,
) -> Content {
    let Some(over) = item.over else { return beneath() };
    let maybe_one_trie = family(prefix) == Family::V4;
    match rib.longest(over, prefix) {
        None => beneath(),
        Some((of, choice)) if is(rib, choice, RouteKind::Throw) => match item.base {
            _ if of != prefix => beneath(),
            _ if maybe_one_trie => Content::Kernel,
            // A shorter prefix in the same FIB does not apply to packets of a throw route.
            BaseTable::All(action) => Content::All(action),
            BaseTable::Table(table) => match rib.longest(table, prefix) {
                Some((_, choice)) => Content::Route(choice),
                None => Content::NoRoute,
            },
        },
        Some((of, choice)) if of == prefix => Content::Route(choice),
        Some((_, choice)) if maybe_one_trie && !is(rib, choice, RouteKind::Local) => {
            match beneath() {
                Content::Nothing => Content::Nothing,
                _ => Content::Kernel,
            }
        }
        // The route of `over` shadows the base.
        Some(_) => Content::Nothing,
    }
}

fn base(rib: &Rib, base: BaseTable, prefix: RoutePrefix) -> Content {
    match base {
        BaseTable::All(action) if len(prefix) == 0 => Content::All(action),
        BaseTable::All(_) => Content::Nothing,
        BaseTable::Table(table) => route(rib.choice(Dest { table, prefix })),
    }
}

const fn route(choice: Choice) -> Content {
    match choice {
        Choice::Nothing => Content::Nothing,
        choice => Content::Route(choice),
    }
}

/// Says whether a choice is a route of that kind.
pub(super) fn is(rib: &Rib, choice: Choice, kind: RouteKind) -> bool {
    matches!(choice, Choice::Is(id) if rib.attrs(id).route.kind == kind)
}

pub(super) const fn len(prefix: RoutePrefix) -> u8 {
    match prefix {
        RoutePrefix::V4(prefix) | RoutePrefix::V6(prefix) => prefix.len(),
    }
}

pub(super) const fn family(prefix: RoutePrefix) -> Family {
    match prefix {
        RoutePrefix::V4(_) => Family::V4,
        RoutePrefix::V6(_) => Family::V6,
    }
}

/// Says whether a prefix is equal to another or within it.
pub(super) const fn is_within(prefix: RoutePrefix, other: RoutePrefix) -> bool {
    match (prefix, other) {
        (RoutePrefix::V4(prefix), RoutePrefix::V4(other))
        | (RoutePrefix::V6(prefix), RoutePrefix::V6(other)) => {
            prefix.len() >= other.len() && other.contains(prefix.bits())
        }
        _ => false,
    }
}
