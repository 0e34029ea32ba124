//! Messages of ctnetlink: reads connections, and writes requests.
//!
//! A message is read in place. Nothing but a helper's name is allocated.

use std::net::IpAddr;

use tollway_linux::netlink::{Attribute, attributes, push};

use crate::connection::{Connection, Counter, Counters, Labels};
use crate::status::Status;
use crate::tcp::{TcpFlags, TcpInfo, TcpState};
use crate::tuple::{Tuple, TupleL4};

/// Length of `struct nfgenmsg`, before the attributes.
const HEADER: usize = 4;
/// Length of an attribute's header, to a multiple of which attributes are padded.
const NLA_HEADER: usize = 4;
/// `NLA_F_NESTED`.
const NESTED: u16 = 0x8000;

/// `CTA_*` (`linux/netfilter/nfnetlink_conntrack.h`).
mod cta {
    pub const TUPLE_ORIG: u16 = 1;
    pub const TUPLE_REPLY: u16 = 2;
    pub const STATUS: u16 = 3;
    pub const PROTOINFO: u16 = 4;
    pub const HELP: u16 = 5;
    pub const TIMEOUT: u16 = 7;
    pub const MARK: u16 = 8;
    pub const COUNTERS_ORIG: u16 = 9;
    pub const COUNTERS_REPLY: u16 = 10;
    pub const ID: u16 = 12;
    pub const SEQ_ADJ_ORIG: u16 = 15;
    pub const SEQ_ADJ_REPLY: u16 = 16;
    pub const ZONE: u16 = 18;
    pub const LABELS: u16 = 22;
    pub const SYNPROXY: u16 = 24;

    pub const TUPLE_IP: u16 = 1;
    pub const TUPLE_PROTO: u16 = 2;
    pub const TUPLE_ZONE: u16 = 3;

    pub const IP_V4_SRC: u16 = 1;
    pub const IP_V4_DST: u16 = 2;
    pub const IP_V6_SRC: u16 = 3;
    pub const IP_V6_DST: u16 = 4;

    pub const PROTO_NUM: u16 = 1;
    pub const PROTO_SRC_PORT: u16 = 2;
    pub const PROTO_DST_PORT: u16 = 3;
    pub const PROTO_ICMP_ID: u16 = 4;
    pub const PROTO_ICMP_TYPE: u16 = 5;
    pub const PROTO_ICMP_CODE: u16 = 6;
    pub const PROTO_ICMPV6_ID: u16 = 7;
    pub const PROTO_ICMPV6_TYPE: u16 = 8;
    pub const PROTO_ICMPV6_CODE: u16 = 9;

    pub const PROTOINFO_TCP: u16 = 1;
    pub const TCP_STATE: u16 = 1;
    pub const TCP_WSCALE_ORIGINAL: u16 = 2;
    pub const TCP_WSCALE_REPLY: u16 = 3;
    pub const TCP_FLAGS_ORIGINAL: u16 = 4;
    pub const TCP_FLAGS_REPLY: u16 = 5;

    pub const COUNTERS_PACKETS: u16 = 1;
    pub const COUNTERS_BYTES: u16 = 2;

    pub const HELP_NAME: u16 = 1;
}

/// What cannot be read in a message about a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A tuple is missing, or lacks a part that all tuples have.
    #[error("a connection lacks its {0} tuple, or an address or the protocol there")]
    Tuple(&'static str),
    /// An attribute is too short for its type, by its number.
    #[error("the attribute {0} of a connection is too short")]
    Attribute(u16),
    /// The message ends within an attribute.
    #[error("a message about a connection ends within an attribute")]
    End,
}

