//! Notifications of the kernel, in the order in which they apply.
//!
//! Devices, ports of bridges, addresses, rules and next-hop objects come as one whole at the start and after a loss
//! ([`Event::Whole`]), then one by one as they change. Routes always come one by one.
//!
//! [`Event::Listing`] and [`Event::Listed`] enclose a list of all routes of a family. The RIB has a
//! generation for each family, a byte that wraps. `Listing` raises it. Every route that is listed or
//! changed before `Listed` gets it as a stamp. `Listed` removes routes whose stamp is too old; they stay
//! in use until then. If a list is lost, another `Listing` follows without a `Listed`.

use super::kernel::{
    Address, BridgePort, Family, Ifindex, Kernel, Netdev, Nexthop, NexthopId, Route, RouteKey, Rule,
};

/// A notification of the kernel.
#[derive(Clone, Debug, PartialEq)]
pub enum Event {
    /// All devices, ports of bridges, addresses, rules and next-hop objects, as of now.
    Whole(Box<Kernel>),
    /// A device exists, or exists no more.
    Link(Ifindex, Option<Box<Netdev>>),
    /// A device is a port of a bridge, or no longer.
    BridgePort(Ifindex, Option<BridgePort>),
    /// An address exists, or exists no more.
    Address(Address, Presence),
    /// A next-hop object exists, or exists no more. Its routes go with it, without events of their own.
    Nexthop(NexthopId, Option<Nexthop>),
    /// A rule is added behind those of its priority, or removed.
    Rule(Rule, Presence),
    /// A route.
    Route(RouteKey, Route, Change),
    /// All routes of a family follow.
    Listing {
        /// The family.
        family: Family,
        /// Whether the list only checks known routes. Then each route that it changes is the sign of an earlier
        /// error.
        audit: bool,
    },
    /// The list of a family's routes is complete. Routes that are in none of the last `lists` lists, and
    /// had no event since, are gone. Several lists count if many routes changed during one of them,
    /// because the kernel may leave routes out of such a list (`fib6_dump_table` skips by count).
    Listed {
        /// The family.
        family: Family,
        /// How many lists have to agree, at least 1: this one and those before, finished or not.
        lists: u8,
    },
    /// The events since the start, or since the loss, are the whole configuration.
    Complete,
    /// Messages were lost; the source lists everything again.
    Lost,
    /// A sysctl of a device has changed (`RTM_NEWNETCONF`); none for `all` and `default`. The kernel notifies
    /// only of `forwarding`, `mc_forwarding`, `rp_filter`, `bc_forwarding`, `proxy_arp`, `proxy_ndp` and
    /// `ignore_routes_with_linkdown`.
    Sysctl(Family, Option<Ifindex>),
    /// A queueing discipline, class or filter of a device has changed; none for filters that several
    /// devices share.
    Tc(Option<Ifindex>),
}

/// Whether something exists.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Presence {
    /// It exists.
    Here,
    /// It no longer exists.
    Gone,
}

/// A change of a route. Several routes may have one key; the first usable one applies.
///
/// IPv6: routes of one key that [join](Route::joins) are one route with several next hops. An `Add` of
/// such a route has all of them. With `Last`, hops that [it had](super::kernel::Hop::leads_alike) before
/// keep their order, and new ones follow. With `Only` and `Instead` they are in the order of the event.
/// A `Del` of such a route takes away the hops that it names; a single hop that remains has a weight of 1.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It is in the list, which has routes of one key in their order. A known route gets the stamp, and moves
    /// behind those of its key that already have the stamp.
    Listed,
    /// It is new, at this place. If the key has the same route already, only the stamp changes.
    Add(Place),
    /// It is gone: the route whose content [is the same](Route::is_same), if there is one.
    Del,
}

/// The position of a new route among those of its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// There are no others.
    Only,
    /// Before them.
    First,
    /// Behind them.
    Last,
    /// In place of the first. IPv6: in place of the first for which [`Route::joins`] gives the same
    /// result, if there is one.
    Instead,
}
