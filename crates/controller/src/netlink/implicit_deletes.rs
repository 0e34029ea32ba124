//! What the kernel deletes without notification.

use crate::event::{Event, Presence};
use crate::kernel::{Ifindex, Kernel, Netdev, Nexthop, NexthopId};

const UP: u32 = libc::IFF_UP as u32;
const RUNNING: u32 = libc::IFF_RUNNING as u32;
/// `IFF_LOWER_UP`.
const LOWER_UP: u32 = 1 << 16;

/// What the kernel deletes, apart from routes, along with an event. It notifies of much of it later anyway.
pub(super) fn implicit_deletes(kernel: &Kernel, event: &Event) -> Vec<Event> {
    match event {
        Event::Link(index, None) => {
            let addresses = kernel.addresses.iter().filter(|address| address.ifindex == *index);
            let addresses = addresses.map(|address| Event::Address(*address, Presence::Gone));
            addresses.chain(nexthops_of(kernel, *index)).collect()
        }
        // `nh_netdev_event`: next-hop objects go when their device loses its carrier.
        Event::Link(index, Some(netdev)) if !carries_nexthops(netdev) => {
            nexthops_of(kernel, *index).collect()
        }
        Event::Nexthop(id, None) => groups_without(kernel, &[*id]),
        _ => Vec::new(),
    }
}

/// Says whether an event makes routes or next hops come or go without a notification: a device changes
/// its state, or loses its last IPv4 address (`fib_disable_ip`).
pub(super) fn invalidates_routes(kernel: &Kernel, event: &Event) -> bool {
    let state = |netdev: &Netdev| netdev.flags & (UP | RUNNING | LOWER_UP);
    match event {
        Event::Link(index, now) => {
            kernel.netdevs.get(index).map(state) != now.as_deref().map(state)
        }
        Event::Address(address, Presence::Gone) => address.address.addr().is_ipv4(),
        _ => false,
    }
}

const fn carries_nexthops(netdev: &Netdev) -> bool {
    netdev.flags & UP != 0 && netdev.flags & (RUNNING | LOWER_UP) != 0
}

/// The next-hop objects that go with a device, and the changes of their groups.
fn nexthops_of(kernel: &Kernel, index: Ifindex) -> impl Iterator<Item = Event> {
    let on_it = |nexthop: &Nexthop| matches!(nexthop, Nexthop::Hop(hop) if hop.ifindex == index);
    let gone: Vec<NexthopId> =
        kernel.nexthops.iter().filter(|(_, nexthop)| on_it(nexthop)).map(|(id, _)| *id).collect();
    let groups = groups_without(kernel, &gone);
    gone.into_iter().map(|id| Event::Nexthop(id, None)).chain(groups)
}

/// The changes of groups when members go: `remove_nexthop_from_groups`.
fn groups_without(kernel: &Kernel, gone: &[NexthopId]) -> Vec<Event> {
    if gone.is_empty() {
        return Vec::new();
    }
    let groups = kernel.nexthops.iter().filter_map(|(id, nexthop)| match nexthop {
        Nexthop::Group { members, resilient } => Some((*id, members, *resilient)),
        _ => None,
    });
    let without = groups.filter_map(|(id, members, resilient)| {
        let left = members.iter().filter(|(member, _)| !gone.contains(member));
        let left: Vec<_> = left.copied().collect();
        let changed = left.len() < members.len();
        let group = (!left.is_empty()).then_some(Nexthop::Group { members: left, resilient });
        changed.then_some(Event::Nexthop(id, group))
    });
    without.collect()
}
