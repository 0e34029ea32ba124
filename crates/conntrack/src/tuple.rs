//! What names one direction of a connection.

use std::net::IpAddr;

/// What names one direction of a connection (`struct nf_conntrack_tuple`).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tuple {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The protocol above IP, by its number (`IPPROTO_*`).
    pub protocol: u8,
    /// What the protocol adds.
    pub l4: TupleL4,
}

/// What a protocol above IP adds to a [`Tuple`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum TupleL4 {
    /// Ports (TCP, UDP, SCTP ...), or the keys of GRE.
    Ports {
        /// The source port.
        source: u16,
        /// The destination port.
        destination: u16,
    },
    /// An ICMP or ICMPv6 query.
    Icmp {
        /// Its identifier.
        id: u16,
        /// The type of the message.
        kind: u8,
        /// The code of the message.
        code: u8,
    },
    /// Nothing: the kernel knows no more than the protocol's number.
    None,
}

impl Tuple {
    /// A tuple with ports.
    #[must_use]
    pub fn with_ports(protocol: u8, source: (IpAddr, u16), destination: (IpAddr, u16)) -> Self {
        let l4 = TupleL4::Ports { source: source.1, destination: destination.1 };
        Self { source: source.0, destination: destination.0, protocol, l4 }
    }

    /// The source port, if the protocol has ports.
    #[must_use]
    pub const fn source_port(&self) -> Option<u16> {
        match self.l4 {
            TupleL4::Ports { source, .. } => Some(source),
            TupleL4::Icmp { .. } | TupleL4::None => None,
        }
    }

    /// The destination port, if the protocol has ports.
    #[must_use]
    pub const fn destination_port(&self) -> Option<u16> {
        match self.l4 {
            TupleL4::Ports { destination, .. } => Some(destination),
            TupleL4::Icmp { .. } | TupleL4::None => None,
        }
    }

    /// The tuple of packets in the other direction, if no NAT changes them. None for ICMP, whose types it
    /// would have to know.
    #[must_use]
    pub const fn swapped(&self) -> Option<Self> {
        let l4 = match self.l4 {
            TupleL4::Ports { source, destination } => {
                TupleL4::Ports { source: destination, destination: source }
            }
            TupleL4::None => TupleL4::None,
            TupleL4::Icmp { .. } => return None,
        };
        Some(Self {
            source: self.destination,
            destination: self.source,
            protocol: self.protocol,
            l4,
        })
    }
}