/// Reads a connection from the body of a message (`ctnetlink_fill_info`). Unknown attributes are skipped.
///
/// # Errors
/// The message lacks a tuple, has an attribute that is too short, or ends within one.
pub fn read(body: &[u8]) -> Result<Connection, Malformed> {
    let (mut original, mut reply) = (None, None);
    let mut zones = [None; 2];
    let mut rest = Rest::default();
    let mut end = HEADER;
    for attribute in attributes(body, HEADER) {
        end += (NLA_HEADER + attribute.value.len()).next_multiple_of(NLA_HEADER);
        let read = match attribute.kind {
            cta::TUPLE_ORIG => tuple(attribute, &mut zones[0]).map(|tuple| original = Some(tuple)),
            cta::TUPLE_REPLY => tuple(attribute, &mut zones[1]).map(|tuple| reply = Some(tuple)),
            _ => rest.read(attribute),
        };
        read.ok_or(Malformed::Attribute(attribute.kind))?;
    }
    // What is missing behind it may be what keeps the connection on the kernel path.
    if end < body.len() {
        return Err(Malformed::End);
    }
    let counters = rest.counters();
    let Rest { status, tcp, timeout_s, mark, zone, id, helper, labels, .. } = rest;
    Ok(Connection {
        original: original.ok_or(Malformed::Tuple("original"))?,
        reply: reply.ok_or(Malformed::Tuple("reply"))?,
        status,
        tcp,
        timeout_s,
        mark,
        zone: zones[0].unwrap_or(zone),
        reply_zone: zones[1].unwrap_or(zone),
        id,
        helper,
        labels,
        counters,
        has_seq_adjust: rest.has_seq_adjust,
        has_synproxy: rest.has_synproxy,
    })
}

/// What a connection has beside its tuples.
#[derive(Default)]
struct Rest {
    status: Status,
    tcp: Option<TcpInfo>,
    timeout_s: Option<u32>,
    mark: u32,
    zone: u16,
    id: u32,
    helper: Option<String>,
    labels: Labels,
    original: Option<Counter>,
    reply: Option<Counter>,
    has_seq_adjust: bool,
    has_synproxy: bool,
}

impl Rest {
    /// Reads an attribute; none if it is too short.
    fn read(&mut self, attribute: Attribute<'_>) -> Option<()> {
        match attribute.kind {
            cta::STATUS => self.status = Status(u32_be(attribute)?),
            cta::PROTOINFO => self.tcp = tcp(attribute)?,
            cta::HELP => self.helper = child(attribute, cta::HELP_NAME).map(|name| name.text()),
            cta::TIMEOUT => self.timeout_s = Some(u32_be(attribute)?),
            cta::MARK => self.mark = u32_be(attribute)?,
            cta::COUNTERS_ORIG => self.original = Some(counter(attribute)?),
            cta::COUNTERS_REPLY => self.reply = Some(counter(attribute)?),
            cta::ID => self.id = u32_be(attribute)?,
            cta::SEQ_ADJ_ORIG | cta::SEQ_ADJ_REPLY => self.has_seq_adjust = true,
            cta::ZONE => self.zone = u16_be(attribute)?,
            cta::LABELS => self.labels = labels(attribute.value)?,
            // Connections that a program has made have room for it, and zeros there.
            cta::SYNPROXY => {
                let mut parts = attribute.nested();
                self.has_synproxy = parts.any(|part| part.value.iter().any(|byte| *byte != 0));
            }
            _ => {}
        }
        Some(())
    }

    fn counters(&self) -> Option<Counters> {
        (self.original.is_some() || self.reply.is_some()).then(|| Counters {
            original: self.original.unwrap_or_default(),
            reply: self.reply.unwrap_or_default(),
        })
    }
}

/// Reads a tuple, and the zone of its direction if the other direction has another one.
fn tuple(nest: Attribute<'_>, zone: &mut Option<u16>) -> Option<Tuple> {
    let (mut ends, mut l4) = (None, None);
    for attribute in nest.nested() {
        match attribute.kind {
            cta::TUPLE_IP => ends = Some(addresses(attribute)?),
            cta::TUPLE_PROTO => l4 = Some(protocol(attribute)?),
            cta::TUPLE_ZONE => *zone = Some(u16_be(attribute)?),
            _ => {}
        }
    }
    let ((source, destination), (protocol, l4)) = (ends?, l4?);
    Some(Tuple { source, destination, protocol, l4 })
}

