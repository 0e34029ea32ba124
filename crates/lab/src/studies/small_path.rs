//! What studies share: packets, a small path that forwards them one at a time, and the timing of
//! passes.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use tollway_dataplane::clock;
use tollway_dataplane::wire::eth::ethertype;
use tollway_dataplane::wire::{be16, be32, checksum, word32, word64};

use crate::frames::{self, Addresses, FRAME_LEN, Template, Xorshift};
use crate::machine::Machine;
use crate::stats::median;

pub(super) const ROUTER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 1];
pub(super) const SENDER_MAC: [u8; 6] = [2, 0, 0, 0, 0, 0x11];

/// Bytes of the Ethernet and IPv4 headers.
pub(super) const HEADER: usize = 34;

/// A next hop: the Ethernet header to write, and the port.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Next {
    pub(super) header: [u8; 14],
    pub(super) port: u16,
}

/// A next hop for every value of a destination's first 16 bits.
pub(super) struct Routes {
    by_prefix: Vec<u8>,
    nexts: [Next; 64],
}

impl Routes {
    pub(super) fn new() -> Self {
        let next = |at: u32| (at.wrapping_mul(0x9e37) >> 4 & 63) as u8;
        let mut nexts = [Next::default(); 64];
        for (number, next) in nexts.iter_mut().enumerate() {
            let number = number as u8;
            next.header = [2, 1, 0, 0, 0, number, 2, 0, 0, 0, 0, 2, 8, 0];
            next.port = 1 + u16::from(number % 4);
        }
        Self { by_prefix: (0..1 << 16).map(next).collect(), nexts }
    }

    #[inline(always)]
    pub(super) fn find(&self, dst: u32) -> &Next {
        let number = self.by_prefix.get(dst as usize >> 16).copied().unwrap_or(0);
        &self.nexts[usize::from(number) & 63]
    }
}

/// The destination of a packet to forward; `None` if it is not addressed to the router or not
/// valid.
#[inline(always)]
pub(super) fn destination(header: &[u8; HEADER]) -> Option<u32> {
    let ours = header[..6] == ROUTER_MAC && be16(header, 12) == ethertype::IPV4;
    let plain = header[14] == 0x45 && header[22] >= 2;
    let valid =
        checksum::header_is_valid(word64(header, 14), word64(header, 22), word32(header, 30));
    (ours && plain && valid).then(|| be32(header, 30))
}

/// Updates TTL, checksum and Ethernet header of an outgoing packet.
#[inline(always)]
pub(super) fn rewrite(header: &mut [u8; HEADER], next: &Next) {
    let word = checksum::after_ttl_decrement(word32(header, 22));
    header[22..26].copy_from_slice(&word.to_le_bytes());
    header[..14].copy_from_slice(&next.header);
}

/// Packets to 10.0.0.0/8, each to its own address.
pub(super) fn templates(count: usize, tags: &[(u16, u16)], port: u16) -> Vec<Template> {
    let mut rng = Xorshift::new(0x0057_0d1e);
    let mut template = || {
        let dst = 0x0a00_0000 | (rng.next() >> 40) as u32;
        frames::udp(ROUTER_MAC, SENDER_MAC, tags, Addresses::V4(0xac10_0001, dst), (4000, port))
    };
    (0..count).map(|_| template()).collect()
}

/// FNV-1a over bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Digest(pub(super) u64);

impl Digest {
    pub(super) const fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    pub(super) fn add(&mut self, value: u64) {
        self.0 = (self.0 ^ value).wrapping_mul(0x0100_0000_01b3);
    }

    pub(super) fn add_frame(&mut self, frame: &Template) {
        frame.iter().for_each(|byte| self.add(u64::from(*byte)));
    }
}

/// Digests of the packets that variants produced from the same input, by traffic.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Agreement(BTreeMap<String, u64>);

impl Agreement {
    /// Adds the digest of a variant.
    ///
    /// # Errors
    /// A message, if another variant had a different digest.
    pub(super) fn take(&mut self, sent: &str, variant: &str, digest: u64) -> Result<(), String> {
        let known = *self.0.entry(sent.to_owned()).or_insert(digest);
        if known == digest {
            return Ok(());
        }
        Err(format!("{variant} makes something else of {sent}: {digest:x} instead of {known:x}"))
    }

    /// Adds the digests of another experiment, whose variants agree.
    ///
    /// # Errors
    /// As for [`Self::take`].
    pub(super) fn join(&mut self, other: &Self) -> Result<(), String> {
        let mut digests = other.0.iter();
        digests
            .try_for_each(|(sent, digest)| self.take(sent, "another program or process", *digest))
    }
}

/// Lets each of `variants` variants make passes in turn, forwards and backwards. Returns the median
/// of each variant's results of `pass`, such as clocks.
pub(super) fn in_turn(
    variants: usize,
    passes: usize,
    mut pass: impl FnMut(usize) -> f64,
) -> Vec<f64> {
    let mut taken = vec![Vec::with_capacity(passes); variants];
    for number in 0..passes {
        for step in 0..variants {
            let variant = if number % 2 == 0 { step } else { variants - 1 - step };
            taken[variant].push(pass(variant));
        }
    }
    taken.iter().map(|taken| median(taken)).collect()
}

/// TSC clocks that `run` takes.
#[inline(always)]
pub(super) fn clocks(run: impl FnOnce()) -> f64 {
    let start = clock::now();
    run();
    (clock::now() - start) as f64
}

/// Nanoseconds per clock.
pub(super) fn ns_per_clock() -> f64 {
    Machine::probe().ns_per_clock()
}

const _: () = assert!(HEADER <= FRAME_LEN);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_path_forwards_correct_packets_and_no_others() {
        let routes = Routes::new();
        let template = templates(1, &[], 53)[0];
        let header: [u8; HEADER] = *template.first_chunk().unwrap();
        let dst = destination(&header).unwrap();
        assert_eq!(dst >> 24, 10);
        let mut sent = header;
        rewrite(&mut sent, routes.find(dst));
        assert_eq!(sent[22], 63);
        assert_eq!(sent[..4], [2, 1, 0, 0]);
        assert_eq!(checksum::sum(&sent[14..34]), 0xffff);
        for (at, value) in [(0, 4), (12, 9), (14, 0x46), (22, 1), (24, header[24] ^ 1)] {
            let mut wrong = header;
            wrong[at] = value;
            assert_eq!(destination(&wrong), None, "byte {at}");
        }
    }

    #[test]
    fn variants_go_there_and_back() {
        let mut order = Vec::new();
        let taken = in_turn(3, 2, |variant| {
            order.push(variant);
            order.len() as f64
        });
        assert_eq!(order, [0, 1, 2, 2, 1, 0]);
        assert_eq!(taken, [3.5; 3]);
    }

    #[test]
    fn a_variant_that_disagrees_is_named() {
        let mut agreement = Agreement::default();
        agreement.take("packets", "first", 1).unwrap();
        agreement.take("packets", "second", 1).unwrap();
        assert!(agreement.take("packets", "third", 2).unwrap_err().starts_with("third makes"));
        let mut other = Agreement::default();
        other.take("packets", "fourth", 1).unwrap();
        other.take("others", "fourth", 3).unwrap();
        assert_eq!(agreement.join(&other), Ok(()));
        assert!(agreement.take("others", "first", 4).is_err());
        other = Agreement::default();
        other.take("packets", "fifth", 5).unwrap();
        assert!(agreement.join(&other).unwrap_err().contains("of packets: 5 instead of 1"));
    }
}
