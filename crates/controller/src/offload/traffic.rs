//! The share of the traffic so far on links whose packets take the kernel path. It comes from the counters of
//! devices, since routes and rules count nothing.

use std::collections::BTreeMap;

use super::{Bridged, Link, Offload, PerFamily, Reason};
use crate::kernel::{Ifindex, Kernel};

/// `IFF_LOOPBACK`.
const LOOPBACK: u32 = 1 << 3;

/// Packets that a device has counted since it was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Received.
    pub received: u64,
    /// Sent.
    pub sent: u64,
}

/// Packets that ports have counted, by the path of their links.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Shares {
    /// All packets.
    pub packets: u64,
    /// Packets of links where both families take the kernel path in this direction.
    pub kernel: u64,
    /// Packets of links where only one of IPv4 and IPv6 does: devices do not count by family.
    pub either: u64,
}

/// A device that routes lead to and that belongs to no port, so all its traffic takes the kernel path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Other {
    /// Its name.
    pub name: String,
    /// What it has counted.
    pub counted: Counted,
}

/// The packet counts of devices so far.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Traffic {
    /// Received at ports.
    pub received: Shares,
    /// Sent by ports.
    pub sent: Shares,
    /// Traffic of other devices; if encapsulated, it may have gone by a port as well.
    pub others: Vec<Other>,
}

/// The counts of this namespace's devices, by name; none if they cannot be read.
pub(super) fn read() -> BTreeMap<String, Counted> {
    parse(&std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default())
}

fn parse(table: &str) -> BTreeMap<String, Counted> {
    let device = |line: &str| {
        let (name, numbers) = line.split_once(':')?;
        let mut numbers = numbers.split_whitespace().map(str::parse);
        // Eight columns for received traffic, the second of which is packets; then the same for sent traffic.
        let (received, sent) = (numbers.nth(1)?.ok()?, numbers.nth(7)?.ok()?);
        Some((name.trim().to_owned(), Counted { received, sent }))
    };
    table.lines().filter_map(device).collect()
}

impl Traffic {
    /// The counts by path, if they can be divided. They cannot if a program takes packets of a port before its
    /// VLAN devices count them.
    pub(super) fn of(
        offload: &Offload,
        kernel: &Kernel,
        by_device: &BTreeMap<Ifindex, u64>,
        counts: &BTreeMap<String, Counted>,
    ) -> Option<Self> {
        let counted = |index: Ifindex| {
            let netdev = kernel.netdevs.get(&index);
            netdev.and_then(|netdev| counts.get(&netdev.name)).copied()
        };
        let mut traffic = Self::default();
        // A bridge counts what its ports have counted.
        for link in offload.links.iter().filter(|link| !link.is_on_bridge) {
            if kernel.netdevs.get(&link.ifindex).is_none_or(|netdev| netdev.xdp.is_some()) {
                return None;
            }
            let mut own = counted(link.ifindex)?;
            for above in offload.links.iter().filter(|above| is_on(kernel, above, link)) {
                let above = counted(above.ifindex)?;
                own.received = own.received.saturating_sub(above.received);
                own.sent = own.sent.saturating_sub(above.sent);
            }
            if let Some(bridged) = offload.bridged.iter().find(|of| of.port.0 == link.ifindex) {
                traffic.received.add_frames(own.received, bridged);
                traffic.sent.add_frames(own.sent, bridged);
                continue;
            }
            traffic.received.add(own.received, &offload.general, &link.arrives);
            traffic.sent.add(own.sent, &offload.general, &link.leaves);
        }
        let is_link = |index: &Ifindex| offload.links.iter().any(|link| link.ifindex == *index);
        for index in by_device.keys().filter(|index| !is_link(index)) {
            let netdev = kernel.netdevs.get(index).filter(|netdev| netdev.flags & LOOPBACK == 0);
            if let Some((netdev, counted)) = netdev.zip(counted(*index)) {
                traffic.others.push(Other { name: netdev.name.clone(), counted });
            }
        }
        Some(traffic)
    }
}