fn addresses(nest: Attribute<'_>) -> Option<(IpAddr, IpAddr)> {
    let (mut source, mut destination) = (None, None);
    for attribute in nest.nested() {
        let address = attribute.address();
        match (attribute.kind, address?) {
            (cta::IP_V4_SRC, IpAddr::V4(_)) | (cta::IP_V6_SRC, IpAddr::V6(_)) => source = address,
            (cta::IP_V4_DST, IpAddr::V4(_)) | (cta::IP_V6_DST, IpAddr::V6(_)) => {
                destination = address;
            }
            _ => return None,
        }
    }
    let (source, destination) = (source?, destination?);
    (source.is_ipv4() == destination.is_ipv4()).then_some((source, destination))
}

fn protocol(nest: Attribute<'_>) -> Option<(u8, TupleL4)> {
    let (mut number, mut ports, mut icmp) = (None, [None; 2], (None, 0, 0));
    for attribute in nest.nested() {
        match attribute.kind {
            cta::PROTO_NUM => number = Some(attribute.u8()?),
            cta::PROTO_SRC_PORT => ports[0] = Some(u16_be(attribute)?),
            cta::PROTO_DST_PORT => ports[1] = Some(u16_be(attribute)?),
            cta::PROTO_ICMP_ID | cta::PROTO_ICMPV6_ID => icmp.0 = Some(u16_be(attribute)?),
            cta::PROTO_ICMP_TYPE | cta::PROTO_ICMPV6_TYPE => icmp.1 = attribute.u8()?,
            cta::PROTO_ICMP_CODE | cta::PROTO_ICMPV6_CODE => icmp.2 = attribute.u8()?,
            _ => {}
        }
    }
    let l4 = match (ports, icmp) {
        ([Some(source), Some(destination)], _) => TupleL4::Ports { source, destination },
        (_, (Some(id), kind, code)) => TupleL4::Icmp { id, kind, code },
        _ => TupleL4::None,
    };
    Some((number?, l4))
}

/// What is known of TCP; inside, none for other protocols.
fn tcp(nest: Attribute<'_>) -> Option<Option<TcpInfo>> {
    let Some(nest) = child(nest, cta::PROTOINFO_TCP) else { return Some(None) };
    let mut info = TcpInfo {
        state: TcpState::None,
        original_wscale: None,
        reply_wscale: None,
        original_flags: None,
        reply_flags: None,
    };
    for attribute in nest.nested() {
        let number = attribute.u8()?;
        match attribute.kind {
            cta::TCP_STATE => info.state = TcpState::from_number(number),
            cta::TCP_WSCALE_ORIGINAL => info.original_wscale = Some(number),
            cta::TCP_WSCALE_REPLY => info.reply_wscale = Some(number),
            cta::TCP_FLAGS_ORIGINAL => info.original_flags = Some(TcpFlags(number)),
            cta::TCP_FLAGS_REPLY => info.reply_flags = Some(TcpFlags(number)),
            _ => {}
        }
    }
    Some(Some(info))
}

fn counter(nest: Attribute<'_>) -> Option<Counter> {
    let mut counter = Counter::default();
    for attribute in nest.nested() {
        match attribute.kind {
            cta::COUNTERS_PACKETS => counter.packets = u64_be(attribute)?,
            cta::COUNTERS_BYTES => counter.bytes = u64_be(attribute)?,
            _ => {}
        }
    }
    Some(counter)
}

/// The kernel sends 128 bits as words of its own byte order, the lowest first.
fn labels(value: &[u8]) -> Option<Labels> {
    let (low, rest) = value.split_first_chunk()?;
    let high = rest.first_chunk()?;
    let [low, high] = [low, high].map(|word| u128::from(u64::from_ne_bytes(*word)));
    Some(Labels(low | high << 64))
}

