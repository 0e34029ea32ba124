//! A packet, as far as connection tracking looks at it (`nf_ct_get_tuple`, and what the protocols' functions check first).

use super::super::flows::{FlowId, Query};
use super::super::parsed::is_extension;
use super::tcp::Segment;
use crate::wire::{checksum, l4};

/// What a packet is before connections are looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind<'a> {
    /// It fits no connection.
    Invalid,
    /// It belongs to none, by its kind.
    Untracked,
    /// It may belong to one.
    Packet(Packet<'a>),
    /// An error about a packet: how that one would be answered, and where the error goes.
    Error(FlowId, u128),
}

/// A packet that may belong to a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packet<'a> {
    pub(super) flow: FlowId,
    pub(super) transport: Transport<'a>,
    pub(super) bytes: u64,
}

/// What tracking of its protocol needs to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transport<'a> {
    Tcp(Segment<'a>),
    Udp,
    UdpLite,
    /// A query of ICMP or ICMPv6, or its answer.
    Query,
    Gre,
    Other,
}

/// Where a packet's headers are.
#[derive(Clone, Copy)]
struct Headers<'a> {
    version: u8,
    source: u128,
    destination: u128,
    protocol: u8,
    /// The transport header, and what is behind it.
    transport: &'a [u8],
    length: usize,
}

/// The flags of TCP that say what a packet is; PSH, ECE and CWR may always be there.
const JUDGED_FLAGS: u8 = 0x37;

/// `tcp_valid_flags`: SYN, with ACK or URG; RST, with ACK; ACK, with FIN and URG.
const VALID_FLAGS: [u8; 9] = [0x02, 0x22, 0x12, 0x04, 0x14, 0x11, 0x31, 0x10, 0x30];

impl<'a> Kind<'a> {
    /// Looks at the bytes from layer 3 on.
    pub(super) fn of(version: u8, packet: &'a [u8]) -> Self {
        let headers = match version {
            4 => headers4(packet),
            _ => headers6(packet),
        };
        let Some(headers) = headers else { return Self::Invalid };
        match (headers.protocol, version) {
            (l4::ICMP, 4) => headers.icmp(),
            (l4::ICMPV6, 6) => headers.icmp6(),
            // Of the other version of IP.
            (l4::ICMP | l4::ICMPV6, _) => Self::Invalid,
            _ => headers.other().map_or(Self::Invalid, Self::Packet),
        }
    }
}

/// None of what is broken, or a fragment.
fn headers4(packet: &[u8]) -> Option<Headers<'_>> {
    let header = packet.first_chunk::<20>()?;
    let length = usize::from(u16::from_be_bytes([header[2], header[3]]));
    let is_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x3fff != 0;
    let transport = packet.get(..length)?.get(usize::from(header[0] & 15) * 4..)?;
    let headers = inner4(packet)?;
    (!is_fragment).then_some(Headers { transport, length, ..headers })
}

/// As `get_l4proto` has it of a packet that may be cut off.
fn inner4(packet: &[u8]) -> Option<Headers<'_>> {
    let header = packet.first_chunk::<20>()?;
    let address = |at: usize| {
        u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
    };
    let is_later_fragment = u16::from_be_bytes([header[6], header[7]]) & 0x1fff != 0;
    let transport = packet.get(usize::from(header[0] & 15) * 4..)?;
    (!is_later_fragment).then_some(Headers {
        version: 4,
        source: address(12).into(),
        destination: address(16).into(),
        protocol: header[9],
        transport,
        length: packet.len(),
    })
}

fn headers6(packet: &[u8]) -> Option<Headers<'_>> {
    let header = packet.first_chunk::<40>()?;
    let length = 40 + usize::from(u16::from_be_bytes([header[4], header[5]]));
    inner6(packet.get(..length)?, false)
}

