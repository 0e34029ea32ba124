use crate::id::{LinkId, Vid};
use crate::wire::eth::ethertype;

/// Identifiers that 12 bits can say.
const VIDS: usize = 4096;

/// The VLAN links of one tag protocol, by VLAN identifier: a link's number plus one, or 0.
#[derive(Clone, Debug)]
pub struct VlanLinks([u16; VIDS]);

impl VlanLinks {
    /// The link behind a VLAN identifier.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, vid: u16) -> Option<LinkId> {
        self.0[usize::from(vid) % VIDS].checked_sub(1).map(LinkId)
    }
}

/// The VLAN links on top of a link, by tag protocol and VLAN identifier.
///
/// One array of 8 KB for each tag protocol in use: a lookup is one load.
#[derive(Clone, Debug, Default)]
pub struct VlanTable {
    dot1q: Option<Box<VlanLinks>>,
    dot1ad: Option<Box<VlanLinks>>,
}

impl VlanTable {
    /// Puts a VLAN link behind a tag.
    pub fn insert(&mut self, protocol: u16, vid: Vid, link: LinkId) {
        let slot = match protocol {
            ethertype::DOT1AD => &mut self.dot1ad,
            _ => &mut self.dot1q,
        };
        let links = slot.get_or_insert_with(|| Box::new(VlanLinks([0; VIDS])));
        links.0[usize::from(vid.get())] = link.0 + 1;
    }

    /// The links behind tags of a protocol.
    #[inline(always)]
    #[must_use]
    pub fn of(&self, protocol: u16) -> Option<&VlanLinks> {
        match protocol {
            ethertype::DOT1Q => self.dot1q.as_deref(),
            ethertype::DOT1AD => self.dot1ad.as_deref(),
            _ => None,
        }
    }

    /// The link behind a tag.
    #[must_use]
    pub fn get(&self, protocol: u16, vid: u16) -> Option<LinkId> {
        self.of(protocol)?.get(vid)
    }
}