fn child(nest: Attribute<'_>, kind: u16) -> Option<Attribute<'_>> {
    nest.nested().find(|attribute| attribute.kind == kind)
}

fn u16_be(attribute: Attribute<'_>) -> Option<u16> {
    attribute.value.first_chunk().map(|bytes| u16::from_be_bytes(*bytes))
}

fn u32_be(attribute: Attribute<'_>) -> Option<u32> {
    attribute.value.first_chunk().map(|bytes| u32::from_be_bytes(*bytes))
}

fn u64_be(attribute: Attribute<'_>) -> Option<u64> {
    attribute.value.first_chunk().map(|bytes| u64::from_be_bytes(*bytes))
}

/// The body of a request for the connections of a family, or of all (`struct nfgenmsg`).
pub fn header(family: Option<u8>) -> [u8; HEADER] {
    [family.unwrap_or(libc::AF_UNSPEC as u8), 0, 0, 0]
}

/// The body of a request for the connection that has a tuple in either direction: the kernel looks up
/// whichever tuple it gets (`nf_conntrack_find_get`). None if the addresses are of two families.
#[must_use]
pub fn get(tuple: &Tuple, zone: u16) -> Option<Vec<u8>> {
    let family = if tuple.source.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 };
    let mut body = header(Some(family as u8)).to_vec();
    push_tuple(&mut body, cta::TUPLE_ORIG, tuple)?;
    if zone != 0 {
        push(&mut body, cta::ZONE, &zone.to_be_bytes());
    }
    Some(body)
}

/// Appends a tuple as an attribute of a kind (`CTA_TUPLE_ORIG`, `CTA_TUPLE_REPLY`). None if the addresses are of two
/// families.
#[must_use]
pub fn push_tuple(body: &mut Vec<u8>, kind: u16, tuple: &Tuple) -> Option<()> {
    let (mut ip, mut nest) = (Vec::new(), Vec::new());
    match (tuple.source, tuple.destination) {
        (IpAddr::V4(source), IpAddr::V4(destination)) => {
            push(&mut ip, cta::IP_V4_SRC, &source.octets());
            push(&mut ip, cta::IP_V4_DST, &destination.octets());
        }
        (IpAddr::V6(source), IpAddr::V6(destination)) => {
            push(&mut ip, cta::IP_V6_SRC, &source.octets());
            push(&mut ip, cta::IP_V6_DST, &destination.octets());
        }
        _ => return None,
    }
    push(&mut nest, cta::TUPLE_IP | NESTED, &ip);
    push(&mut nest, cta::TUPLE_PROTO | NESTED, &protocol_bytes(tuple));
    push(body, kind | NESTED, &nest);
    Some(())
}

/// A change of what the kernel knows of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Flags of both sides of TCP: those that are changed, and what they become.
    TcpFlags {
        /// The flags that change.
        mask: TcpFlags,
        /// Their value.
        flags: TcpFlags,
    },
    /// So many seconds to live.
    Timeout(u32),
}

/// The body of a request that changes the connection with a tuple, as [`get`] finds it.
pub fn change(tuple: &Tuple, zone: u16, change: Change) -> Option<Vec<u8>> {
    let mut body = get(tuple, zone)?;
    match change {
        Change::TcpFlags { mask, flags } => {
            // `struct nf_ct_tcp_flags`.
            let of_side = [flags.0, mask.0];
            let (mut tcp, mut nest) = (Vec::new(), Vec::new());
            push(&mut tcp, cta::TCP_FLAGS_ORIGINAL, &of_side);
            push(&mut tcp, cta::TCP_FLAGS_REPLY, &of_side);
            push(&mut nest, cta::PROTOINFO_TCP | NESTED, &tcp);
            push(&mut body, cta::PROTOINFO | NESTED, &nest);
        }
        Change::Timeout(seconds) => push(&mut body, cta::TIMEOUT, &seconds.to_be_bytes()),
    }
    Some(body)
}

fn protocol_bytes(tuple: &Tuple) -> Vec<u8> {
    let mut bytes = Vec::new();
    push(&mut bytes, cta::PROTO_NUM, &[tuple.protocol]);
    match tuple.l4 {
        TupleL4::Ports { source, destination } => {
            push(&mut bytes, cta::PROTO_SRC_PORT, &source.to_be_bytes());
            push(&mut bytes, cta::PROTO_DST_PORT, &destination.to_be_bytes());
        }
        TupleL4::Icmp { id, kind, code } => {
            let first = match tuple.source {
                IpAddr::V4(_) => cta::PROTO_ICMP_ID,
                IpAddr::V6(_) => cta::PROTO_ICMPV6_ID,
            };
            push(&mut bytes, first, &id.to_be_bytes());
            push(&mut bytes, first + 1, &[kind]);
            push(&mut bytes, first + 2, &[code]);
        }
        TupleL4::None => {}
    }
    bytes
}
