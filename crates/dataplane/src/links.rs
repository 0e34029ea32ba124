//! Logical links, and the VRFs that they belong to.

use std::collections::HashMap;
use std::ops::Index;

use crate::fib::Root;
use crate::id::{LinkId, PortId, Vid, VrfId};
use crate::wire::eth::MacWord;

/// A link as the path reads it.
#[derive(Clone, Debug, Default)]
pub struct LinkRecord {
    /// Its address.
    pub mac: MacWord,
    /// FIB root of its VRF, IPv4.
    pub root4: u32,
    /// FIB root of its VRF, IPv6.
    pub root6: u32,
    /// The port below it.
    pub port: PortId,
    /// Its VRF.
    pub vrf: VrfId,
    /// Largest packet, bytes.
    pub mtu: u16,
    /// Largest IPv6 packet, bytes.
    pub mtu6: u16,
    /// Its address as bytes; zeros if it is a layer-3 device.
    pub mac_bytes: [u8; 6],
    /// Tags of frames sent on it, outermost first: protocol and VLAN identifier.
    pub tags: Vec<(u16, Vid)>,
}

impl LinkRecord {
    /// Says whether packets leave without an Ethernet header: neighbours then have no addresses, and are known.
    #[must_use]
    pub fn is_layer3(&self) -> bool {
        self.mac_bytes == [0; 6]
    }
}

/// A VRF: one FIB for each family.
#[derive(Clone, Copy, Debug, Default)]
pub struct VrfRecord {
    /// Root of its IPv4 FIB.
    pub root4: Root,
    /// Root of its IPv6 FIB.
    pub root6: Root,
}

/// Links by [`LinkId`].
#[derive(Clone, Debug, Default)]
pub struct Links {
    records: Vec<LinkRecord>,
    /// Every VLAN link, by the link below it and the tag's protocol and identifier.
    vlans: HashMap<(LinkId, u16, u16), LinkId>,
}

impl Index<LinkId> for Links {
    type Output = LinkRecord;

    /// The link with this number; numbers come from the tables themselves.
    #[inline(always)]
    fn index(&self, id: LinkId) -> &LinkRecord {
        &self.records[usize::from(id.0)]
    }
}

impl Links {
    /// The number of links.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len()
    }

    /// Says whether there is no link.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// The links in the order of their numbers.
    pub fn iter(&self) -> impl Iterator<Item = &LinkRecord> {
        self.records.iter()
    }

    /// The link with this number, if there is one.
    #[must_use]
    pub fn get(&self, id: LinkId) -> Option<&LinkRecord> {
        self.records.get(usize::from(id.0))
    }

    pub(crate) fn get_mut(&mut self, id: LinkId) -> Option<&mut LinkRecord> {
        self.records.get_mut(usize::from(id.0))
    }

    /// The VLAN link behind a tag on another link.
    #[must_use]
    pub fn vlan(&self, parent: LinkId, protocol: u16, vid: u16) -> Option<LinkId> {
        self.vlans.get(&(parent, protocol, vid)).copied()
    }

    /// Adds a link; none if all numbers are used.
    pub(crate) fn push(&mut self, record: LinkRecord) -> Option<LinkId> {
        // One number is reserved: it stands for no link.
        let id = u16::try_from(self.records.len()).ok().filter(|id| *id < u16::MAX)?;
        self.records.push(record);
        Some(LinkId(id))
    }

    /// Places a VLAN link on top of another.
    pub(crate) fn insert_vlan(&mut self, parent: LinkId, protocol: u16, vid: Vid, link: LinkId) {
        self.vlans.insert((parent, protocol, vid.get()), link);
    }
}
