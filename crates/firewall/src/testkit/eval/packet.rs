//! A packet as the evaluator sees it, parsed as by the kernel's `nft_set_pktinfo`.

use std::net::IpAddr;

use tollway_dataplane::stages::filter::FlowConnection;

use crate::ir::{Field, Hook, PayloadBase};
use crate::links::Link;

/// A packet at a hook.
#[derive(Clone, Debug)]
pub struct Packet<'a> {
    /// The frame as received, tags included.
    frame: Vec<u8>,
    /// Number of bytes before layer 3.
    l3: usize,
    /// Whether rules look behind an authentication header; see [`crate::ir::Ruleset::past_auth`].
    pub(super) past_auth: bool,
    /// The ingress link.
    pub input: &'a Link,
    /// The egress link, once it is known.
    pub output: Option<&'a Link>,
    /// Its mark.
    pub mark: u32,
    /// The neighbour that a rule has chosen.
    pub via: Option<IpAddr>,
    /// The table that a rule has chosen for the route lookup.
    pub fib: Option<u32>,
    /// What connection tracking says of it, if that is known.
    pub connection: Option<FlowConnection>,
}

/// Positions of a packet's headers, and some of their fields.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Parsed {
    /// 4, 6, or 0 for anything else or for an inconsistent header.
    pub version: u8,
    /// Length of the packet with all its headers, in bytes.
    pub length: usize,
    /// Transport protocol, and number of bytes before its header.
    pub transport: Option<(u8, usize)>,
    /// Fragment offset, in units of 8 bytes.
    pub offset: u16,
    /// The fields of a fragment header, see [`Field::Fragment`].
    pub fragment: Option<u16>,
}

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTH: u8 = 51;
const NONE: u8 = 59;
const OPTIONS: u8 = 60;

/// Number of bytes of a routing header that `ipv6_find_hdr` reads.
const LEAST_ROUTING: usize = 4;

impl<'a> Packet<'a> {
    /// A received frame whose layer 3 begins at offset `l3`.
    #[must_use]
    pub fn new(frame: &[u8], l3: usize, input: &'a Link) -> Self {
        let frame = frame.to_vec();
        Self {
            frame,
            l3,
            past_auth: false,
            input,
            output: None,
            mark: 0,
            via: None,
            fib: None,
            connection: None,
        }
    }

    /// The frame, with the DSCP as rules have written it.
    #[must_use]
    pub fn frame(&self) -> &[u8] {
        &self.frame
    }

    /// The packet's version of IP by its ethertype; 0 for any other.
    #[must_use]
    pub fn version(&self) -> u8 {
        match self.ethertype() {
            0x0800 => 4,
            0x86dd => 6,
            _ => 0,
        }
    }

    /// Parses its headers.
    #[must_use]
    pub fn parsed(&self) -> Parsed {
        self.parsed_at(Hook::Forward)
    }

    /// Parses its headers as rules at a hook see them: at hook ingress the bytes behind the packet have not
    /// been cut off yet.
    #[must_use]
    pub fn parsed_at(&self, hook: Hook) -> Parsed {
        let packet = self.layer3();
        let parsed = match self.version() {
            4 => parse4(packet),
            6 => parse6(packet, hook == Hook::Ingress, self.past_auth),
            _ => None,
        };
        parsed.unwrap_or(Parsed { length: packet.len(), ..Parsed::default() })
    }

    /// Says whether it has IPv4 options or a hop-by-hop header, which no router forwards on its fast path.
    #[must_use]
    pub fn has_options(&self) -> bool {
        match (self.version(), self.layer3()) {
            (4, [first, ..]) => first & 15 > 5,
            (6, [_, _, _, _, _, _, next, ..]) => *next == HOP_BY_HOP,
            _ => false,
        }
    }

