//! The answer about connections.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::protocol::Protocol;

/// One page of the answer to [`ShowRequest::Connections`](crate::control::ShowRequest::Connections), in the
/// order of the kernel's table.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionsPage {
    /// The connections; none in the last page, nor in one that only shows that the router is still searching.
    pub connections: Vec<Connection>,
    /// Whether another page follows.
    pub more: bool,
}

/// A connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Connection {
    /// Its protocol.
    pub protocol: Protocol,
    /// The state of TCP; `UNREPLIED`, `SEEN_REPLY` or `ASSURED` for other protocols; or `OFFLOAD` while a
    /// flowtable has it.
    pub state: String,
    /// The tuple of packets in the direction of the first packet, before NAT.
    pub original: ConnectionTuple,
    /// The tuple of packets that come back, before NAT is undone.
    pub reply: ConnectionTuple,
    /// The kernel's status bits, by name.
    pub status: Vec<String>,
    /// Seconds until it expires; none while a flowtable has it.
    pub timeout_s: Option<u32>,
    /// The mark.
    pub mark: u32,
    /// The zone of the original direction.
    pub zone: u16,
    /// The zone of the reply direction.
    pub reply_zone: u16,
    /// The labels, by number.
    pub labels: Vec<u8>,
    /// The helper that reads its data.
    pub helper: Option<String>,
    /// The kernel's number of the connection.
    pub id: u32,
    /// Packets and bytes; none unless the kernel counts them (`net.netfilter.nf_conntrack_acct`).
    pub counts: Option<ConnectionCounts>,
    /// The path of its packets: `fast` if the programs forward those of a direction, or `kernel`; `user` for a state
    /// that a rule of a file keeps.
    pub path: String,
    /// Why they take the kernel path, as a keyword for programs; empty if they do not.
    pub reason: String,
    /// The reason in words; empty likewise. The rule that keeps a state.
    pub why: String,
}

/// What names one direction of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionTuple {
    /// The source address.
    pub source: IpAddr,
    /// The destination address.
    pub destination: IpAddr,
    /// The source port, if the protocol has ports.
    pub source_port: Option<u16>,
    /// The destination port, if the protocol has ports.
    pub destination_port: Option<u16>,
    /// The query, if the protocol is ICMP or ICMPv6.
    pub icmp: Option<IcmpQuery>,
}

/// A query of ICMP or ICMPv6.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct IcmpQuery {
    /// Its identifier.
    pub id: u16,
    /// The type of the message.
    pub r#type: u8,
    /// The code of the message.
    pub code: u8,
}

/// The packets of a connection, and their bytes from the IP header on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionCounts {
    /// Packets of the original direction.
    pub packets: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Packets of the reply direction.
    pub reply_packets: u64,
    /// Their bytes.
    pub reply_bytes: u64,
}
