//! The router's links, as rules identify them.

use std::net::{IpAddr, Ipv4Addr};

use tollway_dataplane::stages::filter::LinkAddress;

use crate::ir::LinkPattern;

/// A link, with what rules need to identify it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Link {
    /// Its name.
    pub name: String,
    /// Its VRF's name.
    pub vrf: String,
    /// The lower link, if it is a VLAN.
    pub on: Option<String>,
    /// The VRF device that it belongs to, if the VRF is a device as in the kernel. Its packets meet
    /// prerouting once more as if received by that device, and later hooks only so.
    pub vrf_device: Option<String>,
    /// Its addresses with the lengths of their prefixes, to which rules may translate.
    pub addresses: Vec<LinkAddress>,
}

impl Link {
    /// Its first address of IPv4.
    #[must_use]
    pub fn first_ip4(&self) -> Option<Ipv4Addr> {
        self.addresses.iter().find_map(|(address, _)| match address {
            IpAddr::V4(address) => Some(*address),
            IpAddr::V6(_) => None,
        })
    }

    /// Says whether a pattern matches the link.
    #[must_use]
    pub fn is(&self, pattern: &LinkPattern) -> bool {
        match pattern {
            LinkPattern::Name(name) => self.name == *name,
            LinkPattern::Prefix(prefix) => self.name.starts_with(prefix),
            LinkPattern::Vrf(vrf) => self.vrf == *vrf,
        }
    }
}
