//! What identifies the packets of a flow.

use std::net::IpAddr;

/// Addresses, ports and protocol of a packet.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in super::super) struct FlowId {
    pub(in super::super) source: u128,
    pub(in super::super) destination: u128,
    /// 0 in packets without ports, and in later fragments.
    pub(in super::super) source_port: u16,
    pub(in super::super) destination_port: u16,
    pub(in super::super) protocol: u8,
    pub(in super::super) version: u8,
    /// The link that link-local addresses belong to, plus 1; 0 for other addresses.
    pub(in super::super) zone: u16,
    /// The query of ICMP, of which both ports are the identifier.
    pub(in super::super) query: Option<Query>,
}

/// A query of ICMP or ICMPv6, or its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) struct Query {
    pub(in super::super) kind: u8,
    pub(in super::super) code: u8,
    /// The type of what answers it, or of what it answers.
    pub(in super::super) inverse: u8,
}

/// A direction of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in super::super) enum Side {
    /// That of the first packet.
    Forward,
    Reverse,
}

impl FlowId {
    /// The direction in which a packet of `other` has these addresses, if it has.
    #[inline]
    pub(in super::super) fn side_of(&self, other: &Self) -> Option<Side> {
        if self == other {
            return Some(Side::Forward);
        }
        (*self == other.reversed()).then_some(Side::Reverse)
    }

    /// The flow of the answers.
    #[inline]
    pub(in super::super) fn reversed(&self) -> Self {
        let query = self.query.map(|query| Query {
            kind: query.inverse,
            inverse: query.kind,
            code: query.code,
        });
        Self {
            source: self.destination,
            destination: self.source,
            source_port: self.destination_port,
            destination_port: self.source_port,
            query,
            ..*self
        }
    }

    /// A hash that is the same for both directions.
    #[inline]
    pub(in super::super) fn hash(&self, seed: [u64; 2]) -> u64 {
        let end = |address: u128, port: u16| {
            let [low, high] = [address as u64, (address >> 64) as u64];
            mix(mix(low ^ seed[0], high ^ seed[1]) ^ u64::from(port), seed[1])
        };
        let both = end(self.source, self.source_port)
            .wrapping_add(end(self.destination, self.destination_port));
        mix(both ^ u64::from(self.protocol) << 8 ^ u64::from(self.version), seed[0])
    }
}

/// An address of a version of IP.
pub(in super::super) fn address(version: u8, number: u128) -> IpAddr {
    match version {
        4 => IpAddr::from((number as u32).to_be_bytes()),
        _ => IpAddr::from(number.to_be_bytes()),
    }
}

/// Both halves of a product, as in wyhash.
#[inline]
pub(in super::super) fn mix(left: u64, right: u64) -> u64 {
    let product = u128::from(left) * u128::from(right);
    product as u64 ^ (product >> 64) as u64
}
