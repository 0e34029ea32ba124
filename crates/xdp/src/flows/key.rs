//! Keys of flows, as user space and the XDP program compare them.

use std::net::{Ipv4Addr, Ipv6Addr};

use tollway_dataplane::id::LinkId;

use super::FLOW_WORDS;
use crate::maps::State;
use crate::regions::{region4, region6};

/// Words of the longest key.
pub(crate) const MOST_KEY: usize = 5;

/// A flow's key for the XDP program, with addresses of `BYTES` bytes; numbers are big-endian, as on
/// the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct FlowKey<const BYTES: usize> {
    /// Source address.
    pub src_be: [u8; BYTES],
    /// Destination address.
    pub dst_be: [u8; BYTES],
    /// Source port; 0 for ICMP.
    pub sport_be: [u8; 2],
    /// Destination port; 0 for ICMP.
    pub dport_be: [u8; 2],
    /// TCP, UDP or ICMP.
    pub protocol: u8,
    /// The [`LinkId`] that its packets arrive on.
    pub link: u16,
}

/// A flow of IPv4.
pub type Flow4Key = FlowKey<4>;
/// A flow of IPv6.
pub type Flow6Key = FlowKey<16>;

impl FlowKey<4> {
    /// The key of a flow; ports are 0 for ICMP.
    #[must_use]
    pub fn new(link: LinkId, protocol: u8, src: (Ipv4Addr, u16), dst: (Ipv4Addr, u16)) -> Self {
        Self::from_octets(link, protocol, (src.0.octets(), src.1), (dst.0.octets(), dst.1))
    }
}

impl FlowKey<16> {
    /// The key of a flow; ports are 0 for ICMPv6.
    #[must_use]
    pub fn new(link: LinkId, protocol: u8, src: (Ipv6Addr, u16), dst: (Ipv6Addr, u16)) -> Self {
        Self::from_octets(link, protocol, (src.0.octets(), src.1), (dst.0.octets(), dst.1))
    }
}

impl<const BYTES: usize> FlowKey<BYTES> {
    fn from_octets(
        link: LinkId,
        protocol: u8,
        (src_be, sport): ([u8; BYTES], u16),
        (dst_be, dport): ([u8; BYTES], u16),
    ) -> Self {
        let (sport_be, dport_be) = (sport.to_be_bytes(), dport.to_be_bytes());
        Self { src_be, dst_be, sport_be, dport_be, protocol, link: link.0 }
    }

    /// The key as the programs compare it; the words behind are 0.
    pub(crate) fn all_words(&self) -> [u64; MOST_KEY] {
        self.words()
    }

    /// The key in words, of which those behind the key's own do not matter.
    pub(crate) fn of_words(words: [u64; MOST_KEY]) -> Self {
        Self::of(words)
    }
}

/// The key of a flow, as words.
pub(super) trait Key: Copy {
    /// Words of the key.
    const WORDS: usize;
    /// Words of a slot, rounded up to cache lines.
    const STRIDE: usize = (Self::WORDS + FLOW_WORDS).next_multiple_of(8);

    fn words(self) -> [u64; MOST_KEY];
    fn of(words: [u64; MOST_KEY]) -> Self;
    /// The generation under which a flow with this key is active.
    fn installed(&self, state: &State, by_source: bool) -> u32;
}

impl<const BYTES: usize> Key for FlowKey<BYTES> {
    const WORDS: usize = (2 * BYTES + 8) / 8;

    fn words(self) -> [u64; MOST_KEY] {
        let Self { src_be, dst_be, sport_be: [a, b], dport_be: [c, d], protocol, link } = self;
        let [e, f] = link.to_ne_bytes();
        let mut bytes = [0; MOST_KEY * 8];
        bytes[..BYTES].copy_from_slice(&src_be);
        bytes[BYTES..2 * BYTES].copy_from_slice(&dst_be);
        bytes[2 * BYTES..][..8].copy_from_slice(&[a, b, c, d, protocol, 0, e, f]);
        let (words, _) = bytes.as_chunks::<8>();
        std::array::from_fn(|at| u64::from_ne_bytes(words[at]))
    }

    fn of(words: [u64; MOST_KEY]) -> Self {
        let mut bytes = [0; MOST_KEY * 8];
        for (bytes, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words) {
            *bytes = word.to_ne_bytes();
        }
        let (mut src_be, mut dst_be, mut rest) = ([0; BYTES], [0; BYTES], [0; 8]);
        src_be.copy_from_slice(&bytes[..BYTES]);
        dst_be.copy_from_slice(&bytes[BYTES..2 * BYTES]);
        rest.copy_from_slice(&bytes[2 * BYTES..][..8]);
        let [a, b, c, d, protocol, _, e, f] = rest;
        let link = u16::from_ne_bytes([e, f]);
        Self { src_be, dst_be, sport_be: [a, b], dport_be: [c, d], protocol, link }
    }

    fn installed(&self, state: &State, by_source: bool) -> u32 {
        self.generation(state, by_source)
    }
}

impl<const BYTES: usize> FlowKey<BYTES> {
    /// The generation under which a flow with this key is active
    /// ([`Flow::generation`](super::Flow::generation)).
    #[must_use]
    pub fn generation(&self, state: &State, by_source: bool) -> u32 {
        let of = |address| state.region_generation(region(address));
        let sum = state.generation().wrapping_add(of(self.dst_be));
        if by_source { sum.wrapping_add(of(self.src_be)) } else { sum }
    }
}

/// The region of an address of either family.
fn region<const BYTES: usize>(address_be: [u8; BYTES]) -> u32 {
    match address_be.as_slice() {
        [a, b, _, _] => region4(u16::from_be_bytes([*a, *b])),
        [a, b, c, d, ..] => region6(u32::from_be_bytes([*a, *b, *c, *d])),
        _ => 0,
    }
}
