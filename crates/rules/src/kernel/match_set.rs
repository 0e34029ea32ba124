//! The match `set` of iptables (`include/uapi/linux/netfilter/xt_set.h`, revisions 1, 2 and 4).

use super::condition::{Load, Lookup, Test};
use super::expression::Expression;
use tollway_firewall::ir::PayloadBase;

/// A lookup of one address of a packet in a set of ipset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SetLookup {
    /// The kernel's number of the set.
    pub(super) index: u16,
    is_source: bool,
    pub(super) negate: bool,
}

/// Parses the match; `None` if it is another one, or looks up more than an address.
pub(super) fn read(name: &str, revision: u32, info: &[u8]) -> Option<SetLookup> {
    /// `IPSET_INV_MATCH`, `IPSET_DIM_ONE_SRC`, as bits.
    const NEGATE: u8 = 1;
    const SOURCE: u8 = 2;
    /// `IPSET_FLAG_SKIP_COUNTER_UPDATE`, `IPSET_FLAG_SKIP_SUBCOUNTER_UPDATE`.
    const SKIPS: u32 = 8 | 16;
    // struct xt_set_info: index, dim, flags.
    let ([i0, i1, dimensions, flags], _) = info.split_first_chunk::<4>()?;
    let is_plain = match (name, revision) {
        ("set", 1 | 2) => true,
        // struct xt_set_info_match_v4: packets.op, bytes.op, flags.
        ("set", 4) => {
            let more = u32::from_ne_bytes(*info.get(40..)?.first_chunk()?);
            info.get(16) == Some(&0) && info.get(32) == Some(&0) && more & !SKIPS == 0
        }
        _ => return None,
    };
    if !is_plain || *dimensions != 1 || flags & !(NEGATE | SOURCE) != 0 {
        return None;
    }
    Some(SetLookup {
        index: u16::from_ne_bytes([*i0, *i1]),
        is_source: flags & SOURCE != 0,
        negate: flags & NEGATE != 0,
    })
}

impl SetLookup {
    /// The lookup of an expression, if it is one.
    pub(super) fn of(expression: &Expression) -> Option<Self> {
        match expression {
            Expression::Match { name, revision, info } => read(name, *revision, info),
            _ => None,
        }
    }

    /// nft's name of the field.
    pub(super) const fn field(&self) -> &'static str {
        if self.is_source { "saddr" } else { "daddr" }
    }

    /// The match as a condition on packets of a version of IP.
    pub(super) fn test(&self, set: String, version: u8) -> Test {
        let (offset, bytes) = match (version, self.is_source) {
            (4, true) => (12, 4),
            (4, false) => (16, 4),
            (_, true) => (8, 16),
            (_, false) => (24, 16),
        };
        let keys = vec![Load::payload(PayloadBase::Network, offset, bytes)];
        Test::Set { keys, set: Lookup::Named(set), negate: self.negate }
    }
}
