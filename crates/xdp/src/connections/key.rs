//! Keys of connections' directions, of either family.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::LinkId;

use crate::flows::{Flow4Key, Flow6Key, MOST_KEY};

/// The key of a direction of a connection: the link and the tuple of its packets as they arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionKey {
    /// Of IPv4.
    V4(Flow4Key),
    /// Of IPv6.
    V6(Flow6Key),
}

/// A family of addresses, each of which has a table of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    V4,
    V6,
}

impl Family {
    /// Words of a key.
    pub(super) const fn key_words(self) -> usize {
        match self {
            Self::V4 => 2,
            Self::V6 => 5,
        }
    }

    /// Words of a slot: one cache line or two.
    pub(super) const fn slot_words(self) -> usize {
        match self {
            Self::V4 => 8,
            Self::V6 => 16,
        }
    }

    /// The key in words, of which those behind the key's own are 0.
    pub(super) fn key(self, words: [u64; MOST_KEY]) -> ConnectionKey {
        match self {
            Self::V4 => ConnectionKey::V4(Flow4Key::of_words(words)),
            Self::V6 => ConnectionKey::V6(Flow6Key::of_words(words)),
        }
    }
}

impl From<Flow4Key> for ConnectionKey {
    fn from(key: Flow4Key) -> Self {
        Self::V4(key)
    }
}

impl From<Flow6Key> for ConnectionKey {
    fn from(key: Flow6Key) -> Self {
        Self::V6(key)
    }
}

impl ConnectionKey {
    /// The key of packets with these addresses and ports; none if the addresses are of two families.
    #[must_use]
    pub fn new(
        link: LinkId,
        protocol: u8,
        source: (IpAddr, u16),
        destination: (IpAddr, u16),
    ) -> Option<Self> {
        match (source.0, destination.0) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                let (from, to) = ((from, source.1), (to, destination.1));
                Some(Self::V4(Flow4Key::new(link, protocol, from, to)))
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                let (from, to) = ((from, source.1), (to, destination.1));
                Some(Self::V6(Flow6Key::new(link, protocol, from, to)))
            }
            _ => None,
        }
    }

    /// The source of the packets.
    #[must_use]
    pub fn source(&self) -> (IpAddr, u16) {
        match self {
            Self::V4(key) => (Ipv4Addr::from(key.src_be).into(), u16::from_be_bytes(key.sport_be)),
            Self::V6(key) => (Ipv6Addr::from(key.src_be).into(), u16::from_be_bytes(key.sport_be)),
        }
    }

    /// The destination of the packets.
    #[must_use]
    pub fn destination(&self) -> (IpAddr, u16) {
        match self {
            Self::V4(key) => (Ipv4Addr::from(key.dst_be).into(), u16::from_be_bytes(key.dport_be)),
            Self::V6(key) => (Ipv6Addr::from(key.dst_be).into(), u16::from_be_bytes(key.dport_be)),
        }
    }

    /// The number of the protocol above IP.
    #[must_use]
    pub const fn protocol(&self) -> u8 {
        match self {
            Self::V4(key) => key.protocol,
            Self::V6(key) => key.protocol,
        }
    }

    /// The link that the packets arrive on.
    #[must_use]
    pub const fn link(&self) -> LinkId {
        match self {
            Self::V4(key) => LinkId(key.link),
            Self::V6(key) => LinkId(key.link),
        }
    }

    /// The same key on another link.
    #[must_use]
    pub const fn on(self, link: LinkId) -> Self {
        match self {
            Self::V4(key) => Self::V4(Flow4Key { link: link.0, ..key }),
            Self::V6(key) => Self::V6(Flow6Key { link: link.0, ..key }),
        }
    }

    pub(super) const fn family(&self) -> Family {
        match self {
            Self::V4(_) => Family::V4,
            Self::V6(_) => Family::V6,
        }
    }

    /// The key as the programs compare it; the words behind are 0.
    pub(super) fn words(&self) -> [u64; MOST_KEY] {
        match self {
            Self::V4(key) => key.all_words(),
            Self::V6(key) => key.all_words(),
        }
    }
}
