//! Messages of ipset (`include/uapi/linux/netfilter/ipset/ip_set.h`).

use super::super::message::{attribute, be_word, name as text};
use super::{Contents, IpSetFault};
use tollway_dataplane::stages::filter::Element;
use tollway_linux::netlink::{self, attributes, push};

/// `NFNL_SUBSYS_IPSET`.
const SUBSYSTEM: u16 = 6;
/// `IPSET_PROTOCOL`.
const PROTOCOL: u8 = 7;
/// `IPSET_CMD_LIST`, `IPSET_CMD_GET_BYINDEX`.
const LIST: u16 = 7;
const GET_BY_INDEX: u16 = 15;
const NLM_F_ACK: u16 = 4;
const NLM_F_DUMP: u16 = 0x300;

/// Size of `nfgenmsg` in bytes.
const GENERAL: usize = 4;

/// `IPSET_ATTR_*` of a message.
const SET_NAME: u16 = 2;
const TYPE_NAME: u16 = 3;
const FAMILY: u16 = 5;
const FLAGS: u16 = 6;
const DATA: u16 = 7;
const ELEMENTS: u16 = 8;
const INDEX: u16 = 11;
/// `IPSET_ATTR_*` of a set and of an element.
const IP: u16 = 1;
const LAST_IP: u16 = 2;
const PREFIX_LEN: u16 = 3;
const SET_FLAGS: u16 = 8;
const TIMEOUT: u16 = 6;
const BIT_MASK: u16 = 12;
const PLACES: u16 = 18;
const NET_MASK: u16 = 20;
const COUNT: u16 = 24;

/// A request for the name of the set with this index.
pub(super) fn name_of(sequence: u32, index: u16) -> Vec<u8> {
    request(GET_BY_INDEX, NLM_F_ACK, sequence, &[(INDEX, &index.to_be_bytes())])
}

/// A request for a set, or for its header alone.
pub(super) fn list(sequence: u32, name: &str, is_header: bool) -> Vec<u8> {
    /// `IPSET_FLAG_LIST_HEADER`.
    const HEADER: u32 = 4;
    let name = [name.as_bytes(), &[0]].concat();
    let header = HEADER.to_be_bytes();
    let flags: &[(u16, &[u8])] = if is_header { &[(FLAGS, &header)] } else { &[] };
    request(LIST, NLM_F_DUMP, sequence, &[&[(SET_NAME, &name[..])], flags].concat())
}

fn request(kind: u16, flags: u16, sequence: u32, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    /// `IPSET_ATTR_PROTOCOL`.
    const OF_PROTOCOL: u16 = 1;
    // Any family, version 0, no resource.
    let mut body = vec![0; GENERAL];
    push(&mut body, OF_PROTOCOL, &[PROTOCOL]);
    attributes.iter().for_each(|(kind, value)| push(&mut body, *kind, value));
    netlink::request(SUBSYSTEM << 8 | kind, flags, sequence, &body)
}

/// The attributes of a message; `None` if it is not of ipset.
pub(super) fn body<'a>(message: &netlink::Message<'a>) -> Option<&'a [u8]> {
    message.body.get(GENERAL..).filter(|_| message.kind >> 8 == SUBSYSTEM)
}

/// The name of the set that a message is about.
pub(super) fn name(body: &[u8]) -> Option<String> {
    attribute(body, SET_NAME).and_then(text)
}

/// What a list says of the set itself.
#[derive(Debug)]
pub(super) struct Head {
    version: u8,
    /// The length of its elements if they are prefixes of one length; otherwise each has its own.
    prefix_len: Option<u8>,
    pub(super) count: u32,
    /// The most bytes that an element takes in a list.
    pub(super) element_bytes: u32,
    /// The places in its hash table.
    pub(super) places: u32,
}

impl Head {
    /// Parses the header.
    ///
    /// # Errors
    /// See [`IpSetFault`].
    pub(super) fn read(body: &[u8]) -> Result<Self, IpSetFault> {
        Self::known(body).ok_or(IpSetFault::UnknownFormat)?
    }

