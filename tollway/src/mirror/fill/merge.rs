//! What a view has for a prefix, where one table shadows another.

use tollway_dataplane::tables::RoutePrefix;

use super::Use;
use crate::mirror::kernel::{Family, RouteKind};
use crate::mirror::rib::{Choice, Dest, Rib};
use crate::mirror::views::{Base, Fate, Item};

/// What a FIB has for a prefix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Content {
    /// No entry: a shorter prefix answers.
    Nothing,
    /// An entry that says that there is no route.
    NoRoute,
    /// A route's.
    Route(Choice),
    /// Only the kernel can say.
    Kernel,
    /// One that is for all packets.
    All(Fate),
}

/// What a view's FIB has for a prefix.
///
/// While there have never been rules but the default ones, the kernel has IPv4's tables local and main in
/// one trie, where the longest prefix of either wins (`fib_unmerge`, `net/ipv4/fib_frontend.c`); later it
/// asks one after the other. Nobody can see which it is, so where it makes a difference the kernel
/// decides. It makes none for what the local table delivers: that goes to the kernel.
pub(super) fn content(rib: &Rib, item: &Item, prefix: RoutePrefix) -> Content {
    content_over(rib, item, prefix, || base(rib, item.base, prefix))
}

/// The same for a destination of one of the view's tables, with the choice there: most destinations are of
/// the table beneath, which then need not be asked again.
pub(super) fn content_of(rib: &Rib, of: &Use, dest: Dest, choice: Choice) -> Content {
    if of.is_over {
        content(rib, &of.item, dest.prefix)
    } else {
        content_over(rib, &of.item, dest.prefix, || route(choice))
    }
}

fn content_over(
    rib: &Rib,
    item: &Item,
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
            // Whatever stands above it in the same FIB is not for what it throws.
            Base::All(fate) => Content::All(fate),
            Base::Table(table) => match rib.longest(table, prefix) {
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
        // In the shadow.
        Some(_) => Content::Nothing,
    }
}

fn base(rib: &Rib, base: Base, prefix: RoutePrefix) -> Content {
    match base {
        Base::All(fate) if len(prefix) == 0 => Content::All(fate),
        Base::All(_) => Content::Nothing,
        Base::Table(table) => route(rib.choice(Dest { table, prefix })),
    }
}

const fn route(choice: Choice) -> Content {
    match choice {
        Choice::Nothing => Content::Nothing,
        choice => Content::Route(choice),
    }
}

/// Says if a choice is a route of that kind.
pub(super) fn is(rib: &Rib, choice: Choice, kind: RouteKind) -> bool {
    matches!(choice, Choice::Is(id) if rib.body(id).route.kind == kind)
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

/// Says if a prefix is within another, or is it.
pub(super) const fn is_within(prefix: RoutePrefix, other: RoutePrefix) -> bool {
    match (prefix, other) {
        (RoutePrefix::V4(prefix), RoutePrefix::V4(other))
        | (RoutePrefix::V6(prefix), RoutePrefix::V6(other)) => {
            prefix.len() >= other.len() && other.contains(prefix.bits())
        }
        _ => false,
    }
}
