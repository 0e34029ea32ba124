//! Expressions that translate addresses.

use super::super::expression::{Nat, NatKind, Register};
use super::{Act, RuleReader, Value, number};
use tollway_firewall::ir::{NatRange, NatTarget, NatVerdict};

/// `NF_NAT_RANGE_*`: that there are addresses or ports, and flags of a statement.
const MAP_IPS: u32 = 1;
const PROTO_SPECIFIED: u32 = 1 << 1;
const PROTO_RANDOM: u32 = 1 << 2;
const PERSISTENT: u32 = 1 << 3;
const PROTO_RANDOM_FULLY: u32 = 1 << 4;
const NETMAP: u32 = 1 << 6;

impl Nat {
    /// Says whether its address, or its port without one, is in a register.
    pub(super) fn reads(&self, from: Register) -> bool {
        let first = self.addresses.or(self.ports).map(|(first, _)| first);
        first == Some(from)
    }
}

impl RuleReader<'_> {
    /// What an expression with constants translates to.
    pub(super) fn nat(&self, nat: &Nat) -> Option<Act> {
        self.connections()?;
        let known =
            MAP_IPS | PROTO_SPECIFIED | PROTO_RANDOM | PERSISTENT | PROTO_RANDOM_FULLY | NETMAP;
        if nat.flags & !known != 0 {
            return None;
        }
        let version = match nat.kind {
            NatKind::Source(version) | NatKind::Destination(version) => Some(version),
            NatKind::Masquerade | NatKind::Redirect => self.sets.version(),
        };
        let bytes = if version == Some(4) { 4 } else { 16 };
        let addresses = match nat.addresses {
            Some((first, last)) => {
                Some((self.constant(first, bytes)?, self.constant(last, bytes)?))
            }
            None => None,
        };
        let port = |register| self.constant(register, 2).map(|port| port as u16);
        let ports = match nat.ports {
            Some((first, last)) => Some((port(first)?, port(last)?)),
            None => None,
        };
        let is_netmap = nat.flags & NETMAP != 0;
        let target = match (nat.kind, is_netmap, addresses) {
            (NatKind::Masquerade, ..) => NatTarget::Masquerade,
            (NatKind::Redirect, ..) => NatTarget::Redirect,
            (NatKind::Source(_), true, Some((first, last))) => {
                NatTarget::SourceNetwork(first, last)
            }
            (NatKind::Destination(_), true, Some((first, last))) => {
                NatTarget::DestinationNetwork(first, last)
            }
            (NatKind::Source(_), _, addresses) => NatTarget::Source(addresses),
            (NatKind::Destination(_), _, addresses) => NatTarget::Destination(addresses),
        };
        let range = NatRange {
            target,
            ports,
            is_random: nat.flags & (PROTO_RANDOM | PROTO_RANDOM_FULLY) != 0,
            is_persistent: nat.flags & PERSISTENT != 0,
        };
        Some(Act::Nat(NatVerdict { version, range }))
    }

    /// A constant of this many bytes in a register.
    fn constant(&self, from: Register, bytes: u32) -> Option<u128> {
        match self.value(from)? {
            Value::Number(data) => number(data, bytes),
            Value::Load { .. } => None,
        }
    }
}
