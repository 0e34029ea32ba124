//! The match `set` of iptables (`include/uapi/linux/netfilter/xt_set.h`, revisions 1, 2 and 4).

use super::expression::Expression;
use super::field::{Base, Field, Lookup, Test};

/// A lookup of one address of a packet in a set of ipset.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Asked {
    /// The kernel's number of the set.
    pub(super) index: u16,
    is_source: bool,
    pub(super) negate: bool,
}

/// Parses the match; `None` if it is another one, or looks up more than an address.
pub(super) fn read(name: &str, revision: u32, info: &[u8]) -> Option<Asked> {
    /// `IPSET_INV_MATCH`, `IPSET_DIM_ONE_SRC`, `IPSET_RETURN_NOMATCH`, as bits.
    const NEGATE: u8 = 1;
    const SOURCE: u8 = 2;
    const NO_MATCH: u8 = 0x80;
    // struct xt_set_info: index, dim, flags.
    let ([i0, i1, dimensions, flags], _) = info.split_first_chunk::<4>()?;
    let asks_counters = match (name, revision) {
        ("set", 1 | 2) => false,
        // struct xt_set_info_match_v4: packets.op, bytes.op.
        ("set", 4) => [16, 32].iter().any(|at| info.get(*at) != Some(&0)),
        _ => return None,
    };
    if asks_counters || *dimensions != 1 || flags & !(NEGATE | SOURCE | NO_MATCH) != 0 {
        return None;
    }
    Some(Asked {
        index: u16::from_ne_bytes([*i0, *i1]),
        is_source: flags & SOURCE != 0,
        negate: flags & NEGATE != 0,
    })
}

impl Asked {
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
        let keys = vec![Field::whole(Base::Network, offset, bytes)];
        Test::Set { keys, set: Lookup::Named(set), negate: self.negate }
    }
}