    fn known(body: &[u8]) -> Option<Result<Self, IpSetFault>> {
        /// `IPSET_FLAG_WITH_COUNTERS`, `IPSET_FLAG_WITH_COMMENT`, `IPSET_FLAG_WITH_SKBINFO`.
        const COUNTERS: u32 = 8;
        const COMMENTS: u32 = 16;
        const MARKS: u32 = 64;
        let kind = attribute(body, TYPE_NAME).and_then(text)?;
        if !["hash:ip", "hash:net", "bitmap:ip"].contains(&kind.as_str()) {
            return Some(Err(IpSetFault::Type(kind)));
        }
        let (version, bits) = match attribute(body, FAMILY)?.first()? {
            2 => (4, 32),
            10 => (6, 128),
            _ => return None,
        };
        let data = attribute(body, DATA)?;
        let word = |kind| attribute(data, kind).map_or(Some(0), be_word);
        let count = attribute(data, COUNT).and_then(be_word)?;
        let flags = word(SET_FLAGS)?;
        if attribute(data, BIT_MASK).is_some() {
            return Some(Err(IpSetFault::BitMask));
        }
        if flags & COUNTERS != 0 {
            return Some(Err(IpSetFault::Counters));
        }
        let own_len = match attribute(data, NET_MASK) {
            Some(len) => *len.first()?,
            None => bits,
        };
        let prefix_len = match kind.as_str() {
            "hash:net" => None,
            _ => Some(own_len).filter(|len| *len <= bits),
        };
        let element_bytes = [
            (true, 12 + u32::from(bits) / 8),
            (prefix_len.is_none(), 16),
            (attribute(data, TIMEOUT).is_some(), 8),
            (flags & COMMENTS != 0, 264),
            (flags & MARKS != 0, 40),
        ];
        let element_bytes =
            element_bytes.iter().filter(|(has, _)| *has).map(|(_, bytes)| bytes).sum();
        Some(Ok(Self { version, prefix_len, count, element_bytes, places: word(PLACES)? }))
    }

    /// Parses the elements of the same message.
    ///
    /// # Errors
    /// See [`Self::read`].
    pub(super) fn contents(&self, body: &[u8]) -> Result<Contents, IpSetFault> {
        let list = attribute(body, ELEMENTS).unwrap_or_default();
        let elements = attributes(list, 0).map(|element| self.element(element.value));
        let mut elements: Vec<_> = elements.collect::<Result<_, _>>()?;
        elements.sort_unstable();
        elements.dedup();
        Ok(Contents { version: self.version, elements })
    }

    fn element(&self, element: &[u8]) -> Result<Element, IpSetFault> {
        /// `IPSET_FLAG_NOMATCH`.
        const NO_MATCH: u32 = 4;
        let flags = attribute(element, SET_FLAGS).map_or(Some(0), be_word);
        match flags {
            Some(0) => {}
            Some(NO_MATCH) => return Err(IpSetFault::NoMatch),
            _ => return Err(IpSetFault::UnknownFlags),
        }
        self.range(element).ok_or(IpSetFault::UnknownElement)
    }

    fn range(&self, element: &[u8]) -> Option<Element> {
        let (bits, of_version) = match self.version {
            4 => (32, 1),
            _ => (128, 2),
        };
        let address = attribute(attribute(element, IP)?, of_version)?;
        if address.len() * 8 != bits as usize || attribute(element, LAST_IP).is_some() {
            return None;
        }
        let address = address.iter().fold(0, |all, byte| all << 8 | u128::from(*byte));
        let len = match (self.prefix_len, attribute(element, PREFIX_LEN)) {
            (Some(len), None) => len,
            (None, Some(len)) => *len.first()?,
            // A whole address.
            (None, None) => bits,
            (Some(_), Some(_)) => return None,
        };
        let below = match bits.checked_sub(len)? {
            128 => u128::MAX,
            free => (1 << free) - 1,
        };
        // The kernel compares whole numbers, and this one would match nothing.
        (address & below == 0).then_some((address, address | below))
    }
}
