//! Which traffic takes which road, and why: the fast one, or the kernel's.
//!
//! The rule is never to be wrong, only slower: what the router would not do exactly as the kernel is
//! configured to do, or what is in doubt, is the kernel's. [`Coverage::of`] says it from what is known
//! ([`Facts`]) and asks nobody. It says it for each link and family of what arrives and of what leaves
//! there; a packet takes the fast road where it arrives by a link whose arrivals do and leaves by one
//! whose departures do, and nothing in [`Coverage::parts`] is about it.
//!
//! What is the kernel's by nature is not listed: what is for the host, ARP and neighbour discovery,
//! groups, packets with options, errors to be sent.
//!
//! Limits: what NetLabel has been told to do without SELinux's `always_check_network` is not seen, nor
//! BPF programs of netfilter where the kernel neither lists hooks ([`Hook`]) nor has BTF.

mod firewall;
mod general;
mod idle;
mod link;
mod live;
mod parts;
mod probe;
mod reason;
mod routes;
mod sight;
#[cfg(test)]
mod tests;
mod traffic;

use std::collections::BTreeMap;

use super::kernel::{Family, Ifindex, Kernel};
use super::sysctl::Sysctls;
use crate::filter::ir;

pub use live::Live;
pub use parts::{Note, Part};
pub use probe::{
    Asked, Checksums, Device, Elsewhere, Glance, Hook, Legacy, Probes, Tags, Unknown, Xfrm,
};
pub use reason::Reason;
pub use routes::RouteTally;
pub use sight::{Sight, SightError};
pub use traffic::{Counted, Other, Shares, Traffic};

/// One of each family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PerFamily<T> {
    /// IPv4's.
    pub v4: T,
    /// IPv6's.
    pub v6: T,
}

impl<T> PerFamily<T> {
    /// That of a family.
    #[must_use]
    pub const fn of(&self, family: Family) -> &T {
        match family {
            Family::V4 => &self.v4,
            Family::V6 => &self.v6,
        }
    }

    /// That of a family, to be changed.
    pub const fn of_mut(&mut self, family: Family) -> &mut T {
        match family {
            Family::V4 => &mut self.v4,
            Family::V6 => &mut self.v6,
        }
    }

    /// What a function says of each.
    #[must_use]
    pub fn each(mut say: impl FnMut(Family) -> T) -> Self {
        Self { v4: say(Family::V4), v6: say(Family::V6) }
    }
}

/// What is known.
#[derive(Clone, Copy, Debug)]
pub struct Facts<'a> {
    /// The devices that are Tollway's ports.
    pub ports: &'a [Ifindex],
    /// Devices, rules and next hops.
    pub kernel: &'a Kernel,
    /// Sysctls of them and of their VRFs.
    pub sysctls: &'a Sysctls,
    /// What else was found on them.
    pub probes: &'a Probes,
    /// How many routes there are, and of what.
    pub routes: &'a RouteTally,
    /// The rules of nftables.
    pub firewall: &'a Firewall,
    /// The largest packet that there is room for, bytes.
    pub most_mtu: u32,
    /// The same of ports that have room for less, as they are opened.
    pub rooms: &'a BTreeMap<Ifindex, u32>,
    /// What is known of routes with several next hops.
    pub spread: Spread,
}

/// What is known of routes with several next hops.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spread {
    /// There are some.
    pub groups: PerFamily<bool>,
    /// The seed by which the kernel chooses could not be set.
    pub seed_refused: bool,
}

/// The rules of nftables, as far as they are known.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Firewall {
    /// They are not, and why.
    Unread(String),
    /// They are.
    Read(Rules),
}

/// The rules of nftables.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    /// How many the router decides by.
    pub compiled: usize,
    /// Those whose packets are the kernel's: the rule, and why.
    pub kernel: Vec<(String, String)>,
    /// Chains of the hooks of devices: the hook and the name.
    pub at_devices: Vec<(ir::Hook, String)>,
    /// The rule that has connections tracked whose state forwarded packets may be asked for; in words.
    pub tracking: PerFamily<Option<String>>,
    /// The rule that has fragments put together, be it one for the host's own packets.
    pub fragments: PerFamily<Option<String>>,
    /// Why everything of a family is the kernel's.
    pub whole: PerFamily<Vec<String>>,
}

/// A road.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Road {
    /// Tollway's.
    Fast,
    /// The kernel's.
    Kernel,
}

/// A link with its roads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// The device.
    pub ifindex: Ifindex,
    /// Its name.
    pub name: String,
    /// The port that it is, or is on.
    pub port: Ifindex,
    /// The VRF that it is in.
    pub vrf: Option<String>,
    /// It is up, and so are those below it.
    pub up: bool,
    /// Why what arrives there is the kernel's, beside [`Coverage::general`].
    pub arrives: PerFamily<Vec<Reason>>,
    /// Why what would leave there is the kernel's, likewise.
    pub leaves: PerFamily<Vec<Reason>>,
}

/// Which traffic takes which road.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Why everything is the kernel's.
    pub general: PerFamily<Vec<Reason>>,
    /// The links: each port, followed by the VLAN devices on it.
    pub links: Vec<Link>,
    /// Why what several next hops share is the kernel's.
    pub groups: PerFamily<Vec<Reason>>,
    /// Why fragments are the kernel's, where they are.
    pub fragments: PerFamily<Option<String>>,
    /// What else is the kernel's, of what would be fast.
    pub parts: Vec<Part>,
    /// What people should know that is no matter of roads.
    pub notes: Vec<Note>,
    /// Rules of nftables that the router decides by.
    pub compiled: usize,
    /// Routes, of each family.
    pub routes: PerFamily<u64>,
}

impl Coverage {
    /// Says it.
    #[must_use]
    pub fn of(facts: &Facts<'_>) -> Self {
        let general = PerFamily::each(|family| general::reasons(facts, family));
        let fragments = PerFamily::each(|family| {
            let rule = general::fragments(facts, family);
            rule.filter(|_| general.of(family).is_empty()).map(str::to_owned)
        });
        let links = link::links(facts, &fragments);
        let groups = PerFamily::each(|family| general::groups(facts, family));
        let mut parts = parts::fragments(&fragments);
        parts.extend(parts::parts(facts, &links, &groups));
        let notes = parts::notes(facts, &links, &fragments);
        let compiled = match facts.firewall {
            Firewall::Read(rules) => rules.compiled,
            Firewall::Unread(_) => 0,
        };
        let routes = facts.routes.total;
        Self { general, links, groups, fragments, parts, notes, compiled, routes }
    }

    /// The road of what arrives by a device.
    #[must_use]
    pub fn arrives(&self, ifindex: Ifindex, family: Family) -> Road {
        self.road(ifindex, family, |link| &link.arrives)
    }

    /// The road of what would leave by a device.
    #[must_use]
    pub fn leaves(&self, ifindex: Ifindex, family: Family) -> Road {
        self.road(ifindex, family, |link| &link.leaves)
    }

    fn road(
        &self,
        ifindex: Ifindex,
        family: Family,
        way: impl Fn(&Link) -> &PerFamily<Vec<Reason>>,
    ) -> Road {
        let link = self.links.iter().find(|link| link.ifindex == ifindex);
        let is_fast = link.is_some_and(|link| way(link).of(family).is_empty());
        if is_fast && self.general.of(family).is_empty() { Road::Fast } else { Road::Kernel }
    }
}
