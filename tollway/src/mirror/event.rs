//! What the kernel tells, in the order in which it is to be taken.
//!
//! Small things (devices, addresses, rules, next-hop objects) are told whole at first and after a loss
//! ([`Event::Whole`]), and one by one as they change. Routes are told one by one always. A list of
//! all routes of a family is enclosed in [`Event::Listing`] and [`Event::Listed`]: who keeps the
//! routes has a generation for each family, a byte that wraps. `Listing` raises it; every route that
//! is told, be it listed or changed, is stamped with it, and `Listed` removes those that bear too old
//! a stamp. What was known stays in use until then. A list that gets lost is followed by another
//! `Listing` without a `Listed`.

use super::kernel::{
    Address, Family, Ifindex, Kernel, Netdev, Nexthop, NexthopId, Route, RouteKey, Rule,
};

/// Something that the kernel has told.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All that is small, as of now.
    Whole(Box<Kernel>),
    /// A device is there, or is no more.
    Link(Ifindex, Option<Box<Netdev>>),
    /// An address is there, or is no more.
    Address(Address, Presence),
    /// A next-hop object is there, or is no more, and with it the routes that use it, which are not
    /// told one by one.
    Nexthop(NexthopId, Option<Nexthop>),
    /// A rule comes behind those of its priority, or goes.
    Rule(Rule, Presence),
    /// A route.
    Route(RouteKey, Route, Change),
    /// All routes of a family follow.
    Listing {
        /// The family.
        family: Family,
        /// To see whether what is known is right, not because of doubt: whatever this list changes has
        /// gone wrong before.
        audit: bool,
    },
    /// All routes of the family were told: those that are in none of the last `lists` lists, and were
    /// not told since, are no more. It is more than one where so much changed meanwhile that the
    /// kernel may have left some out (`fib6_dump_table` skips by count).
    Listed {
        /// The family.
        family: Family,
        /// How many lists have to agree, 1 at least; this one and those before, finished or not.
        lists: u8,
    },
    /// What was told from the start, or since the loss, is all there is.
    Complete,
    /// Messages were lost; all is told anew by and by.
    Lost,
    /// A sysctl of a device has changed (`RTM_NEWNETCONF`); none for `all` and `default`. Told are only
    /// `forwarding`, `mc_forwarding`, `rp_filter`, `bc_forwarding`, `proxy_arp`, `proxy_ndp` and
    /// `ignore_routes_with_linkdown`.
    Sysctl(Family, Option<Ifindex>),
    /// A queueing discipline, class or filter of a device has changed; none for filters that several
    /// devices share.
    Tc(Option<Ifindex>),
}

/// Whether something has come or gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It is there.
    Here,
    /// It is no more.
    Gone,
}

/// How a route is told. Several may have one key; the first of them that is usable counts.
///
/// IPv6: those of one key that [join](Route::joins) are one route with several next hops. An `Add` of
/// such a one has all of them. With `Last`, those that [it had](super::kernel::Hop::leads_alike) before
/// keep their order and new ones follow; with `Only` and `Instead` they are in the order that is told.
/// A `Del` of such a one takes away the hops that it has; a last one that is left has a weight of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is in the list; those of one key come in their order. One that is known is stamped and comes
    /// behind those of its key that bear the stamp already.
    Listed,
    /// It is new, at this place. One whose key has just this route already stays as it is but for the
    /// stamp.
    Add(Place),
    /// It is no more: the one whose content [is the same](Route::is_same), if there is one.
    Del,
}

/// Where a new route comes among those with its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There are no others.
    Only,
    /// Before them.
    First,
    /// Behind them.
    Last,
    /// In place of the first. IPv6: of the first that joins as this one does; else of the first at all.
    Instead,
}
