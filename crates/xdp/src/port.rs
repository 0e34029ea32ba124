//! A port as the XDP program sees it, and its slots in the maps.

use tollway_dataplane::id::{LinkId, PortId, Vid};

use super::features::strips_tags;
pub use super::page::MOST_PORTS;
use tollway_net::{KernelPath, Mac, VlanProtocol};

/// Flags of bpf/maps.h.
const LINK_EXISTS: u32 = 1 << 31;
const LINK_KERNEL4: u32 = 1 << 30;
const LINK_KERNEL6: u32 = 1 << 29;
const LINK_FRAGMENTS4: u32 = 1 << 28;
const LINK_FRAGMENTS6: u32 = 1 << 27;
const LINK_KERNEL_EXITS: u32 = 1 << 26;
const LINK_TRACKED4: u32 = 1 << 25;
const LINK_TRACKED6: u32 = 1 << 24;

/// A port as the XDP program sees it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct XdpPort {
    /// Its number, below [`MOST_PORTS`].
    pub port: PortId,
    /// The device's name, for messages.
    pub device: String,
    /// The device's ifindex.
    pub ifindex: u32,
    /// The port's Ethernet address, which is the destination of packets to route; none of a layer-3 device.
    pub mac: Mac,
    /// The number of its receive queues, at most [`MOST_QUEUES`].
    pub queues: u32,
    /// The links on it, the port's own included.
    pub links: Vec<XdpLink>,
    /// Whether its device belongs to a bridge: its frames are for anybody, and a program of its own forwards them.
    pub is_bridge_port: bool,
}

/// A link as the XDP program sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct XdpLink {
    /// The last tag of its frames; `None` for untagged frames.
    pub tag: Option<(VlanProtocol, Vid)>,
    /// The tag before that one, if there are two.
    pub outer: Option<(VlanProtocol, Vid)>,
    /// Its number in the router's tables.
    pub link: LinkId,
    /// The link's traffic that takes the kernel path.
    pub kernel_path: KernelPath,
}

impl XdpLink {
    /// Its value in the maps `links` and `inner_links`.
    pub(super) fn value(&self) -> u32 {
        let flag = |is_on: bool, flag| if is_on { flag } else { 0 };
        let families =
            flag(self.kernel_path.v4, LINK_KERNEL4) | flag(self.kernel_path.v6, LINK_KERNEL6);
        let fragments = flag(self.kernel_path.fragments4, LINK_FRAGMENTS4)
            | flag(self.kernel_path.fragments6, LINK_FRAGMENTS6);
        let exits = flag(self.kernel_path.tc_exits, LINK_KERNEL_EXITS);
        let tracked = flag(self.kernel_path.tracked4, LINK_TRACKED4)
            | flag(self.kernel_path.tracked6, LINK_TRACKED6);
        LINK_EXISTS | families | fragments | exits | tracked | u32::from(self.link.0)
    }
}

/// The most receive queues of a port.
pub const MOST_QUEUES: u32 = 128;

/// Says whether the maps have room for a port.
pub(super) fn has_room(port: &XdpPort) -> bool {
    usize::from(port.port.0) < MOST_PORTS && port.queues <= MOST_QUEUES
}

/// Where the programs find a link.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// In this slot of the map `links`.
    Slot(u32),
    /// Under this key of the map `inner_links`.
    Inner(u32),
}

/// Kinds of tags and VLANs, `LINKS_PER_PORT` of bpf/maps.h.
const LINKS_PER_PORT: u32 = 2 * 4096;

/// The place of a link of a port.
pub(super) fn place(port: PortId, link: &XdpLink) -> Place {
    let number = |tag: Option<(VlanProtocol, Vid)>| match tag {
        None => 0,
        Some((VlanProtocol::Dot1q, vid)) => u32::from(vid.get()),
        Some((VlanProtocol::Dot1ad, vid)) => LINKS_PER_PORT / 2 + u32::from(vid.get()),
    };
    let (port, tag) = (u32::from(port.0), number(link.tag));
    match link.outer {
        None => Place::Slot(port * LINKS_PER_PORT + tag),
        // 6 bits for the port, 13 for each tag.
        outer => Place::Inner((port * LINKS_PER_PORT + number(outer)) * LINKS_PER_PORT + tag),
    }
}

/// The slot of a queue's socket in the map `xsks`.
pub(super) fn socket_slot(port: PortId, queue: u32) -> u32 {
    u32::from(port.0) * MOST_QUEUES + queue
}

/// A note for the user about a device with VLAN links.
pub(super) fn vlan_note(port: &XdpPort) -> Option<String> {
    let device = &port.device;
    let has_tags = port.links.iter().any(|link| link.tag.is_some());
    (has_tags && strips_tags(device).unwrap_or(false)).then(|| {
        format!(
            "{device} may remove VLAN tags before XDP sees the frames, which then count as untagged; \
             run `ethtool -K {device} rxvlan off rx-vlan-stag-hw-parse off`, for a veth \
             also `ethtool -K PEER txvlan off tx-vlan-stag-hw-insert off` at its peer"
        )
    })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_link_of_each_port_has_a_place_of_its_own() {
        let vid = |vid| Vid::new(vid).unwrap();
        let protocols = [VlanProtocol::Dot1q, VlanProtocol::Dot1ad];
        let tags: Vec<_> = protocols
            .into_iter()
            .flat_map(|protocol| [1, 2, 2048, 4094].map(|number| Some((protocol, vid(number)))))
            .collect();
        let mut places = BTreeSet::new();
        let mut count = 0;
        for port in [0, 1, 63] {
            let mut add = |tag, outer| {
                let link =
                    XdpLink { tag, outer, link: LinkId(7), kernel_path: KernelPath::default() };
                places.insert(place(PortId(port), &link));
                count += 1;
            };
            add(None, None);
            for tag in &tags {
                add(*tag, None);
                tags.iter().for_each(|outer| add(*tag, *outer));
            }
        }
        assert_eq!(places.len(), count);
    }
}
