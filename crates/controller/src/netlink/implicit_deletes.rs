//! What the kernel deletes without notification.

use crate::event::{Event, Presence};
use crate::kernel::{BridgePort, Ifindex, Kernel, Netdev, Nexthop, NexthopId};

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
            let gone = addresses.chain(nexthops_of(kernel, *index));
            gone.chain(bridge_port_of(kernel, *index)).collect()
        }
        Event::Link(index, Some(netdev)) => {
            let port = netdev.master.is_none().then(|| bridge_port_of(kernel, *index));
            // `nh_netdev_event`: next-hop objects go when their device loses its carrier.
            let nexthops = (!carries_nexthops(netdev)).then(|| nexthops_of(kernel, *index));
            nexthops.into_iter().flatten().chain(port.into_iter().flatten()).collect()
        }
        Event::BridgePort(index, None) => ports_without_backup(kernel, *index).collect(),
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

/// The port that goes with a device, or with its membership of a bridge. The kernel notifies of that before,
/// but that message may have been lost.
fn bridge_port_of(kernel: &Kernel, index: Ifindex) -> impl Iterator<Item = Event> {
    let port = kernel.bridge_ports.get(&index).map(|_| Event::BridgePort(index, None));
    port.into_iter().chain(ports_without_backup(kernel, index))
}

/// The changes of ports that have another as a backup, when that goes: `nbp_backup_clear`.
fn ports_without_backup(kernel: &Kernel, gone: Ifindex) -> impl Iterator<Item = Event> {
    let ports = kernel.bridge_ports.iter();
    let changed = ports.filter(move |(_, port)| port.backup_port == Some(gone));
    changed.map(|(index, port)| {
        Event::BridgePort(*index, Some(BridgePort { backup_port: None, ..*port }))
    })
}

const fn carries_nexthops(netdev: &Netdev) -> bool {
    netdev.is_up() && netdev.flags & (RUNNING | LOWER_UP) != 0
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
