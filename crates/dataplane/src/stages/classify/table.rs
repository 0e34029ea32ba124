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

/// The VLAN links on top of a port, by tag protocol, and those on top of them.
#[derive(Clone, Debug, Default)]
pub struct VlanTable {
    dot1q: Option<Box<[VlanEntry; VIDS]>>,
    dot1ad: Option<Box<[VlanEntry; VIDS]>>,
    inner: InnerLinks,
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

    /// Adds a VLAN link on top of another, or replaces its entry.
    pub fn insert_inner(&mut self, tag: InnerTag, entry: VlanEntry, own_mac: bool) {
        self.inner.insert(tag, entry);
        self.own_macs |= own_mac;
    }

    /// The links on top of VLAN links.
    #[inline(always)]
    #[must_use]
    pub const fn inner(&self) -> &InnerLinks {
        &self.inner
    }
}

/// An inner tag, and the link of the tag before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InnerTag(u32);

impl InnerTag {
    /// No tag: VLAN links have no such number.
    const NONE: Self = Self(u32::MAX);

    /// A tag of a protocol, [`ethertype::DOT1Q`] or [`ethertype::DOT1AD`], in frames of this link.
    #[inline(always)]
    #[must_use]
    pub const fn new(outer: LinkId, protocol: u16, vid: u16) -> Self {
        let is_dot1ad = (protocol == ethertype::DOT1AD) as u32;
        Self((outer.0 as u32) << 13 | is_dot1ad << 12 | (vid as u32 & 0xfff))
    }
}

/// The VLAN links on top of VLAN links: a hash table that is at most a quarter full. A table for each outer VLAN would
/// take 64 KB.
#[derive(Clone, Debug, Default)]
pub struct InnerLinks {
    /// A power of two, or none.
    slots: Box<[(InnerTag, VlanEntry)]>,
    count: usize,
}

impl InnerLinks {
    const EMPTY: (InnerTag, VlanEntry) = (InnerTag::NONE, VlanEntry::NONE);

    /// The entry for a tag; [`VlanEntry::NONE`] if there is none.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, tag: InnerTag) -> &VlanEntry {
        // Three of four slots are empty, so this ends.
        for slot in self.slots_of(tag) {
            let Some((found, entry)) = self.slots.get(slot) else { break };
            if *found == tag || *found == InnerTag::NONE {
                return entry;
            }
        }
        &VlanEntry::NONE
    }

    fn insert(&mut self, tag: InnerTag, entry: VlanEntry) {
        if (self.count + 1) * 4 > self.slots.len() {
            let room = vec![Self::EMPTY; (self.slots.len() * 2).max(16)];
            let old = std::mem::replace(&mut self.slots, room.into());
            self.count = 0;
            let used = old.into_iter().filter(|(tag, _)| *tag != InnerTag::NONE);
            used.for_each(|(tag, entry)| self.insert(tag, entry));
        }
        for slot in self.slots_of(tag) {
            let place = &mut self.slots[slot];
            if place.0 == tag || place.0 == InnerTag::NONE {
                self.count += usize::from(place.0 != tag);
                *place = (tag, entry);
                return;
            }
        }
    }

    /// The slots of a tag, in the order of search; none if there is no slot.
    #[inline(always)]
    fn slots_of(&self, tag: InnerTag) -> impl Iterator<Item = usize> + use<> {
        let mask = self.slots.len().wrapping_sub(1);
        // Any odd number works; this one is 2^32 divided by the golden ratio.
        let first = (tag.0.wrapping_mul(0x9e37_79b9) >> 8) as usize;
        (0..self.slots.len()).map(move |step| (first + step) & mask)
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
