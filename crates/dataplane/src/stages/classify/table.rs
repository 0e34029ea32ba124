use crate::id::{LinkId, Vid};
use crate::wire::eth::{MacWord, ethertype};

/// The number of 12-bit identifiers.
const VIDS: usize = 4096;

/// The link behind a tag, with what the path needs of it.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(16))]
pub struct VlanEntry {
    /// The link, or the one of [`VlanEntry::NONE`].
    pub link: LinkId,
    /// FIB root of the link's VRF, IPv4.
    pub root4: u32,
    /// FIB root of the link's VRF, IPv6.
    pub root6: u32,
}

impl VlanEntry {
    /// No link is behind the tag.
    pub const NONE: Self = Self { link: LinkId(u16::MAX), root4: 0, root6: 0 };

    /// Says whether there is a link behind the tag.
    #[inline(always)]
    #[must_use]
    pub const fn is_some(&self) -> bool {
        self.link.0 != u16::MAX
    }
}

/// The VLAN links of a port for one tag protocol, by VLAN identifier: one array of 64 KB, in which one
/// load finds link and FIB.
#[derive(Clone, Copy, Debug)]
pub struct VlanLinks<'a> {
    entries: &'a [VlanEntry; VIDS],
    /// Some link has an address other than its port's.
    pub own_macs: bool,
}

impl<'a> VlanLinks<'a> {
    /// The entry for a VLAN identifier.
    #[inline(always)]
    #[must_use]
    pub fn get(self, vid: u16) -> &'a VlanEntry {
        &self.entries[usize::from(vid) % VIDS]
    }
}

/// The VLAN links on top of a port, by tag protocol.
#[derive(Clone, Debug, Default)]
pub struct VlanTable {
    dot1q: Option<Box<[VlanEntry; VIDS]>>,
    dot1ad: Option<Box<[VlanEntry; VIDS]>>,
    own_macs: bool,
}

impl VlanTable {
    /// Adds a VLAN link for a tag; `own_mac` says that its address is not the port's.
    pub fn insert(&mut self, protocol: u16, vid: Vid, entry: VlanEntry, own_mac: bool) {
        let slot = match protocol {
            ethertype::DOT1AD => &mut self.dot1ad,
            _ => &mut self.dot1q,
        };
        let entries = slot.get_or_insert_with(|| Box::new([VlanEntry::NONE; VIDS]));
        entries[usize::from(vid.get())] = entry;
        self.own_macs |= own_mac;
    }

    /// The links for tags of a protocol.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, protocol: u16) -> Option<VlanLinks<'_>> {
        let entries = match protocol {
            ethertype::DOT1Q => self.dot1q.as_deref(),
            ethertype::DOT1AD => self.dot1ad.as_deref(),
            _ => None,
        }?;
        Some(VlanLinks { entries, own_macs: self.own_macs })
    }
}

/// A port as the path reads it.
#[derive(Clone, Debug, Default)]
pub struct PortRecord {
    /// The destination address of frames for this router.
    pub mac: MacWord,
    /// The link for untagged frames.
    pub link: LinkId,
    /// FIB root of that link, IPv4.
    pub root4: u32,
    /// FIB root of that link, IPv6.
    pub root6: u32,
    /// VLAN links on top of it.
    pub vlans: VlanTable,
}
