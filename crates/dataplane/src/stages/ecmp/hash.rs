//! The kernel's hash of a flow, over the fields that its policy selects.
//!
//! It covers `struct flow_keys` from `FLOW_KEYS_HASH_START_FIELD` on (`include/net/flow_dissector.h`).
//! Fields that the policy does not select are zero. Addresses and ports are sorted, so that both
//! directions of a connection have one hash (`__flow_hash_consistentify`):
//!
//! | bytes | what |
//! |---|---|
//! | 2 | protocol |
//! | 4 to 7 | IPv6 flow label |
//! | 28 to 31 | ports |
//! | 36 to 43, or 67 | addresses |
//! | 44 to 47, or 68 to 71 | the structure's padding |

#[cfg(test)]
mod tests;

use super::MAX_EXTENSIONS;
use super::sip::{STATE, Sip};
use crate::wire::ipv4::{self, Ipv4View};
use crate::wire::ipv6::{self, Ipv6View};
use crate::wire::l4;

/// Words of [`Multipath::words`].
pub(crate) const WORDS_OF_ALL: usize = 1 + 4 * STATE;

/// Words up to the ports; and from the ports on, of each family.
const BEFORE: usize = 3;
pub(super) const WORDS4: usize = 3;
pub(super) const WORDS6: usize = 6;

/// The fields that select a group's member for a flow (`fib_multipath_hash_policy`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Hash {
    /// Addresses (0). For an ICMP error, those of the packet that it is about, so that it takes the
    /// same path as its flow. For IPv6 also the next header and the flow label.
    L3,
    /// Addresses, protocol and ports (1).
    #[default]
    L4,
}

/// The hash policies and the key of both families.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Multipath {
    pub(crate) v4: Hash,
    pub(crate) v6: Hash,
    keyed: Keyed,
}

impl Default for Multipath {
    fn default() -> Self {
        Self { v4: Hash::L4, v6: Hash::L4, keyed: Keyed::new(1) }
    }
}

/// The part of the hash that most packets share.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Keyed {
    start: Sip,
    /// The state after the words before the ports, all of which are zero. In `tcp` and `udp`, the
    /// words contain the protocol.
    zero: Sip,
    tcp: Sip,
    udp: Sip,
}

impl Keyed {
    fn new(seed: u32) -> Self {
        let start = Sip::keyed(seed);
        let behind = |protocol| start.words(before(protocol, 0));
        Self { start, zero: behind(0), tcp: behind(l4::TCP), udp: behind(l4::UDP) }
    }

    /// The hash of a protocol without a flow label, up to the ports.
    #[inline(always)]
    fn protocol(&self, protocol: u8) -> Sip {
        match protocol {
            l4::TCP => self.tcp,
            l4::UDP => self.udp,
            _ => self.start.words(before(protocol, 0)),
        }
    }

    /// The hash of a protocol with a flow label as on the wire, up to the ports.
    #[inline(always)]
    fn labelled(&self, protocol: u8, label: u32) -> Sip {
        match label {
            0 => self.protocol(protocol),
            _ => self.start.words(before(protocol, label)),
        }
    }
}

/// The words before the ports.
const fn before(protocol: u8, label: u32) -> [[u64; 1]; BEFORE] {
    [[(protocol as u64) << 16 | (label as u64) << 32], [0], [0]]
}

/// The hash bits that select a member, 31 of each hash, as in `fib_multipath_hash`.
#[inline(always)]
pub(super) fn hashes<const WORDS: usize, const HASHES: usize>(
    begun: Sip<HASHES>,
    words: [[u64; HASHES]; WORDS],
) -> [u32; HASHES] {
    let bytes = (BEFORE + WORDS) * size_of::<u64>();
    let mut chosen = [0; HASHES];
    for (chosen, hash) in chosen.iter_mut().zip(begun.words(words).finish(bytes as u64)) {
        *chosen = hash as u32 >> 1;
    }
    chosen
}

/// The words that select a packet's member. Behind those that most packets share, an IPv4 packet has 3
/// and an IPv6 packet 6.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key<const WORDS: usize> {
    /// The hash of the words before.
    pub(super) begun: Sip,
    pub(super) words: [u64; WORDS],
    /// The properties that they depend on.
    pub(super) by: By,
}

impl<const WORDS: usize> Key<WORDS> {
    /// The hash bits that select a member.
    #[inline(always)]
    pub(super) fn hash(&self) -> u32 {
        let [hash] = hashes(self.begun, self.words.map(|word| [word]));
        hash
    }
}

/// The properties that a hash depends on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum By {
    /// Those of the flow: addresses, protocol, ports.
    #[default]
    Flow,
    /// The flow and its flow label.
    Label,
    /// The packet that an ICMP error is about.
    Cause,
}

impl Multipath {
    /// The policies and the states of the hash, as BPF programs read them (`struct multipath` in `bpf/ecmp.h`).
    pub(crate) fn words(&self) -> [u64; WORDS_OF_ALL] {
        let policy = |hash| u64::from(hash == Hash::L4);
        let Keyed { start, zero, tcp, udp } = self.keyed;
        let states = [start, zero, tcp, udp].map(Sip::state);
        let mut words = [policy(self.v4) | policy(self.v6) << 32; WORDS_OF_ALL];
        words[1..].copy_from_slice(states.as_flattened());
        words
    }

    /// Sets the `fib_multipath_hash_seed` of the hash.
    pub(crate) fn set_seed(&mut self, seed: u32) {
        self.keyed = Keyed::new(seed);
    }

    /// The hash of a packet of either family; 0 if it has no header.
    pub(super) fn hash(&self, packet: &[u8]) -> u32 {
        match packet.first().map(|byte| byte >> 4) {
            Some(4) => self.key4(packet).map(|key| key.hash()),
            Some(6) => self.key6(packet).map(|key| key.hash()),
            _ => None,
        }
        .unwrap_or_default()
    }