impl Shares {
    /// Adds what a port of a bridge has counted.
    const fn add_frames(&mut self, packets: u64, bridged: &Bridged) {
        self.packets += packets;
        if !bridged.is_fast() {
            self.kernel += packets;
        }
    }

    /// Adds what a link has counted.
    fn add(
        &mut self,
        packets: u64,
        general: &PerFamily<Vec<Reason>>,
        own: &PerFamily<Vec<Reason>>,
    ) {
        let is_kernels =
            PerFamily::each(|family| !general.of(family).is_empty() || !own.of(family).is_empty());
        self.packets += packets;
        match (is_kernels.v4, is_kernels.v6) {
            (true, true) => self.kernel += packets,
            (false, false) => {}
            _ => self.either += packets,
        }
    }
}

/// Says whether a link is a VLAN directly on another, which counts its packets as well.
fn is_on(kernel: &Kernel, above: &Link, below: &Link) -> bool {
    let netdev = kernel.netdevs.get(&above.ifindex);
    netdev.is_some_and(|netdev| netdev.vlan.is_some() && netdev.lower == Some(below.ifindex))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernel::Netdev;

    const TABLE: &str = "\
Inter-|   Receive                                                |  Transmit
 face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed
    lo:   10       7    0    0    0     0          0         0       10       7    0    0    0     0       0          0
  eth0:99999    1000    0    0    0     0          0         0    88888     900    0    0    0     0       0          0
eth0.10: 9999     400    0    0    0     0          0         0     8888     200    0    0    0     0       0          0
  eth1: 9999      50    0    0    0     0          0         0     8888     600    0    0    0     0       0          0
   vx0: 9999      12    0    0    0     0          0         0     8888     850    0    0    0     0       0          0
";

    fn kernel() -> Kernel {
        let mut kernel = Kernel::default();
        for (index, name) in [(1, "lo"), (2, "eth0"), (3, "eth1"), (4, "eth0.10"), (5, "vx0")] {
            let netdev = Netdev { name: name.to_owned(), ..Netdev::default() };
            kernel.netdevs.insert(index, netdev);
        }
        if let Some(lo) = kernel.netdevs.get_mut(&1) {
            lo.flags = LOOPBACK;
        }
        if let Some(vlan) = kernel.netdevs.get_mut(&4) {
            (vlan.vlan, vlan.lower) = (Some((10, 0x8100)), Some(2));
        }
        kernel
    }

    #[test]
    fn packets_count_once_and_by_the_paths_of_their_links() {
        let why = || vec![Reason::NoArp("it".to_owned())];
        let both = || PerFamily { v4: why(), v6: why() };
        let one = || PerFamily { v4: vec![], v6: why() };
        let link = |ifindex| Link { ifindex, port: ifindex, ..Link::default() };
        let mut offload = Offload { links: vec![link(2), link(4), link(3)], ..Offload::default() };
        (offload.links[1].arrives, offload.links[2].leaves) = (both(), one());
        let (mut kernel, counts) = (kernel(), parse(TABLE));
        let routes = BTreeMap::from([(1, 1), (2, 9), (4, 9), (5, 1), (7, 1)]);
        let traffic = Traffic::of(&offload, &kernel, &routes, &counts).unwrap();
        assert_eq!(traffic.received, Shares { packets: 1050, kernel: 400, either: 0 });
        assert_eq!(traffic.sent, Shares { packets: 1500, kernel: 0, either: 600 });
        let counted = Counted { received: 12, sent: 850 };
        assert_eq!(traffic.others, [Other { name: "vx0".to_owned(), counted }]);
        offload.general = both();
        let traffic = Traffic::of(&offload, &kernel, &routes, &counts).unwrap();
        assert_eq!(traffic.received, Shares { packets: 1050, kernel: 1050, either: 0 });

        kernel.netdevs.get_mut(&2).unwrap().xdp = Some(9);
        assert_eq!(Traffic::of(&offload, &kernel, &routes, &counts), None, "a program is there");
        kernel.netdevs.get_mut(&2).unwrap().xdp = None;
        assert_eq!(Traffic::of(&offload, &kernel, &routes, &parse("")), None, "unread");
    }
}