/// Walks extension headers as `ipv6_skip_exthdr` does.
fn inner6(packet: &[u8], may_be_fragment: bool) -> Option<Headers<'_>> {
    let header = packet.first_chunk::<40>()?;
    let address = |at: usize| header[at..].first_chunk().map(|bytes| u128::from_be_bytes(*bytes));
    let (mut protocol, mut at) = (header[6], 40);
    while is_extension(protocol) || protocol == l4::NO_NEXT_HEADER {
        let &[next, len] = packet.get(at..)?.first_chunk()?;
        at += match protocol {
            l4::NO_NEXT_HEADER => return None,
            l4::FRAGMENT => {
                let &[_, _, high, low] = packet.get(at..)?.first_chunk()?;
                if !may_be_fragment || u16::from_be_bytes([high, low]) & !7 != 0 {
                    return None;
                }
                8
            }
            l4::AUTH => (usize::from(len) + 2) * 4,
            _ => (usize::from(len) + 1) * 8,
        };
        protocol = next;
    }
    Some(Headers {
        version: 6,
        source: address(8)?,
        destination: address(24)?,
        protocol,
        transport: packet.get(at..)?,
        length: packet.len(),
    })
}

impl<'a> Headers<'a> {
    /// The flow, with these ports or what stands for them.
    fn flow(&self, (source_port, destination_port): (u16, u16), query: Option<Query>) -> FlowId {
        FlowId {
            source: self.source,
            destination: self.destination,
            source_port,
            destination_port,
            protocol: self.protocol,
            version: self.version,
            zone: 0,
            query,
        }
    }

    fn packet(&self, flow: FlowId, transport: Transport<'a>) -> Packet<'a> {
        Packet { flow, transport, bytes: self.length as u64 }
    }

    fn other(&self) -> Option<Packet<'a>> {
        let transport = match self.protocol {
            l4::TCP => Transport::Tcp(self.segment()?),
            l4::UDP => self.udp()?,
            l4::UDP_LITE => self.udp_lite()?,
            l4::GRE => Transport::Gre,
            _ => Transport::Other,
        };
        Some(self.packet(self.flow_by_ports()?, transport))
    }

    fn flow_by_ports(&self) -> Option<FlowId> {
        let ports = match self.protocol {
            l4::TCP | l4::UDP | l4::UDP_LITE | l4::SCTP => {
                let &[a, b, c, d] = self.transport.first_chunk()?;
                (u16::from_be_bytes([a, b]), u16::from_be_bytes([c, d]))
            }
            l4::GRE => (0, self.call()?),
            _ => (0, 0),
        };
        Some(self.flow(ports, None))
    }

    /// The call of PPTP, whose packets are of version 1 of GRE (`gre_pkt_to_tuple`); 0 of other packets.
    fn call(&self) -> Option<u16> {
        const VERSION: u8 = 7;
        const PPP: [u8; 2] = [0x88, 0x0b];
        match *self.transport {
            [_, flags, a, b, _, _, high, low, ..] if flags & VERSION == 1 => {
                ([a, b] == PPP).then(|| u16::from_be_bytes([high, low]))
            }
            _ => Some(0),
        }
    }