    /// The key of an IPv4 packet (`fib_multipath_hash`).
    #[inline(always)]
    pub(super) fn key4(&self, packet: &[u8]) -> Option<Key<WORDS4>> {
        let header = packet.first_chunk()?;
        let ip = Ipv4View(header);
        Some(match self.v4 {
            Hash::L3 => {
                // The packet that an error is about; its direction makes no difference.
                let about = cause4(ip, packet).and_then(<[u8]>::first_chunk);
                let by = if about.is_some() { By::Cause } else { By::Flow };
                let words = words4(0, Ipv4View(about.unwrap_or(header)));
                Key { begun: self.keyed.zero, words, by }
            }
            Hash::L4 => {
                let at = ip.header_len();
                let ports = if ip.is_fragment() { 0 } else { ports(packet, at, ip.protocol()) };
                let begun = self.keyed.protocol(ip.protocol());
                Key { begun, words: words4(ports, ip), by: By::Flow }
            }
        })
    }

    /// The key of an IPv6 packet (`rt6_multipath_hash`).
    #[inline(always)]
    pub(super) fn key6(&self, packet: &[u8]) -> Option<Key<WORDS6>> {
        let header = packet.first_chunk()?;
        let ip = Ipv6View(header);
        Some(match self.v6 {
            Hash::L3 => {
                let about = cause6(ip, packet).and_then(<[u8]>::first_chunk);
                let header = about.unwrap_or(header);
                let ip = Ipv6View(header);
                let label = u32::from_le_bytes([0, header[1] & 15, header[2], header[3]]);
                let begun = self.keyed.labelled(ip.next_header(), label);
                let by = if about.is_some() { By::Cause } else { By::Label };
                Key { begun, words: words6(0, ip), by }
            }
            Hash::L4 => {
                let (protocol, ports) = transport6(ip, packet);
                let begun = self.keyed.protocol(protocol);
                Key { begun, words: words6(ports, ip), by: By::Flow }
            }
        })
    }
}

#[inline(always)]
fn words4(ports: u32, ip: Ipv4View<'_>) -> [u64; WORDS4] {
    // The kernel sorts them as integers in its processor's byte order.
    let (src, dst) = (u64::from(ip.src().swap_bytes()), u64::from(ip.dst().swap_bytes()));
    [u64::from(ports) << 32, src.min(dst) << 32, src.max(dst)]
}

#[inline(always)]
fn words6(ports: u32, ip: Ipv6View<'_>) -> [u64; WORDS6] {
    let (src, dst) = (ip.src(), ip.dst());
    let [a, b] = halves(src.min(dst));
    let [c, d] = halves(src.max(dst));
    let joined = |before: u64, word: u64| before >> 32 | word << 32;
    [u64::from(ports) << 32, joined(0, a), joined(a, b), joined(b, c), joined(c, d), joined(d, 0)]
}

/// An address in memory order, as two words.
#[inline(always)]
const fn halves(address: u128) -> [u64; 2] {
    let address = address.swap_bytes();
    [address as u64, (address >> 64) as u64]
}

/// The packet that an ICMP error is about, if it contains one (`icmp_is_err`).
#[inline(always)]
fn cause4<'a>(ip: Ipv4View<'_>, packet: &'a [u8]) -> Option<&'a [u8]> {
    if ip.protocol() != l4::ICMP || ip.is_later_fragment() {
        return None;
    }
    let message = packet.get(ip.header_len()..)?;
    let is_error = matches!(message.first()?, 3 | 4 | 5 | 11 | 12);
    message.get(8..).filter(|inner| is_error && inner.len() >= ipv4::LEN)
}

/// The packet that an ICMPv6 error is about, if it contains one (`icmpv6_is_err`).
#[inline(always)]
fn cause6<'a>(ip: Ipv6View<'_>, packet: &'a [u8]) -> Option<&'a [u8]> {
    let message = packet.get(ipv6::LEN..).filter(|_| ip.next_header() == l4::ICMPV6)?;
    let is_error = matches!(message.first()?, 1..=4);
    message.get(8..).filter(|inner| is_error && inner.len() >= ipv6::LEN)
}

/// The protocol after the extension headers that `__skb_flow_dissect` skips, and its ports.
fn transport6(ip: Ipv6View<'_>, packet: &[u8]) -> (u8, u32) {
    let (mut next, mut at) = (ip.next_header(), ipv6::LEN);
    for _ in 0..MAX_EXTENSIONS {
        if !matches!(next, l4::HOP_BY_HOP | l4::ROUTING | l4::DEST_OPTIONS | l4::FRAGMENT) {
            break;
        }
        let len = if next == l4::FRAGMENT { 8 } else { 2 };
        let Some(&[following, units, ..]) = packet.get(at..at + len) else { return (next, 0) };
        if next == l4::FRAGMENT {
            return (following, 0);
        }
        at += (usize::from(units) + 1) * 8;
        next = following;
    }
    (next, ports(packet, at, next))
}

/// The ports, sorted, in memory order; for IPsec its index (`skb_flow_get_ports`).
#[inline(always)]
fn ports(packet: &[u8], at: usize, protocol: u8) -> u32 {
    let at = match protocol {
        l4::AUTH => at + 4,
        l4::ESP => at,
        _ if l4::has_ports(protocol) => at,
        _ => return 0,
    };
    let Some(&[a, b, c, d]) = packet.get(at..).and_then(<[u8]>::first_chunk) else { return 0 };
    let (src, dst) = (u16::from_le_bytes([a, b]), u16::from_le_bytes([c, d]));
    u32::from(src.min(dst)) | u32::from(src.max(dst)) << 16
}
