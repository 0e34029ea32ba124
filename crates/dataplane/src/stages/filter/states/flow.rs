//! What identifies the packets of a state.

use super::super::{Field, Parsed, PayloadBase};
use super::StateLimit;
use crate::wire::ipv6::is_link_local;
use crate::wire::l4;

/// Addresses, ports and protocol of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct FlowId {
    pub(super) source: u128,
    pub(super) destination: u128,
    /// 0 in packets without ports, and in later fragments.
    pub(super) source_port: u16,
    pub(super) destination_port: u16,
    pub(super) protocol: u8,
    pub(super) version: u8,
    /// The link that link-local addresses belong to, plus 1; 0 for other addresses.
    pub(super) zone: u16,
}

/// A packet, as far as states look at it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct StatePacket {
    pub(super) flow: FlowId,
    /// Flags of TCP; 0 in other packets.
    pub(super) tcp_flags: u8,
    /// The acknowledgement number of TCP.
    pub(super) ack: Option<u32>,
    pub(super) bytes: u64,
}

/// A direction of a state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    /// That of the first packet.
    Forward,
    Reverse,
}

impl StatePacket {
    /// None of a packet that is not of IP.
    pub(in super::super) fn of(parsed: &Parsed<'_>) -> Option<Self> {
        let number = |field| parsed.number(field, 0);
        let is_six = number(Field::IpVersion) == Some(6);
        let (source, destination) = match is_six {
            true => (Field::Source6, Field::Destination6),
            false => (Field::Source4, Field::Destination4),
        };
        let (source, destination) = (number(source)?, number(destination)?);
        let protocol = number(Field::Protocol)? as u8;
        let has_ports = matches!(protocol, l4::TCP | l4::UDP | l4::SCTP | l4::UDP_LITE);
        let port = |field| number(field).filter(|_| has_ports).unwrap_or(0) as u16;
        let is_tcp = protocol == l4::TCP;
        let acknowledged = Field::Payload { base: PayloadBase::Transport, offset: 8, bytes: 4 };
        let is_local = |address| is_six && is_link_local(address);
        let zone = match is_local(source) || is_local(destination) {
            true => parsed.links().0.0.saturating_add(1),
            false => 0,
        };
        Some(Self {
            flow: FlowId {
                source,
                destination,
                source_port: port(Field::SourcePort),
                destination_port: port(Field::DestinationPort),
                protocol,
                version: if is_six { 6 } else { 4 },
                zone,
            },
            tcp_flags: number(Field::TcpFlags).filter(|_| is_tcp).unwrap_or(0) as u8,
            ack: number(acknowledged).filter(|_| is_tcp).map(|ack| ack as u32),
            bytes: parsed.bytes(),
        })
    }
}

impl FlowId {
    /// The direction in which a packet of `other` has these addresses, if it has.
    #[inline]
    pub(super) fn side_of(&self, other: &Self) -> Option<Side> {
        if self == other {
            return Some(Side::Forward);
        }
        (*self == other.reversed()).then_some(Side::Reverse)
    }

    #[inline]
    fn reversed(&self) -> Self {
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            ..*self
        }
    }

    /// The parts that a limit counts by; the others are 0.
    pub(super) fn group(&self, limit: &StateLimit) -> Self {
        let port = |is_part, port| if is_part { port } else { 0 };
        Self {
            source: if limit.source { self.source } else { 0 },
            destination: if limit.destination { self.destination } else { 0 },
            source_port: port(limit.source_port, self.source_port),
            destination_port: port(limit.destination_port, self.destination_port),
            ..*self
        }
    }

    /// A hash that is the same for both directions.
    #[inline]
    pub(super) fn hash(&self, seed: [u64; 2]) -> u64 {
        let end = |address: u128, port: u16| {
            let [low, high] = [address as u64, (address >> 64) as u64];
            mix(mix(low ^ seed[0], high ^ seed[1]) ^ u64::from(port), seed[1])
        };
        let both = end(self.source, self.source_port)
            .wrapping_add(end(self.destination, self.destination_port));
        mix(both ^ u64::from(self.protocol) << 8 ^ u64::from(self.version), seed[0])
    }
}

/// Both halves of a product, as in wyhash.
#[inline]
fn mix(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}
