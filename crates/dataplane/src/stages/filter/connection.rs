//! What rules test and set of a packet's connection, as connection tracking knows it.
//!
//! Kernel equivalent: `nft_ct_get_eval` and `nft_ct_set_eval` (`net/netfilter/nft_ct.c`).
//!
//! A [`FlowFilter`](super::FlowFilter) takes rules with these fields: the kernel's connection tracking has told what
//! is the same for all packets of a flow. A [`Filter`](super::Filter) takes them if it tracks connections itself
//! ([`Filter::track`](super::Filter::track)).

#[cfg(test)]
mod tests;

/// A property of a packet's connection (`enum nft_ct_keys`), as a number in host order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ConnectionField {
    /// One of the bits `NF_CT_STATE_*`, see [`FlowConnection::state`]. Never lacking, unlike all others:
    /// packets of no connection lack these.
    State,
    /// 0 for the direction of the first packet, 1 for replies (`enum ip_conntrack_dir`).
    Direction,
    /// Bits of `enum ip_conntrack_status`.
    Status,
    /// The connection's mark.
    Mark,
    /// The zone that its addresses belong to.
    Zone,
    /// 2 for IPv4, 10 for IPv6 (`NFPROTO_*`).
    L3Protocol,
    /// The transport protocol.
    Protocol,
    /// A part of the tuple of one direction.
    Tuple(Direction, TupleField),
}

/// A direction of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Direction {
    /// That of its first packet.
    Original,
    /// That of the replies.
    Reply,
}

/// A part of a connection's tuple. Connections of the other version of IP lack an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum TupleField {
    /// The source address of IPv4.
    Source4,
    /// The destination address of IPv4.
    Destination4,
    /// The source address of IPv6.
    Source6,
    /// The destination address of IPv6.
    Destination6,
    /// The source port, or what stands for it in other protocols (ICMP: the identifier).
    SourcePort,
    /// The destination port, or what stands for it in other protocols (ICMP: type and code).
    DestinationPort,
}

impl ConnectionField {
    /// The width of its number in bits, at most.
    pub(super) const fn bits(self) -> u32 {
        match self {
            Self::State | Self::Direction | Self::L3Protocol | Self::Protocol => 8,
            Self::Zone => 16,
            Self::Status | Self::Mark => 32,
            Self::Tuple(_, field) => field.bits(),
        }
    }
}

impl TupleField {
    const fn bits(self) -> u32 {
        match self {
            Self::SourcePort | Self::DestinationPort => 16,
            Self::Source4 | Self::Destination4 => 32,
            Self::Source6 | Self::Destination6 => 128,
        }
    }

    /// The version of IP of the connections that have it; none for both.
    #[must_use]
    pub const fn version(self) -> Option<u8> {
        match self {
            Self::Source4 | Self::Destination4 => Some(4),
            Self::Source6 | Self::Destination6 => Some(6),
            Self::SourcePort | Self::DestinationPort => None,
        }
    }
}

/// What connection tracking says of every packet of a flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FlowConnection {
    /// They fit no connection.
    Invalid,
    /// Rules have kept them out of connection tracking.
    Untracked,
    /// They belong to this connection.
    Tracked(Connection),
}

/// A connection as the packets of one direction meet it, behind its first packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Connection {
    /// What these packets are to it.
    pub state: ConnectionState,
    /// Their direction.
    pub direction: Direction,
    /// Bits of `enum ip_conntrack_status`.
    pub status: u32,
    /// Its mark.
    pub mark: u32,
    /// The zone that its addresses belong to.
    pub zone: u16,
    /// Addresses and ports of packets in the direction of the first one, as they arrive.
    pub original: Tuple,
    /// Addresses and ports of replies, as they arrive.
    pub reply: Tuple,
}

/// What packets are to their connection (`enum ip_conntrack_info`, without the direction).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ConnectionState {
    /// There have been packets in both directions.
    Established,
    /// They are errors of it, or the first of a connection that another one has announced.
    Related,
    /// There has been no reply.
    New,
}

