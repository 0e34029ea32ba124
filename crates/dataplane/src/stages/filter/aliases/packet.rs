//! A packet, as far as aliases look at it.

use super::config::AliasEnd;
use crate::wire::ipv4::Ipv4View;
use crate::wire::{be16, l4};

/// A packet of IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct AliasPacket {
    pub(super) source: u32,
    pub(super) destination: u32,
    pub(super) protocol: u8,
    /// What its fragments share.
    pub(super) id: u16,
    /// Whether it is a fragment that others follow.
    pub(super) has_more: bool,
    pub(super) payload: Payload,
    pub(super) bytes: u64,
}

/// What follows the header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Payload {
    /// Not the beginning of the packet.
    LaterFragment,
    /// TCP or UDP.
    Ports { source: u16, destination: u16, tcp_flags: u8 },
    /// A query of ICMP, or its answer.
    Query { id: u16 },
    /// An error of ICMP, and the flow of the packet that it quotes, if that has ports or an identifier.
    Error(Option<Quoted>),
    /// ICMP that is neither.
    OtherIcmp,
    /// Anything else.
    Other,
}

/// The flow of a packet that an error quotes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Quoted {
    pub(super) protocol: u8,
    pub(super) source: AliasEnd,
    pub(super) destination: AliasEnd,
}

const ECHO: u8 = 8;
const TIMESTAMP: u8 = 13;

impl AliasPacket {
    /// None of what is not IPv4, or is cut off.
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let header = Ipv4View(packet.first_chunk()?);
        let length = usize::from(header.total_len());
        if header.version_ihl() >> 4 != 4 || header.header_len() < 20 {
            return None;
        }
        let transport = packet.get(..length)?.get(header.header_len()..)?;
        let fragment = be16(header.0, 6);
        let payload = match (fragment & 0x1fff, header.protocol()) {
            (1.., _) => Payload::LaterFragment,
            (0, protocol) => Payload::of(protocol, transport)?,
        };
        Some(Self {
            source: header.src(),
            destination: header.dst(),
            protocol: header.protocol(),
            id: be16(header.0, 4),
            has_more: fragment & 0x2000 != 0,
            payload,
            bytes: length as u64,
        })
    }
}

impl Payload {
    fn of(protocol: u8, transport: &[u8]) -> Option<Self> {
        Some(match protocol {
            l4::TCP | l4::UDP => {
                let header = transport.first_chunk::<8>()?;
                let tcp_flags = match protocol {
                    l4::TCP => *transport.get(13)?,
                    _ => 0,
                };
                Self::Ports { source: be16(header, 0), destination: be16(header, 2), tcp_flags }
            }
            l4::ICMP => {
                let header = transport.first_chunk::<8>()?;
                match header[..2] {
                    [0 | ECHO | TIMESTAMP | 14, 0] => Self::Query { id: be16(header, 4) },
                    [3 | 4 | 11 | 12, _] => Self::Error(transport.get(8..).and_then(Quoted::of)),
                    _ => Self::OtherIcmp,
                }
            }
            _ => Self::Other,
        })
    }
}

impl Quoted {
    pub(super) fn of(packet: &[u8]) -> Option<Self> {
        let header = Ipv4View(packet.first_chunk()?);
        let transport = packet.get(header.header_len()..)?.first_chunk::<8>()?;
        if header.version_ihl() >> 4 != 4 || header.header_len() < 20 || header.is_later_fragment()
        {
            return None;
        }
        let (source, destination) = match header.protocol() {
            l4::TCP | l4::UDP => (be16(transport, 0), be16(transport, 2)),
            l4::ICMP if matches!(transport[0], ECHO | TIMESTAMP) => {
                (be16(transport, 4), be16(transport, 4))
            }
            _ => return None,
        };
        Some(Self {
            protocol: header.protocol(),
            source: AliasEnd { address: header.src(), port: source },
            destination: AliasEnd { address: header.dst(), port: destination },
        })
    }
}
