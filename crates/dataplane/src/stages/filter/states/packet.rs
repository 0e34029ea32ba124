//! A packet, as far as states look at it.

use super::super::flows::FlowId;
use super::super::{Field, Parsed, PayloadBase};
use super::StateLimit;
use crate::wire::ipv6::is_link_local;
use crate::wire::l4;

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
                query: None,
            },
            tcp_flags: number(Field::TcpFlags).filter(|_| is_tcp).unwrap_or(0) as u8,
            ack: number(acknowledged).filter(|_| is_tcp).map(|ack| ack as u32),
            bytes: parsed.bytes(),
        })
    }
}

/// The parts of a flow that a limit counts by; the others are 0.
pub(super) fn group(flow: &FlowId, limit: &StateLimit) -> FlowId {
    let port = |is_part, port| if is_part { port } else { 0 };
    FlowId {
        source: if limit.source { flow.source } else { 0 },
        destination: if limit.destination { flow.destination } else { 0 },
        source_port: port(limit.source_port, flow.source_port),
        destination_port: port(limit.destination_port, flow.destination_port),
        ..*flow
    }
}
