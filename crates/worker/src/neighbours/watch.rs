//! The links for which the kernel has neighbours, and their devices.

use std::collections::{BTreeMap, HashMap};

use tollway_dataplane::id::LinkId;

use super::event::{Ifindex, Netdev};
use tollway_model::{LinkKind, Model, PortIndex};

/// Links whose neighbours the kernel resolves; each comes after the link that carries it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Watch {
    links: Vec<Watched>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Watched {
    link: LinkId,
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// The device behind a port.
    Device { port: PortIndex, name: String },
    /// A bridge.
    Bridge(Ifindex),
    /// A VLAN device on another watched link.
    Vlan { parent: LinkId, vid: u16, protocol: u16, name: String },
}

impl Watch {
    /// The links of those ports of a model that have a device and that `is_wanted` selects, and those of bridges.
    pub fn of(model: &Model, is_wanted: impl Fn(PortIndex) -> bool) -> Self {
        let mut links: Vec<Watched> = Vec::new();
        for (index, link) in model.links.iter().enumerate() {
            let Ok(id) = u16::try_from(index).map(LinkId) else { break };
            let kind = match link.kind {
                LinkKind::Port(port) if is_wanted(port) => {
                    let device = model.ports.get(port.0).and_then(|port| port.kind.device());
                    device.map(|name| Kind::Device { port, name: name.to_owned() })
                }
                LinkKind::Port(_) => None,
                LinkKind::Bridge { device } => Some(Kind::Bridge(device)),
                LinkKind::Vlan { parent, vid, protocol } => {
                    let below = links.iter().find(|below| usize::from(below.link.0) == parent.0);
                    let name = link.name.clone();
                    below.map(|below| Kind::Vlan {
                        parent: below.link,
                        vid,
                        protocol: protocol.ethertype(),
                        name,
                    })
                }
            };
            links.extend(kind.map(|kind| Watched { link: id, kind }));
        }
        Self { links }
    }

    /// Whether there is nothing to watch.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.links.is_empty()
    }

    /// The present device of each link. A port keeps its device even after a rename; otherwise the name
    /// decides.
    pub(super) fn bind(
        &self,
        netdevs: &BTreeMap<Ifindex, Netdev>,
        before: &HashMap<PortIndex, Ifindex>,
    ) -> Bound {
        let mut bound = Bound::default();
        let mut devices: HashMap<LinkId, Ifindex> = HashMap::new();
        let named = |name: &str| netdevs.iter().find(|(_, netdev)| netdev.name == name);
        for Watched { link, kind } in &self.links {
            let found = match kind {
                Kind::Device { port, name } => {
                    let same = before.get(port).copied().filter(|old| netdevs.contains_key(old));
                    let device = same.or_else(|| named(name).map(|(index, _)| *index));
                    bound.ports.extend(device.map(|device| (*port, device)));
                    device
                }
                Kind::Bridge(device) => netdevs.contains_key(device).then_some(*device),
                Kind::Vlan { parent, vid, protocol, name } => {
                    let below = devices.get(parent).copied();
                    let tag = below.map(|below| (below, *vid, *protocol));
                    let by_tag = netdevs.iter().find(|(_, dev)| tag.is_some() && dev.vlan == tag);
                    // A kernel without VLAN devices may have a device of another kind instead.
                    let by_name = || named(name).filter(|(_, dev)| dev.vlan.is_none());
                    by_tag.or_else(by_name).map(|(index, _)| *index)
                }
            };
            if let Some(index) = found {
                devices.insert(*link, index);
                bound.links.insert(index, *link);
            }
        }
        bound
    }
}

/// The assignment of devices to links and ports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bound {
    pub(super) links: HashMap<Ifindex, LinkId>,
    pub(super) ports: HashMap<PortIndex, Ifindex>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn netdev(name: &str, vlan: Option<(Ifindex, u16, u16)>) -> Netdev {
        Netdev { name: name.to_owned(), mac: None, mtu: 1500, up: true, vlan }
    }

    fn watch() -> Watch {
        let text = "[ports.a]\nkind = \"af_packet\"\ndevice = \"ra\"\n\
                    [ports.b]\nkind = \"memory\"\n\
                    [vlans.\"a.5\"]\nparent = \"a\"\nvid = 5\nprotocol = \"802.1ad\"\n\
                    [vlans.\"a.5.6\"]\nparent = \"a.5\"\nvid = 6\n\
                    [vlans.\"b.5\"]\nparent = \"b\"\nvid = 5\n";
        let model = tollway_model::config::parse(text, "t.toml").unwrap().model;
        let names: Vec<_> = model.links.iter().map(|link| link.name.as_str()).collect();
        assert_eq!(names, ["a", "b", "a.5", "a.5.6", "b.5"]);
        Watch::of(&model, |_| true)
    }

    #[test]
    fn vlan_devices_are_found_by_what_they_are() {
        let netdevs = BTreeMap::from([
            (1, netdev("lo", None)),
            (2, netdev("ra", None)),
            (3, netdev("whatever", Some((2, 5, 0x88a8)))),
            (4, netdev("a.5", Some((2, 5, 0x8100)))),
            (5, netdev("inner", Some((3, 6, 0x8100)))),
        ]);
        let bound = watch().bind(&netdevs, &HashMap::new());
        let expected = [(2, LinkId(0)), (3, LinkId(2)), (5, LinkId(3))];
        assert_eq!(bound.links, HashMap::from(expected));
        assert_eq!(bound.ports, HashMap::from([(PortIndex(0), 2)]));
    }

    #[test]
    fn where_no_vlan_device_is_the_name_counts() {
        let netdevs = BTreeMap::from([(2, netdev("ra", None)), (7, netdev("a.5", None))]);
        let bound = watch().bind(&netdevs, &HashMap::new());
        assert_eq!(bound.links, HashMap::from([(2, LinkId(0)), (7, LinkId(2))]));
    }

    #[test]
    fn a_renamed_device_stays_the_ports() {
        let before = HashMap::from([(PortIndex(0), 2)]);
        let mut netdevs = BTreeMap::from([(2, netdev("new", None)), (9, netdev("ra", None))]);
        assert_eq!(watch().bind(&netdevs, &before).links, HashMap::from([(2, LinkId(0))]));
        netdevs.remove(&2);
        assert_eq!(watch().bind(&netdevs, &before).links, HashMap::from([(9, LinkId(0))]));
        netdevs.clear();
        assert_eq!(watch().bind(&netdevs, &before), Bound::default());
    }
}
