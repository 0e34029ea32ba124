//! A rule as parsed, before its translation to the intermediate form.

use std::net::IpAddr;

use crate::ir::StateLimit;
use crate::mistake::Span;

/// A parsed rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Rule {
    pub(super) number: u16,
    pub(super) set: u8,
    pub(super) span: Span,
    pub(super) line: usize,
    /// The rule on one line, including its comment.
    pub(super) text: String,
    pub(super) log: bool,
    pub(super) action: Action,
    /// The log's name of the action.
    pub(super) log_name: String,
    /// All blocks must hold, each by at least one of its terms.
    pub(super) blocks: Vec<Vec<Term>>,
    /// The state that it keeps, if so.
    pub(super) keep: Option<Keep>,
    /// Initial packets and bytes.
    pub(super) counts: (u64, u64),
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Action {
    Allow,
    Deny,
    CheckState(StateOf),
    Reject(RejectKind),
    Count,
    Skipto(u16),
    Call(u16),
    Return,
    Forward(IpAddr),
    Fib(u32),
    Dscp(u8),
    /// By an instance; by the first that knows the packet without a number.
    Nat(Option<u16>),
    /// To a pipe or queue of dummynet, which Tollway does not support yet.
    Pipe,
}

/// How a rule keeps states.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keep {
    pub(super) name: String,
    pub(super) limit: Option<StateLimit>,
    /// Whether packets that come to the rule are checked for states of that name first, even if they do not match
    /// the rule.
    pub(super) checks: bool,
    /// Whether only packets with a state meet the action.
    pub(super) defers: bool,
}

/// The states for which a packet is checked.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum StateOf {
    Any,
    Name(String),
}

impl Rule {
    /// The states for which packets that come to the rule are checked.
    pub(super) fn checks(&self) -> Option<StateOf> {
        match (&self.action, &self.keep) {
            (Action::CheckState(of), _) => Some(of.clone()),
            (_, Some(keep)) if keep.checks => Some(StateOf::Name(keep.name.clone())),
            _ => None,
        }
    }
}

/// How a packet is rejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum RejectKind {
    Unreach(u8),
    Unreach6(u8),
    Reset,
    Reset6,
}

/// A test, or its inverse.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Term {
    pub(super) not: bool,
    pub(super) test: Test,
}

/// Ranges of numbers, both ends included.
pub(super) type Ranges = Vec<(u16, u16)>;

/// The side whose address or port is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Side {
    Source,
    Destination,
}

/// The link that is tested.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LinkSelector {
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

/// The field that `lookup` looks up.
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
    /// Addresses, each with the bits that matter.
    Four(Side, Vec<(u32, u32)>),
    /// Prefixes: addresses with their lengths.
    Six(Side, Vec<(u128, u8)>),
    Table(Side, String, Option<u32>),
    Lookup(Lookup, String),
    Ports(Side, Ranges),
    In,
    Layer2,
    Link(LinkSelector, Links),
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
    /// Destination and source, each with the bits that matter.
    Mac([(u64, u64); 2]),
    EtherType(Ranges),
}

/// Bits that must be set, and bits that must be clear.
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
