//! The devices behind the ports, which may go and come back.

use super::kernel::{Ifindex, Kernel, Netdev};
use tollway_model::Choice;
use tollway_net::Mac;

/// A port, identified by the name that it was started with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Port {
    pub(super) name: String,
    /// Its device, if it is there.
    pub(super) device: Option<Ifindex>,
    /// The present or last Ethernet address and MTU of its device; a layer-3 device has no address.
    pub(super) mac: Mac,
    pub(super) mtu: u32,
    /// The port can send frames.
    pub(super) works: bool,
    /// The largest packet that its sockets have room for, in bytes, if its device may send larger ones.
    pub(super) room: Option<u32>,
    /// What decides about its packets, as the port was opened.
    pub(super) choice: Choice,
}

impl Port {
    /// A port whose device exists.
    pub(super) fn new(index: Ifindex, netdev: &Netdev, choice: Choice) -> Self {
        let mut port = Self {
            name: netdev.name.clone(),
            device: Some(index),
            mac: Mac::NONE,
            mtu: 0,
            works: true,
            room: None,
            choice,
        };
        port.note(netdev);
        port
    }

    /// Finds its device: the same one, even after a rename, else one with the port's name.
    pub(super) fn find(&mut self, kernel: &Kernel) {
        let same = self.device.filter(|index| kernel.netdevs.contains_key(index));
        self.device = same.or_else(|| kernel.named(&self.name).map(|(index, _)| index));
        if let Some(netdev) = self.device.and_then(|index| kernel.netdevs.get(&index)) {
            self.note(netdev);
        }
    }

    /// Records that its device has gone: a later device with the same number is not this port's.
    pub(super) fn lose(&mut self, index: Ifindex) {
        self.device = self.device.filter(|device| *device != index);
    }

    fn note(&mut self, netdev: &Netdev) {
        let none = if netdev.is_layer3 { Mac::NONE } else { self.mac };
        self.mac = netdev.mac.map_or(none, Mac::of_ethernet);
        self.mtu = netdev.mtu;
    }
}

#[cfg(test)]
mod tests {
    use tollway_model::Engine;

    use super::*;

    #[test]
    fn a_port_keeps_its_device_and_finds_another_of_its_name() {
        let netdev = |name: &str, mtu| Netdev {
            name: name.to_owned(),
            mac: Some([2, 0, 0, 0, 0, mtu as u8]),
            mtu,
            ..Netdev::default()
        };
        let mut kernel = Kernel::default();
        kernel.netdevs.insert(2, netdev("a", 100));
        let mut port = Port::new(2, &kernel.netdevs[&2], Choice::selected(Engine::Auto));
        kernel.netdevs.insert(2, netdev("renamed", 101));
        kernel.netdevs.insert(3, netdev("a", 102));
        port.find(&kernel);
        assert_eq!((port.device, port.mtu), (Some(2), 101));
        kernel.netdevs.remove(&2);
        port.find(&kernel);
        assert_eq!((port.device, port.mtu), (Some(3), 102));
        port.lose(2);
        assert_eq!(port.device, Some(3));
        // The device goes, and another gets its number before the next look.
        port.lose(3);
        kernel.netdevs.insert(3, netdev("b", 103));
        port.find(&kernel);
        assert_eq!((port.device, port.mtu), (None, 102));
        kernel.netdevs.remove(&3);
        port.find(&kernel);
        assert_eq!((port.device, port.mtu, port.mac.0[5]), (None, 102, 102));
    }
}