    /// `tcp_error`.
    fn segment(&self) -> Option<Segment<'a>> {
        let header = self.transport.first_chunk::<20>()?;
        let header_len = usize::from(header[12] >> 4) * 4;
        let options = self.transport.get(20..header_len)?;
        let flags = header[13];
        let word = |at: usize| {
            u32::from_be_bytes([header[at], header[at + 1], header[at + 2], header[at + 3]])
        };
        let is_valid = VALID_FLAGS.contains(&(flags & JUDGED_FLAGS));
        let payload = (self.transport.len() - header_len) as u32;
        (is_valid && self.sums_up(self.transport.len(), true)).then(|| Segment {
            flags,
            seq: word(4),
            end: word(4)
                .wrapping_add(payload)
                .wrapping_add(u32::from(flags >> 1 & 1))
                .wrapping_add(u32::from(flags & 1)),
            ack: word(8),
            window: u16::from_be_bytes([header[14], header[15]]),
            options,
        })
    }

    /// `udp_error`.
    fn udp(&self) -> Option<Transport<'a>> {
        let header = self.transport.first_chunk::<8>()?;
        let length = usize::from(u16::from_be_bytes([header[4], header[5]]));
        let is_sound = (8..=self.transport.len()).contains(&length);
        let has_sum = header[6..] != [0, 0];
        let sums_up = !has_sum || self.sums_up(self.transport.len(), true);
        (is_sound && sums_up).then_some(Transport::Udp)
    }

    /// `udplite_error`.
    fn udp_lite(&self) -> Option<Transport<'a>> {
        let header = self.transport.first_chunk::<8>()?;
        let covered = match usize::from(u16::from_be_bytes([header[4], header[5]])) {
            0 => self.transport.len(),
            covered => covered,
        };
        let is_sound = (8..=self.transport.len()).contains(&covered) && header[6..] != [0, 0];
        (is_sound && self.sums_up(covered, true)).then_some(Transport::UdpLite)
    }

    /// `nf_conntrack_icmpv4_error`, and `icmp_pkt_to_tuple`.
    fn icmp(&self) -> Kind<'a> {
        let Some((&[kind, ..], _)) = self.icmp_header() else { return Kind::Invalid };
        match kind {
            _ if !self.sums_up(self.transport.len(), false) => Kind::Invalid,
            3 | 4 | 5 | 11 | 12 => self.error(inner4(self.transport.get(8..).unwrap_or_default())),
            _ => self.of_query(),
        }
    }

    /// `nf_conntrack_icmpv6_error`, and `icmpv6_pkt_to_tuple`.
    fn icmp6(&self) -> Kind<'a> {
        let Some((&[kind, ..], _)) = self.icmp_header() else { return Kind::Invalid };
        match kind {
            _ if !self.sums_up(self.transport.len(), true) => Kind::Invalid,
            0..128 => self.error(inner6(self.transport.get(8..).unwrap_or_default(), true)),
            // Of multicast listeners and neighbours.
            130..=136 | 143 => Kind::Untracked,
            _ => self.of_query(),
        }
    }

    /// A query, or its answer.
    fn of_query(&self) -> Kind<'a> {
        let packet = |flow| Kind::Packet(self.packet(flow, Transport::Query));
        self.query().map_or(Kind::Invalid, packet)
    }

    /// The header of ICMP, and the identifier that queries have.
    fn icmp_header(&self) -> Option<(&'a [u8; 8], u16)> {
        let header = self.transport.first_chunk::<8>()?;
        Some((header, u16::from_be_bytes([header[4], header[5]])))
    }

    /// An error about a packet, of which this is the beginning.
    fn error(&self, inner: Option<Headers<'_>>) -> Kind<'a> {
        let flow = inner.and_then(|inner| match (inner.protocol, inner.version) {
            (l4::ICMP, 4) | (l4::ICMPV6, 6) => inner.query(),
            _ => inner.flow_by_ports(),
        });
        flow.map_or(Kind::Invalid, |flow| Kind::Error(flow.reversed(), self.destination))
    }

    /// The flow of a query of ICMP or ICMPv6, or of its answer.
    fn query(&self) -> Option<FlowId> {
        let (&[kind, code, ..], id) = self.icmp_header()?;
        let inverse = match (self.version, kind) {
            (4, 0 | 8) => 8 - kind,
            (4, 13 | 15 | 17) | (6, 128 | 139) => kind + 1,
            (4, 14 | 16 | 18) | (6, 129 | 140) => kind - 1,
            _ => return None,
        };
        Some(self.flow((id, id), Some(Query { kind, code, inverse })))
    }

    /// Says whether the checksum over these bytes of the transport header on is right (`nf_checksum_partial`).
    fn sums_up(&self, covered: usize, has_pseudo_header: bool) -> bool {
        let mut sum = u64::from(checksum::sum(self.transport.get(..covered).unwrap_or_default()));
        if has_pseudo_header {
            let addresses = [self.source.to_be_bytes(), self.destination.to_be_bytes()];
            sum += u64::from(checksum::sum(addresses.as_flattened()));
            sum += u64::from(self.protocol) + self.transport.len() as u64;
        }
        sum % 0xffff == 0
    }
}
