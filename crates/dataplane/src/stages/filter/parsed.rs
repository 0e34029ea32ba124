//! A parsed packet: its fields, extracted one by one, for packets that the straight loops do not handle.

use std::sync::Arc;

use super::head::Head;
use super::{Field, LiveSet, PayloadBase, Point};
use crate::burst::Burst;
use crate::frame::Umem;
use crate::id::LinkId;
use crate::wire::l4;
pub(super) use crate::wire::l4::is_extension;

/// A parsed packet: where its headers are, and what each contains about the next.
#[derive(Clone, Copy, Debug)]
pub struct Parsed<'a> {
    /// The frame without the bytes after the packet.
    frame: &'a [u8],
    l3: usize,
    version: u8,
    /// Bytes of the packet; none if its header contradicts itself.
    length: Option<usize>,
    /// Transport protocol, and bytes before its header.
    transport: Option<(u8, usize)>,
    offset: u16,
    fragment: Option<u16>,
    input: u16,
    output: Option<u16>,
    /// The number of hops by which the TTL counts as decremented.
    hops: u8,
    /// Whether the bytes after the packet count too.
    padded: bool,
    /// Sets in which rules look up addresses.
    live: &'a [Arc<LiveSet>],
}

impl<'a> Parsed<'a> {
    /// Parses a packet of a burst for the rules of a point and version. `past_auth` says whether to look
    /// past IPv6 authentication headers; `output` is the egress link.
    pub(super) fn new(
        burst: &Burst,
        umem: &'a Umem,
        lane: usize,
        (version, point, past_auth): (u8, Point, bool),
        live: &'a [Arc<LiveSet>],
        output: Option<u16>,
    ) -> Self {
        let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
        let l3 = usize::from(burst.l3[lane]);
        let hops = u8::from(point.is_behind_route());
        let input = burst.link[lane].0;
        let mut parsed = Self {
            frame,
            l3,
            version,
            length: None,
            transport: None,
            offset: 0,
            fragment: None,
            input,
            output,
            hops,
            padded: point == Point::Ingress,
            live,
        };
        let _ = match version {
            4 => parsed.walk4(),
            6 => parsed.walk6(past_auth),
            _ => None,
        };
        parsed
    }

    /// The value of a field; the mark is kept elsewhere.
    #[must_use]
    pub fn number(&self, field: Field, mark: u32) -> Option<u128> {
        let six = self.version == 6;
        match field {
            Field::IpVersion => Some(self.version.into()),
            Field::EtherType => self.ethertype(),
            Field::EtherDestination => number(self.frame, 0, 6),
            Field::EtherSource => number(self.frame, 6, 6),
            Field::VlanId => Some(self.tag()? & 0xfff),
            Field::VlanPriority => Some(self.tag()? >> 13),
            Field::Source4 => self.network_of(4, 12, 4),
            Field::Destination4 => self.network_of(4, 16, 4),
            Field::Source6 => self.network_of(6, 8, 16),
            Field::Destination6 => self.network_of(6, 24, 16),
            Field::Protocol => Some(self.transport?.0.into()),
            Field::NextHeader6 => self.network_of(6, 6, 1),
            Field::SourcePort => self.behind(0, 2),
            Field::DestinationPort => self.behind(2, 2),
            Field::TcpFlags => self.behind(13, 1),
            Field::IcmpType => self.behind(0, 1),
            Field::IcmpCode => self.behind(1, 1),
            Field::TransportLength => {
                let (_, start) = self.transport.filter(|_| self.offset == 0)?;
                Some(self.length?.saturating_sub(start) as u128)
            }
            Field::TrafficClass if six => Some(self.network(0, 2)? >> 4 & 0xff),
            Field::TrafficClass => self.network(1, 1),
            Field::Length => Some(self.length? as u128),
            Field::Ttl => {
                let ttl = self.network(if six { 7 } else { 8 }, 1)?;
                Some(ttl.saturating_sub(self.hops.into()))
            }
            Field::Fragment => Some(self.fragment?.into()),
            Field::FragmentOffset => self.transport.map(|_| self.offset.into()),
            Field::Input => Some(self.input.into()),
            Field::Output => self.output.map(u128::from),
            Field::Mark => Some(mark.into()),
            // Not in the packet.
            Field::Connection(_) => None,
            Field::InSet { set, of } => {
                let address = self.number(of.field(self.version), mark)?;
                Some(self.live.get(usize::from(set))?.has(address).into())
            }
            Field::Payload { base, offset, bytes } => {
                let (at, bytes) = (usize::from(offset), usize::from(bytes));
                match base {
                    PayloadBase::Link => self.link(at, bytes),
                    PayloadBase::Network => self.network(at, bytes),
                    PayloadBase::Transport => self.behind(at, bytes),
                }
            }
        }
    }