    /// The link of a field.
    #[must_use]
    pub fn link(&self, field: Field) -> Option<&'a Link> {
        match field {
            Field::Input => Some(self.input),
            Field::Output => self.output,
            _ => None,
        }
    }

    /// A field's number at a hook; `None` if the packet lacks it.
    #[must_use]
    pub fn number(&self, field: Field, hook: Hook) -> Option<u128> {
        let parsed = self.parsed_at(hook);
        let end = if hook == Hook::Ingress { self.layer3().len() } else { parsed.length };
        let network = |at: usize, bytes: usize| number(self.layer3(), at, bytes);
        let transport = |at: usize, bytes: usize| {
            let (_, start) = parsed.transport.filter(|_| parsed.offset == 0)?;
            number(self.layer3().get(..end)?, start + at, bytes)
        };
        let of = |version: u8, at: usize, bytes: usize| {
            (self.version() == version).then(|| network(at, bytes)).flatten()
        };
        match field {
            Field::IpVersion => Some(self.version().into()),
            Field::EtherType => Some(self.ethertype().into()),
            Field::EtherDestination => number(&self.frame, 0, 6),
            Field::EtherSource => number(&self.frame, 6, 6),
            Field::VlanId => Some(self.tag()? & 0x0fff),
            Field::VlanPriority => Some(self.tag()? >> 13),
            Field::Source4 => of(4, 12, 4),
            Field::Destination4 => of(4, 16, 4),
            Field::Source6 => of(6, 8, 16),
            Field::Destination6 => of(6, 24, 16),
            Field::Protocol => Some(parsed.transport?.0.into()),
            Field::NextHeader6 => of(6, 6, 1),
            Field::SourcePort => transport(0, 2),
            Field::DestinationPort => transport(2, 2),
            Field::TcpFlags => transport(13, 1),
            Field::IcmpType => transport(0, 1),
            Field::IcmpCode => transport(1, 1),
            Field::TransportLength => {
                let (_, start) = parsed.transport.filter(|_| parsed.offset == 0)?;
                Some(parsed.length.saturating_sub(start) as u128)
            }
            Field::TrafficClass => of(4, 1, 1).or_else(|| Some(of(6, 0, 2)? >> 4 & 0xff)),
            Field::Length => (parsed.version != 0).then_some(parsed.length as u128),
            Field::Ttl => {
                let ttl = of(4, 8, 1).or_else(|| of(6, 7, 1))?;
                let after = matches!(hook, Hook::Forward | Hook::Postrouting | Hook::Egress);
                Some(ttl.saturating_sub(after.into()))
            }
            Field::Fragment => parsed.fragment.map(u128::from),
            Field::FragmentOffset => parsed.transport.map(|_| parsed.offset.into()),
            Field::Mark => Some(self.mark.into()),
            Field::Payload { base, offset, bytes } => {
                let (at, bytes) = (usize::from(offset), usize::from(bytes));
                match base {
                    PayloadBase::Link => number(&self.untagged_header(), at, bytes),
                    PayloadBase::Network => network(at, bytes),
                    PayloadBase::Transport => transport(at, bytes),
                }
            }
            Field::Connection(field) => self.of_connection(field),
            Field::Input | Field::Output | Field::InSet { .. } => None,
        }
    }

    /// Number of bytes from layer 3 on that counters count at a hook (`skb->len`). Before the header is
    /// checked, it includes the bytes behind the packet.
    #[must_use]
    pub fn bytes(&self, hook: Hook) -> u64 {
        let length = match hook {
            Hook::Ingress => self.layer3().len(),
            _ => self.parsed().length,
        };
        length as u64
    }

    /// Writes the DSCP. Updates the IPv4 checksum incrementally: a correct one stays correct, a wrong one
    /// wrong.
    pub fn set_dscp(&mut self, dscp: u8) {
        let version = self.version();
        let Some(packet) = self.frame.get_mut(self.l3..) else { return };
        match version {
            4 if packet.len() >= 20 => {
                let sum = |packet: &[u8]| u32::from(packet[0]) << 8 | u32::from(packet[1]);
                let before = sum(packet);
                packet[1] = packet[1] & 3 | dscp << 2;
                // RFC 1624, eqn. 3.
                let parts = [0xffff - sum(&packet[10..]), 0xffff - before, sum(packet)];
                let sum = 0xffff - folded(parts.into_iter().sum());
                packet[10..12].copy_from_slice(&sum.to_be_bytes());
            }
            6 if packet.len() >= 40 => {
                packet[0] = packet[0] & 0xf0 | dscp >> 2;
                packet[1] = packet[1] & 0x3f | dscp << 6;
            }
            _ => {}
        }
    }

    /// The bytes behind the frame's header, including those behind the packet.
    #[must_use]
    pub fn layer3(&self) -> &[u8] {
        self.frame.get(self.l3..).unwrap_or_default()
    }

    fn ethertype(&self) -> u16 {
        let at = self.l3.wrapping_sub(2);
        number(&self.frame, at, 2).unwrap_or(0) as u16
    }

    fn tag(&self) -> Option<u128> {
        (self.l3 > 14).then(|| number(&self.frame, 14, 2)).flatten()
    }

    fn untagged_header(&self) -> Vec<u8> {
        let mut header = self.frame.get(..12).unwrap_or_default().to_vec();
        header.extend_from_slice(&self.ethertype().to_be_bytes());
        header
    }
}

