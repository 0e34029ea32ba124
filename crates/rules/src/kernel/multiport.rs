//! The match `multiport` of iptables (`include/uapi/linux/netfilter/xt_multiport.h`, revision 1).

use super::condition::{Load, Test};
use tollway_firewall::ir::PayloadBase;

/// The ports of one side of a packet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Ports {
    side: Side,
    pub(super) ranges: Vec<(u16, u16)>,
    pub(super) negate: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Side {
    Source,
    Destination,
}

/// `XT_MULTI_PORTS`.
const MOST: usize = 15;

/// Parses the match; `None` if it is another one, or concerns both sides.
pub(super) fn read(name: &str, revision: u32, info: &[u8]) -> Option<Ports> {
    // struct xt_multiport_v1: flags, count, ports[15], pflags[15], invert.
    let ([flags, count], rest) = info.split_first_chunk::<2>()?;
    let (ports, rest) = rest.split_at_checked(MOST * 2)?;
    let (continued, rest) = rest.split_at_checked(MOST)?;
    let count = usize::from(*count);
    if (name, revision) != ("multiport", 1) || count > MOST {
        return None;
    }
    let side = match flags {
        0 => Side::Source,
        1 => Side::Destination,
        _ => return None,
    };
    let mut ports = ports.chunks_exact(2).map(|port| u16::from_ne_bytes([port[0], port[1]]));
    let mut continued = continued.iter();
    let mut ranges = Vec::new();
    let mut left = count;
    while left > 0 {
        let first = ports.next()?;
        left -= 1;
        let last = match *continued.next()? != 0 {
            true => {
                left = left.checked_sub(1)?;
                continued.next()?;
                ports.next()?
            }
            false => first,
        };
        ranges.push((first, last));
    }
    let negate = *rest.first()? != 0;
    (!ranges.is_empty()).then_some(Ports { side, ranges, negate })
}

impl Ports {
    /// nft's name of the field.
    pub(super) const fn field(&self) -> &'static str {
        match self.side {
            Side::Source => "sport",
            Side::Destination => "dport",
        }
    }

    /// The match as a condition; `None` if it is none.
    pub(super) fn test(&self) -> Option<Test> {
        let offset = match self.side {
            Side::Source => 0,
            Side::Destination => 2,
        };
        let load = Load::payload(PayloadBase::Transport, offset, 2);
        let ranges = self.ranges.iter().map(|(first, last)| ((*first).into(), (*last).into()));
        Some(Test::Ranges { load, ranges: ranges.collect(), negate: self.negate })
    }
}