    /// Bytes of layer 3, for counters; before the header is checked, all bytes of the frame.
    pub(super) fn bytes(&self) -> u64 {
        let length = self.length.filter(|_| !self.padded);
        length.unwrap_or_else(|| self.packet().len()) as u64
    }

    /// The frame without the bytes after the packet.
    pub(super) fn frame(&self) -> &'a [u8] {
        self.frame
    }

    /// The version of IP.
    pub(super) const fn version(&self) -> u8 {
        self.version
    }

    /// Bytes before layer 3.
    pub(super) fn l3(&self) -> usize {
        self.l3
    }

    /// The ingress and egress links.
    pub(super) fn links(&self) -> (LinkId, Option<LinkId>) {
        (LinkId(self.input), self.output.map(LinkId))
    }

    /// Decrements the TTL in a copy of layer 3, if the frame still has the old one.
    pub(super) fn count_hop(&self, layer3: &mut [u8]) {
        let at = if self.version == 4 { 8 } else { 7 };
        if let Some(ttl) = layer3.get_mut(at) {
            *ttl = ttl.saturating_sub(self.hops);
        }
    }

    /// The start of the IP header, if it is complete.
    pub(super) fn head(&self) -> Option<Head> {
        let least = if self.version == 4 { 20 } else { 40 };
        let head = self.packet().first_chunk().filter(|_| self.packet().len() >= least);
        head.map(|bytes| Head { bytes: *bytes, version: self.version })
    }

    /// The value of a field if rules have changed the start of the header.
    pub(super) fn number_with(&self, head: &Head, field: Field, mark: u32) -> Option<u128> {
        let before = self.number(field, mark)?;
        Some(match field {
            Field::TrafficClass => head.traffic_class().into(),
            Field::Payload { base: PayloadBase::Network, offset, bytes } => {
                let at = usize::from(offset);
                let mut number = before.to_be_bytes();
                let into = number.iter_mut().skip(16 - usize::from(bytes));
                for (to, from) in into.zip(head.bytes.iter().skip(at)) {
                    *to = *from;
                }
                u128::from_be_bytes(number)
            }
            _ => before,
        })
    }

    fn ethertype(&self) -> Option<u128> {
        number(self.frame, self.l3.checked_sub(2)?, 2)
    }

    /// The bytes from layer 3 on.
    pub(super) fn packet(&self) -> &'a [u8] {
        self.frame.get(self.l3..).unwrap_or_default()
    }

    fn network(&self, at: usize, bytes: usize) -> Option<u128> {
        number(self.packet(), at, bytes)
    }

    /// The same in packets of one version of IP.
    fn network_of(&self, version: u8, at: usize, bytes: usize) -> Option<u128> {
        (self.version == version).then(|| self.network(at, bytes)).flatten()
    }

    fn behind(&self, at: usize, bytes: usize) -> Option<u128> {
        let (_, start) = self.transport.filter(|_| self.offset == 0)?;
        number(self.packet().get(..self.end(self.length?))?, start + at, bytes)
    }

    /// Where headers end: at hook ingress the bytes after the packet are not cut off yet.
    fn end(&self, length: usize) -> usize {
        if self.padded { self.packet().len() } else { length }
    }

    fn link(&self, at: usize, bytes: usize) -> Option<u128> {
        let mut header = [0; 14];
        header[..12].copy_from_slice(self.frame.get(..12)?);
        header[12..].copy_from_slice(self.frame.get(self.l3.checked_sub(2)?..self.l3)?);
        number(&header, at, bytes)
    }

    fn tag(&self) -> Option<u128> {
        (self.l3 > 14).then(|| number(self.frame, 14, 2)).flatten()
    }

    fn walk4(&mut self) -> Option<()> {
        let packet = self.packet();
        let header = packet.first_chunk::<20>()?;
        let header_len = usize::from(header[0] & 15) * 4;
        let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
        if header[0] >> 4 != 4 || header_len < 20 || packet.len() < length || length < header_len {
            return None;
        }
        let fragment = u16::from_be_bytes([header[6], header[7]]) & 0x7fff;
        self.length = Some(length);
        self.transport = Some((header[9], header_len));
        self.fragment = Some(fragment);
        self.offset = fragment & 0x1fff;
        Some(())
    }

    /// `ipv6_find_hdr` (`net/ipv6/exthdrs_core.c`) as nft calls it: it stops at an authentication
    /// header, except when it looks for a fragment header (`nft_exthdr_ipv6_eval`). With `past_auth`,
    /// as ip6tables calls it.
    fn walk6(&mut self, past_auth: bool) -> Option<()> {
        let packet = self.packet();
        let header = packet.first_chunk::<40>()?;
        let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
        if header[0] >> 4 != 6 {
            return None;
        }
        packet.get(..length)?;
        self.length = Some(length);
        let packet = packet.get(..self.end(length))?;
        let (mut next, mut at) = (header[6], 40);
        loop {
            if !is_extension(next) {
                self.transport = Some((next, at));
                return Some(());
            }
            let &[following, len] = packet.get(at..)?.first_chunk()?;
            match next {
                l4::AUTH if past_auth => at += (usize::from(len) + 2) * 4,
                l4::AUTH => {
                    self.transport = Some((next, at));
                    self.fragment = self.fragment.or_else(|| fragment_behind(packet, at));
                    return Some(());
                }
                l4::FRAGMENT => {
                    let field = number(packet, at + 2, 2)? as u16;
                    self.offset = field >> 3;
                    // Of two such headers the first one counts.
                    self.fragment.get_or_insert(field >> 3 | (field & 1) << 13);
                    if self.offset != 0 {
                        self.transport = (!is_extension(following)).then_some((following, 0));
                        return Some(());
                    }
                    at += 8;
                }
                l4::ROUTING if packet.len() < at + LEAST_ROUTING => return None,
                _ => at += (usize::from(len) + 1) * 8,
            }
            next = following;
        }
    }
}

/// `count` bytes at `at` as a number, if they exist.
fn number(bytes: &[u8], at: usize, count: usize) -> Option<u128> {
    let bytes = bytes.get(at..at.checked_add(count)?)?;
    Some(bytes.iter().fold(0, |number, byte| number << 8 | u128::from(*byte)))
}

/// Bytes of a routing header that `ipv6_find_hdr` reads.
const LEAST_ROUTING: usize = 4;

/// The field of the fragment header after an authentication header.
fn fragment_behind(packet: &[u8], mut at: usize) -> Option<u16> {
    let mut next = l4::AUTH;
    loop {
        let &[following, len] = packet.get(at..)?.first_chunk()?;
        at += match next {
            l4::FRAGMENT => {
                let field = number(packet, at + 2, 2)? as u16;
                return Some(field >> 3 | (field & 1) << 13);
            }
            l4::AUTH => (usize::from(len) + 2) * 4,
            l4::ROUTING if packet.len() < at + LEAST_ROUTING => return None,
            _ if is_extension(next) => (usize::from(len) + 1) * 8,
            _ => return None,
        };
        next = following;
    }
}