/// This many bytes at this position as a number, if they exist.
fn number(bytes: &[u8], at: usize, count: usize) -> Option<u128> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

/// A ones' complement sum in 16 bits.
fn folded(mut sum: u32) -> u16 {
    while sum > 0xffff {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    sum as u16
}

/// `nft_set_pktinfo_ipv4_validate` (`include/net/netfilter/nf_tables_ipv4.h`).
fn parse4(packet: &[u8]) -> Option<Parsed> {
    let header = packet.get(..20)?;
    let header_len = usize::from(header[0] & 15) * 4;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    if header[0] >> 4 != 4 || header_len < 20 || packet.len() < length || length < header_len {
        return None;
    }
    let fragment = u16::from_be_bytes([header[6], header[7]]);
    Some(Parsed {
        version: 4,
        length,
        transport: Some((header[9], header_len)),
        offset: fragment & 0x1fff,
        fragment: Some(fragment & 0x7fff),
    })
}

/// `nft_set_pktinfo_ipv6_validate` (`include/net/netfilter/nf_tables_ipv6.h`) with `ipv6_find_hdr`
/// (`net/ipv6/exthdrs_core.c`), which ends at an authentication header, but not for ip6tables.
fn parse6(packet: &[u8], padded: bool, past_auth: bool) -> Option<Parsed> {
    let header = packet.get(..40)?;
    let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    if header[0] >> 4 != 6 || packet.len() < length {
        return None;
    }
    let mut parsed = Parsed { version: 6, length, ..Parsed::default() };
    let packet = if padded { packet } else { &packet[..length] };
    let (mut next, mut at) = (header[6], 40);
    let is_extension = |next: u8| matches!(next, HOP_BY_HOP | ROUTING | FRAGMENT | AUTH | OPTIONS);
    while is_extension(next) && (past_auth || next != AUTH) {
        let Some([following, len]) = packet.get(at..).and_then(<[u8]>::first_chunk).copied() else {
            return Some(parsed);
        };
        if next == FRAGMENT {
            let Some(field) = number(packet, at + 2, 2) else { return Some(parsed) };
            let field = field as u16;
            // The first of two such headers counts.
            parsed.fragment.get_or_insert(field >> 3 | (field & 1) << 13);
            parsed.offset = field >> 3;
            if parsed.offset != 0 {
                let ends = !is_extension(following) || following == NONE;
                parsed.transport = ends.then_some((following, 0));
                return Some(parsed);
            }
            at += 8;
        } else if next == AUTH {
            at += (usize::from(len) + 2) * 4;
        } else if next == ROUTING && packet.len() < at + LEAST_ROUTING {
            return Some(parsed);
        } else {
            at += (usize::from(len) + 1) * 8;
        }
        next = following;
    }
    // The kernel reads an authentication header before it ends there.
    if next != AUTH || packet.len() >= at + 2 {
        parsed.transport = Some((next, at));
    }
    if next == AUTH && parsed.fragment.is_none() {
        parsed.fragment = fragment_behind(packet, at);
    }
    Some(parsed)
}

/// The fields of the fragment header behind an authentication header. A lookup of the fragment header alone
/// does not end there (`nft_exthdr_ipv6_eval` in `net/netfilter/nft_exthdr.c`).
fn fragment_behind(packet: &[u8], mut at: usize) -> Option<u16> {
    let mut next = AUTH;
    loop {
        let [following, len] = *packet.get(at..)?.first_chunk()?;
        at += match next {
            FRAGMENT => {
                let field = number(packet, at + 2, 2)? as u16;
                return Some(field >> 3 | (field & 1) << 13);
            }
            AUTH => (usize::from(len) + 2) * 4,
            ROUTING if packet.len() < at + LEAST_ROUTING => return None,
            HOP_BY_HOP | ROUTING | OPTIONS => (usize::from(len) + 1) * 8,
            _ => return None,
        };
        next = following;
    }
}
