use crate::id::{LinkId, Vid};
use crate::wire::eth::ethertype;

/// Identifiers that 12 bits can say.
const VIDS: usize = 4096;

/// The VLAN links on top of a link, by tag protocol and VLAN identifier.
///
/// One array of 8 KB for each tag protocol in use: a lookup is one load.
#[derive(Clone, Debug, Default)]
pub struct VlanTable {
    dot1q: Option<Box<[u16; VIDS]>>,
    dot1ad: Option<Box<[u16; VIDS]>>,
}

impl VlanTable {
    /// Puts a VLAN link behind a tag.
    pub fn insert(&mut self, protocol: u16, vid: Vid, link: LinkId) {
        let slot = match protocol {
            ethertype::DOT1AD => &mut self.dot1ad,
            _ => &mut self.dot1q,
        };
        slot.get_or_insert_with(|| Box::new([0; VIDS]))[usize::from(vid.get())] = link.0 + 1;
    }

    /// The link behind a tag.
    #[inline(always)]
    #[must_use]
    pub fn get(&self, protocol: u16, vid: u16) -> Option<LinkId> {
        let links = match protocol {
            ethertype::DOT1Q => self.dot1q.as_deref(),
            ethertype::DOT1AD => self.dot1ad.as_deref(),
            _ => None,
        }?;
        links[usize::from(vid) % VIDS].checked_sub(1).map(LinkId)
    }
}
