//! Hides the router's own devices from the controller and from its reports.

use std::collections::HashSet;

use super::devices::is_own;
use super::event::Event;
use super::kernel::{Hops, Ifindex, Kernel, Route};

/// Removes the devices that Tollway has made for itself from the kernel's notifications.
#[derive(Debug, Default)]
pub(super) struct OwnDevices {
    devices: HashSet<Ifindex>,
}

impl OwnDevices {
    /// The event without these devices; `None` if nothing remains.
    pub(super) fn without(&mut self, event: Event) -> Option<Event> {
        match event {
            Event::Whole(mut kernel) => {
                self.clean(&mut kernel);
                Some(Event::Whole(kernel))
            }
            Event::Link(index, Some(netdev)) if is_own(&netdev) => {
                self.devices.insert(index);
                None
            }
            // A device that has been renamed from one of these names is visible.
            Event::Link(index, netdev) => {
                let was_own = self.devices.remove(&index);
                (netdev.is_some() || !was_own).then_some(Event::Link(index, netdev))
            }
            Event::BridgePort(index, _) if self.has(index) => None,
            Event::Address(address, _) if self.has(address.ifindex) => None,
            Event::Route(_, ref route, _) if self.leads_to(route) => None,
            Event::Sysctl(_, Some(index)) | Event::Tc(Some(index)) if self.has(index) => None,
            event => Some(event),
        }
    }

    fn has(&self, index: Ifindex) -> bool {
        self.devices.contains(&index)
    }

    fn leads_to(&self, route: &Route) -> bool {
        matches!(&route.hops, Hops::One(hop) if self.has(hop.ifindex))
    }

    fn clean(&mut self, kernel: &mut Kernel) {
        let own = kernel.netdevs.iter().filter(|(_, netdev)| is_own(netdev));
        self.devices = own.map(|(index, _)| *index).collect();
        kernel.netdevs.retain(|index, _| !self.devices.contains(index));
        kernel.bridge_ports.retain(|index, _| !self.devices.contains(index));
        kernel.addresses.retain(|address| !self.devices.contains(&address.ifindex));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Change, Place, Presence};
    use crate::kernel::{Address, Hop, Netdev, RouteKey, RouteKind};

    fn netdev(name: &str) -> Netdev {
        let kind = Some("tun".to_owned());
        Netdev { name: name.to_owned(), kind, mac: Some([2; 6]), ..Netdev::default() }
    }

    fn link(index: Ifindex, name: &str) -> Event {
        Event::Link(index, Some(Box::new(netdev(name))))
    }

    fn route(ifindex: Ifindex) -> Event {
        let hop = Hop { via: None, ifindex, weight: 1, flags: 0, encap: false };
        let key = RouteKey { table: 254, dst: "ff00::/8".parse().unwrap(), tos: 0, priority: 256 };
        let route = Route {
            kind: RouteKind::Multicast,
            hops: Hops::One(hop),
            protocol: 2,
            prefsrc: None,
            mtu: 0,
            unsupported: false,
        };
        Event::Route(key, route, Change::Add(Place::Only))
    }

    #[test]
    fn events_of_own_devices_are_dropped() {
        let mut own = OwnDevices::default();
        let address = |ifindex| {
            let address = "fe80::1/64".parse().unwrap();
            let address = Address { ifindex, address, peer: None, broadcast: None, flags: 0 };
            Event::Address(address, Presence::Here)
        };
        let mut passes = |event| own.without(event).is_some();
        assert!(passes(link(2, "eth0")) && !passes(link(3, "toll2")));
        assert!(passes(address(2)) && !passes(address(3)));
        assert!(passes(route(2)) && !passes(route(3)));
        assert!(
            passes(Event::Tc(Some(2))) && !passes(Event::Tc(Some(3))) && passes(Event::Tc(None))
        );
        assert!(!passes(Event::Link(3, None)), "it was never reported");
        assert!(passes(link(3, "eth1")) && passes(route(3)), "the number is another's now");
    }

    #[test]
    fn a_list_of_everything_has_no_own_devices() {
        let mut kernel = Kernel::default();
        kernel.netdevs.insert(2, netdev("eth0"));
        kernel.netdevs.insert(3, netdev("toll2"));
        let mut own = OwnDevices::default();
        let Some(Event::Whole(visible)) = own.without(Event::Whole(Box::new(kernel))) else {
            panic!("it is reported")
        };
        assert_eq!(visible.netdevs.keys().collect::<Vec<_>>(), [&2]);
        assert_eq!(own.without(route(3)), None);
    }
}
