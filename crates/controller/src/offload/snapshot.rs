//! Reads all that the offload depends on, once, before the router attaches any program.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::traffic::{self, Counted, Traffic};
use super::{Facts, Firewall, Offload, PerFamily, Probes, RouteTally, Spread};
use crate::devices;
use crate::event::Event;
use crate::kernel::{Ifindex, Kernel};
use crate::netlink::{Settings, Source};
use crate::rib::Rib;
use crate::sysctl::Sysctls;
use tollway_linux::kept_files::KeptFiles;
use tollway_linux::sys::why;
use tollway_model::Engine;
use tollway_rules::{self as rules, Follower};

/// The limit for reading the configuration; the kernel lists a million routes within seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// The limit for reading the rules of nftables.
const RULES_PATIENCE: Duration = Duration::from_secs(30);

/// Why the kernel's configuration cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The system refused.
    #[error("the kernel's configuration cannot be read: {}", why(.0))]
    System(#[from] io::Error),
    /// The configuration keeps changing, or the kernel does not answer.
    #[error("the kernel has not reported its configuration within {} s", PATIENCE.as_secs())]
    Late,
}

/// All that the offload depends on.
#[derive(Clone, Debug)]
pub struct KernelSnapshot {
    /// Devices, addresses, rules and next hops.
    pub kernel: Kernel,
    /// The counts of routes.
    pub routes: RouteTally,
    /// Sysctls of all devices.
    pub sysctls: Sysctls,
    /// Results of other queries about all devices.
    pub probes: Probes,
    /// The rules of nftables.
    pub firewall: Firewall,
    /// Packets that devices have counted, by name.
    pub counts: BTreeMap<String, Counted>,
}

impl KernelSnapshot {
    /// Reads everything, in the network namespace of this process.
    ///
    /// # Errors
    /// See [`SnapshotError`]. A query without the necessary privilege is no error; its result is unknown.
    pub fn take() -> Result<Self, SnapshotError> {
        let (kernel, routes) = configuration()?;
        let names = kernel.netdevs.values().map(|netdev| netdev.name.as_str());
        let sysctls = Sysctls::read(&mut KeptFiles::default(), names);
        let probes = Probes::read(&kernel.netdevs, kernel.netdevs.keys().copied(), None)?;
        let (firewall, counts) = (firewall(), traffic::read());
        Ok(Self { routes, sysctls, probes, firewall, counts, kernel })
    }

    /// The offload if these devices were ports with these engines.
    #[must_use]
    pub fn offload(&self, ports: &[(Ifindex, Engine)], most_mtu: u32) -> Offload {
        let Self { kernel, routes, sysctls, probes, firewall, .. } = self;
        let groups = PerFamily::each(|family| *routes.several.of(family) > 0);
        Offload::of(&Facts {
            ports,
            kernel,
            sysctls,
            probes,
            routes,
            firewall,
            most_mtu,
            rooms: &BTreeMap::new(),
            spread: Spread { groups, seed_refused: false },
        })
    }

    /// The packet counts of devices so far, by the paths of an offload; see [`Traffic`].
    #[must_use]
    pub fn traffic(&self, offload: &Offload) -> Option<Traffic> {
        Traffic::of(offload, &self.kernel, &self.routes.by_device, &self.counts)
    }
}

/// Reads the configuration by rtnetlink.
fn configuration() -> Result<(Kernel, RouteTally), SnapshotError> {
    let mut source = Source::open(Settings::default())?;
    let mut report = KernelReport::default();
    if !source.read_all(PATIENCE, &mut |event| report.receive(&event))? {
        return Err(SnapshotError::Late);
    }
    let KernelReport { mut kernel, rib } = report;
    let routes = RouteTally::of(&rib, &kernel.nexthops);
    // Tollway's own devices are no part of the configuration.
    kernel.netdevs.retain(|_, netdev| !devices::is_own(netdev));
    Ok((kernel, routes))
}

/// The configuration received so far. It keeps routes until the list is complete: the list may be repeated,
/// and the kernel may delete listed routes before that.
#[derive(Debug, Default)]
struct KernelReport {
    kernel: Kernel,
    rib: Rib,
}

impl KernelReport {
    fn receive(&mut self, event: &Event) {
        self.kernel.apply(event);
        self.rib.apply(event);
    }
}

/// Reads the rules by nft.
fn firewall() -> Firewall {
    let (sender, events) = mpsc::channel();
    // A receiver that has gone needs nothing more.
    let report = Box::new(move |event| drop(sender.send(event)));
    let follower = match Follower::start(report) {
        Ok(follower) => follower,
        Err(error) => return Firewall::Unread(why(&error)),
    };
    let first = rules::first(&events, RULES_PATIENCE);
    drop(follower);
    match first {
        Ok(Ok(reading)) => Firewall::from(&*reading),
        Ok(Err(sentence)) => Firewall::Unread(sentence),
        Err(RecvTimeoutError::Timeout) => {
            let patience = RULES_PATIENCE.as_secs();
            Firewall::Unread(format!("they kept changing for {patience} s"))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Firewall::Unread("the thread that reads them has ended".to_owned())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Change, Place};
    use crate::kernel::{Family, Hop, Hops, Route, RouteKey, RouteKind};

    fn route(dst: &str, change: Change) -> Event {
        let key = RouteKey { table: 254, dst: dst.parse().unwrap(), tos: 0, priority: 0 };
        let hop = Hop { via: None, ifindex: 2, weight: 1, flags: 0, encap: false };
        let (kind, hops) = (RouteKind::Unicast, Hops::One(hop));
        let route = Route { kind, hops, protocol: 4, prefsrc: None, mtu: 0, unsupported: false };
        Event::Route(key, route, change)
    }

    #[test]
    fn routes_that_are_listed_again_are_counted_once() {
        let mut report = KernelReport::default();
        report.receive(&Event::Whole(Box::default()));
        let mut receive =
            |events: Vec<Event>| events.iter().for_each(|event| report.receive(event));
        let begins = |family| Event::Listing { family, audit: false };
        let (four, six) = ("192.0.2.0/24", "2001:db8::/32");
        for _ in 0..3 {
            receive(vec![begins(Family::V4), route(four, Change::Listed)]);
        }
        receive(vec![Event::Listed { family: Family::V4, lists: 3 }, begins(Family::V6)]);
        // During the list of IPv6, another IPv4 route is added, and one replaces it.
        receive(vec![route(six, Change::Listed), route("10.0.0.0/8", Change::Add(Place::Only))]);
        receive(vec![route("10.0.0.0/8", Change::Add(Place::Instead)), begins(Family::V6)]);
        receive(vec![route(six, Change::Listed), Event::Listed { family: Family::V6, lists: 1 }]);
        let routes = RouteTally::of(&report.rib, &report.kernel.nexthops);
        assert_eq!((routes.total.v4, routes.total.v6), (2, 1));
        assert_eq!(routes.by_device, BTreeMap::from([(2, 3)]));
    }
}
