//! The answer about connections.

use std::net::IpAddr;

use serde::{Deserialize, Serialize};

use super::protocol::Protocol;

/// One page of the answer to [`ShowRequest::Connections`](crate::control::ShowRequest::Connections), in the
/// order of the kernel's table, or sorted.
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
    /// Its rates, if the client wants connections sorted by them.
    #[serde(default)]
    pub rates: Option<ConnectionRates>,
    /// What the table of the programs has for the original direction; none if it has no entry.
    #[serde(default)]
    pub original_entry: Option<ConnectionEntry>,
    /// The same for the reply direction.
    #[serde(default)]
    pub reply_entry: Option<ConnectionEntry>,
    /// The path of its packets: `fast` if the programs forward or drop those of a direction, or `kernel`; `user` for a
    /// state that a rule of a file keeps.
    pub path: String,
    /// Why they take the kernel path, or those of one direction, or are dropped, as a keyword for programs; empty if they
    /// do not.
    pub reason: String,
    /// The reason in words; empty likewise. The rule that keeps a state.
    pub why: String,
}

/// An entry of the programs for a direction of a connection.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionEntry {
    /// `forwarded`, `dropped`, `kernel`, or `unruled` until the rules are evaluated.
    pub treatment: String,
    /// The link that packets arrive on.
    pub device: String,
    /// The link that they leave by.
    pub output: Option<String>,
    /// Why they are not forwarded, as a keyword; empty if they are.
    pub reason: String,
    /// Packets that the programs have forwarded or dropped by the entry.
    pub packets: u64,
    /// Their bytes from the IP header on.
    pub bytes: u64,
}

/// The rates of a connection, both directions together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ConnectionRates {
    /// Packets a second: of all paths if the kernel counts them, or else of the programs alone.
    pub packets_per_s: u64,
    /// Their bytes a second, from the IP header on.
    pub bytes_per_s: u64,
    /// The time over which the router has measured them.
    pub interval_ms: u64,
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
