//! The Ethernet header (IEEE 802.3): destination, source, ethertype; 14 bytes.

use super::vlan;
use super::{be16, word32, word64};

/// Bytes of the header without tags.
pub const LEN: usize = 14;

/// Ethertypes that the router handles (IANA, IEEE 802 numbers).
pub mod ethertype {
    /// IPv4.
    pub const IPV4: u16 = 0x0800;
    /// ARP.
    pub const ARP: u16 = 0x0806;
    /// 802.1Q tag.
    pub const DOT1Q: u16 = 0x8100;
    /// IPv6.
    pub const IPV6: u16 = 0x86dd;
    /// 802.1ad service tag.
    pub const DOT1AD: u16 = 0x88a8;

    /// Says whether a VLAN tag follows.
    #[inline(always)]
    #[must_use]
    pub const fn is_vlan(ethertype: u16) -> bool {
        matches!(ethertype, DOT1Q | DOT1AD)
    }
}

/// An Ethernet address as one number: its six bytes in the upper 48 bits, memory order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MacWord(pub u64);

impl MacWord {
    /// The number of an address.
    #[inline(always)]
    #[must_use]
    pub fn new(mac: [u8; 6]) -> Self {
        Self(word64(&[mac[0], mac[1], mac[2], mac[3], mac[4], mac[5], 0, 0], 0) << 16)
    }
}

/// The first 18 bytes of a frame: its header and a possible tag.
#[derive(Clone, Copy, Debug)]
pub struct EthView<'a>(pub &'a [u8; LEN + vlan::LEN]);

impl EthView<'_> {
    /// Destination address.
    #[inline(always)]
    #[must_use]
    pub fn dst(self) -> MacWord {
        MacWord(word64(self.0, 0) << 16)
    }

    /// Source address.
    #[inline(always)]
    #[must_use]
    pub fn src(self) -> MacWord {
        // The upper 48 bits of the word are its last six bytes.
        MacWord(word64(self.0, 4) & !0xffff)
    }

    /// Says whether the source address can be a station's: no group address, and not zero.
    #[must_use]
    pub fn has_station_source(self) -> bool {
        self.0[6] & 1 == 0 && self.src() != MacWord(0)
    }

    /// Says whether the destination is one of the group addresses that no bridge forwards: 01:80:c2:00:00:00 to :0f
    /// (IEEE 802.1Q-2018, table 8-1).
    #[must_use]
    pub fn is_reserved(self) -> bool {
        self.0[..5] == [1, 0x80, 0xc2, 0, 0] && self.0[5] < 0x10
    }

    /// Says whether the destination is a group address (multicast or broadcast).
    #[inline(always)]
    #[must_use]
    pub const fn is_group(self) -> bool {
        self.0[0] & 1 != 0
    }

    /// Ethertypes of the frame and of a tag, for comparison with other frames that have one tag.
    #[inline(always)]
    #[must_use]
    pub fn kind(self) -> TagKind {
        let protocol_le = word32(self.0, 12) as u16;
        TagKind { protocol_le, ethertype_le: u16::from_le_bytes([self.0[16], self.0[17]]) }
    }

    /// VLAN identifier, if there is a tag.
    #[inline(always)]
    #[must_use]
    pub fn vid(self) -> u16 {
        // Swapping the whole word takes half the instructions of swapping its half.
        word32(self.0, 12).swap_bytes() as u16 & 0x0fff
    }

    /// Ethertype, or the first tag's protocol.
    #[inline(always)]
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        be16(self.0, 12)
    }
}

/// The first 22 bytes of a frame that has two tags.
#[derive(Clone, Copy, Debug)]
pub struct TwoTagsView<'a>(pub &'a [u8; LEN + 2 * vlan::LEN]);

impl TwoTagsView<'_> {
    /// The protocols of both tags and the ethertype after them, for comparison with other frames.
    #[inline(always)]
    #[must_use]
    pub fn kind(self) -> TwoTagsKind {
        TwoTagsKind {
            outer_le: word32(self.0, 12) as u16,
            inner_le: word32(self.0, 16) as u16,
            ethertype_le: u16::from_le_bytes([self.0[20], self.0[21]]),
        }
    }

    /// VLAN identifiers of the outer and the inner tag.
    #[inline(always)]
    #[must_use]
    pub fn vids(self) -> [u16; 2] {
        [12, 16].map(|at| word32(self.0, at).swap_bytes() as u16 & 0x0fff)
    }
}

/// As [`TagKind`], for two tags.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TwoTagsKind {
    outer_le: u16,
    inner_le: u16,
    ethertype_le: u16,
}

impl TwoTagsKind {
    /// The inner tag's protocol.
    #[inline(always)]
    #[must_use]
    pub const fn inner(self) -> u16 {
        self.inner_le.swap_bytes()
    }

    /// The ethertype after the inner tag.
    #[inline(always)]
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        self.ethertype_le.swap_bytes()
    }
}

/// A tag's protocol and the ethertype after it, both read as little-endian, so that comparing them
/// needs no byte swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TagKind {
    protocol_le: u16,
    ethertype_le: u16,
}

impl TagKind {
    /// The tag's protocol.
    #[inline(always)]
    #[must_use]
    pub const fn protocol(self) -> u16 {
        self.protocol_le.swap_bytes()
    }

    /// The ethertype after the tag.
    #[inline(always)]
    #[must_use]
    pub const fn ethertype(self) -> u16 {
        self.ethertype_le.swap_bytes()
    }
}
