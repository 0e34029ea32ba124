//! What a rule says, before it is brought to the intermediate form.

use std::net::IpAddr;
use std::ops::Range;

/// A rule as read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) number: u16,
    pub(super) set: u8,
    pub(super) span: Range<usize>,
    pub(super) line: usize,
    /// In one line, comment and all.
    pub(super) text: String,
    pub(super) log: bool,
    pub(super) action: Action,
    /// What the action is in the words of the log.
    pub(super) deed: String,
    /// All have to hold, each where one of its terms does.
    pub(super) blocks: Vec<Vec<Term>>,
    /// Packets and bytes that it begins with.
    pub(super) counts: (u64, u64),
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    Deny,
    Reject(Told),
    Count,
    Skipto(u16),
    Call(u16),
    Return,
    Forward(IpAddr),
    Fib(u32),
    Dscp(u8),
    /// To a pipe or queue of dummynet, which is not there yet.
    Pipe,
}

/// What the sender is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Told {
    Unreach(u8),
    Unreach6(u8),
    Reset,
    Reset6,
}

/// A test, or what it must not be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) not: bool,
    pub(super) test: Test,
}

/// Ranges of numbers, both ends included.
pub(super) type Ranges = Vec<(u16, u16)>;

/// Whose address or port.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Side {
    Source,
    Destination,
}

/// Which link is asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    Recv,
    Xmit,
    Via,
}

/// How a link is named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Links {
    Any,
    Name(String),
    Prefix(String),
    Table(String, Option<u32>),
}

/// What `lookup` looks up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    Address(Side),
    Port(Side),
    Dscp,
}

/// A test of a packet: an opcode of `ip_fw2.c`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    Any,
    Version(u8),
    Protocol(u8),
    /// Addresses, each with the bits that count.
    Four(Side, Vec<(u32, u32)>),
    /// Addresses with their lengths.
    Six(Side, Vec<(u128, u8)>),
    Table(Side, String, Option<u32>),
    Lookup(Lookup, String),
    Ports(Side, Ranges),
    In,
    Layer2,
    Link(Which, Links),
    Fragment(Bits),
    TcpFlags(Bits),
    Established,
    Icmp(Vec<u8>),
    Icmp6(Vec<u8>),
    Length(Ranges),
    Ttl(Ranges),
    Id(Ranges),
    Tos(Bits),
    Precedence(u8),
    Dscp(Vec<u8>),
    TcpData(Ranges),
    TcpSequence(u32),
    TcpAck(u32),
    TcpWindow(Ranges),
    /// Destination and source, each with the bits that count.
    Mac([(u64, u64); 2]),
    EtherType(Ranges),
}

/// Bits that have to be set, and such that have to be clear.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Bits {
    pub(super) set: u8,
    pub(super) clear: u8,
}

impl Term {
    pub(super) fn is(test: Test) -> Self {
        Self { not: false, test }
    }
}
