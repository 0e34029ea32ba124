//! A connection, as the kernel reports it.

use crate::status::Status;
use crate::tcp::TcpInfo;
use crate::tuple::Tuple;

/// A connection that the kernel tracks (`struct nf_conn`).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The tuple of the first packet, before NAT.
    pub original: Tuple,
    /// The tuple of packets that come back, before NAT is undone.
    pub reply: Tuple,
    /// The status bits.
    pub status: Status,
    /// What is known of TCP. None for other protocols, and while a flowtable has the connection.
    pub tcp: Option<TcpInfo>,
    /// Seconds until the connection expires. None while a flowtable has it.
    pub timeout_s: Option<u32>,
    /// The mark (`ct mark`).
    pub mark: u32,
    /// The zone of the original direction (`ct original zone`).
    pub zone: u16,
    /// The zone of the reply direction, mostly the same.
    pub reply_zone: u16,
    /// The number of the connection: another one that has the same tuples later has another number.
    pub id: u32,
    /// The helper that reads the connection's data.
    pub helper: Option<String>,
    /// The labels (`ct label`).
    pub labels: Labels,
    /// Packets and bytes, if the kernel counts them (`net.netfilter.nf_conntrack_acct`).
    pub counters: Option<Counters>,
    /// Whether the kernel shifts TCP sequence numbers.
    pub has_seq_adjust: bool,
    /// Whether the kernel has answered the handshake itself.
    pub has_synproxy: bool,
}

/// The labels of a connection: a set of bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Labels(pub u128);

impl Labels {
    /// Whether the set has a bit.
    #[must_use]
    pub const fn has(self, bit: u8) -> bool {
        bit < 128 && self.0 & (1 << bit) != 0
    }
}

/// The counters of both directions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counters {
    /// Of the original direction.
    pub original: Counter,
    /// Of the reply direction.
    pub reply: Counter,
}

/// The packets and bytes of one direction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counter {
    /// Packets.
    pub packets: u64,
    /// Bytes from the IP header on.
    pub bytes: u64,
}