/// Addresses and ports of the packets in one direction; version of IP and protocol are those of the flow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// Source address.
    pub source: u128,
    /// Destination address.
    pub destination: u128,
    /// Source port, see [`TupleField::SourcePort`].
    pub source_port: u16,
    /// Destination port, see [`TupleField::DestinationPort`].
    pub destination_port: u16,
}

impl Connection {
    /// Addresses and ports with which packets of this direction leave: those of packets that answer them, turned round.
    #[must_use]
    pub const fn leaves(&self) -> Tuple {
        let answers = match self.direction {
            Direction::Original => self.reply,
            Direction::Reply => self.original,
        };
        Tuple {
            source: answers.destination,
            destination: answers.source,
            source_port: answers.destination_port,
            destination_port: answers.source_port,
        }
    }
}

impl FlowConnection {
    /// The packets' state: a bit of `NF_CT_STATE_*` (`include/uapi/linux/netfilter/nf_conntrack_common.h`).
    #[must_use]
    pub const fn state(&self) -> u8 {
        match self {
            Self::Invalid => 1,
            Self::Tracked(Connection { state: ConnectionState::Established, .. }) => 2,
            Self::Tracked(Connection { state: ConnectionState::Related, .. }) => 4,
            Self::Tracked(Connection { state: ConnectionState::New, .. }) => 8,
            Self::Untracked => 64,
        }
    }

    /// The connection, if the packets have one.
    #[must_use]
    pub const fn tracked(&self) -> Option<&Connection> {
        match self {
            Self::Tracked(connection) => Some(connection),
            Self::Invalid | Self::Untracked => None,
        }
    }

    /// The number of a field for packets of a version of IP and a protocol; none if they lack it.
    pub(super) fn number(&self, field: ConnectionField, version: u8, protocol: u8) -> Option<u128> {
        let connection = self.tracked();
        Some(match field {
            ConnectionField::State => self.state().into(),
            ConnectionField::Direction => connection?.direction as u128,
            ConnectionField::Status => connection?.status.into(),
            ConnectionField::Mark => connection?.mark.into(),
            ConnectionField::Zone => connection?.zone.into(),
            ConnectionField::L3Protocol => connection.map(|_| if version == 4 { 2 } else { 10 })?,
            ConnectionField::Protocol => connection.map(|_| protocol.into())?,
            ConnectionField::Tuple(direction, field) => {
                connection?.tuple(direction).number(field, version)?
            }
        })
    }
}

impl Connection {
    /// The tuple of a direction.
    #[must_use]
    pub const fn tuple(&self, direction: Direction) -> &Tuple {
        match direction {
            Direction::Original => &self.original,
            Direction::Reply => &self.reply,
        }
    }
}

impl Tuple {
    fn number(&self, field: TupleField, version: u8) -> Option<u128> {
        if field.version().is_some_and(|own| own != version) {
            return None;
        }
        Some(match field {
            TupleField::Source4 | TupleField::Source6 => self.source,
            TupleField::Destination4 | TupleField::Destination6 => self.destination,
            TupleField::SourcePort => self.source_port.into(),
            TupleField::DestinationPort => self.destination_port.into(),
        })
    }
}

/// Whose mark it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum MarkOf {
    /// The packet's.
    Packet,
    /// The connection's.
    Connection,
}

/// Sets a mark to a number that the marks of packet and connection determine: bits of either, and a constant,
/// all joined by exclusive or.
///
/// Ends the rule if the packet has no connection whose mark to read; does nothing if it has none whose mark
/// to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MarkUpdate {
    /// The mark that is set.
    pub target: MarkOf,
    /// Bits of the packet's mark.
    pub packet: u32,
    /// Bits of the connection's mark; none if that is not read.
    pub connection: Option<u32>,
    /// The constant.
    pub flip: u32,
}

impl MarkUpdate {
    /// The number to set, for the marks of a packet and its connection; none if the rule ends.
    #[must_use]
    pub const fn number(self, packet: u32, connection: Option<u32>) -> Option<u32> {
        let of_connection = match (self.connection, connection) {
            (None, _) => 0,
            (Some(bits), Some(mark)) => mark & bits,
            (Some(_), None) => return None,
        };
        Some(packet & self.packet ^ of_connection ^ self.flip)
    }
}
