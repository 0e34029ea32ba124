use crate::burst::{BURST, Burst, Lanes};
use crate::frame::Umem;
use crate::tables::PortRecord;
use crate::verdict::{DropReason, Verdict};
use crate::wire::eth::{self, EthView, MacWord, ethertype};

/// The frames that go on, by what they carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Untagged IPv4 to the port's address.
    pub ip4: Lanes,
    /// Untagged IPv6 to the port's address.
    pub ip6: Lanes,
    /// Tagged, to whomever: the address is looked at when the link is known.
    pub tagged: Lanes,
}

/// Sorts the burst's frames; those that are not admitted leave with a verdict.
#[inline(always)]
pub fn run(burst: &mut Burst, umem: &Umem, port: &PortRecord) -> Admitted {
    let all = burst.lanes();
    let mac = port.mac;
    burst.l3 = [eth::LEN as u8; BURST];
    burst.link = [port.link; BURST];
    // Most bursts carry one ethertype, so the first frame's is the one to compare with.
    let first = EthView(umem.bytes(burst.addr[0], 0)).ethertype();
    let mut rest = Lanes::NONE;
    for lane in 0..burst.count.min(BURST) {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        if eth.dst() != mac || eth.ethertype() != first {
            rest.put_odd(lane);
        }
    }
    let alike = all.without(rest);
    let mut admitted = Admitted::default();
    match first {
        ethertype::IPV4 => admitted.ip4 = alike,
        ethertype::IPV6 => admitted.ip6 = alike,
        ethertype::DOT1Q | ethertype::DOT1AD => admitted.tagged = alike,
        _ => return sort(burst, umem, mac, all, admitted),
    }
    if rest.is_empty() { admitted } else { sort(burst, umem, mac, rest, admitted) }
}

/// Sorts the frames of a mixed burst.
fn sort(
    burst: &mut Burst,
    umem: &Umem,
    mac: MacWord,
    lanes: Lanes,
    mut admitted: Admitted,
) -> Admitted {
    let mut rest = Lanes::NONE;
    for lane in lanes {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        let bit = 1 << lane;
        match (eth.ethertype(), eth.dst() == mac) {
            (ethertype::IPV4, true) => admitted.ip4.0 |= bit,
            (ethertype::IPV6, true) => admitted.ip6.0 |= bit,
            (ethertype::DOT1Q | ethertype::DOT1AD, _) => admitted.tagged.0 |= bit,
            _ => rest.0 |= bit,
        }
    }
    for lane in rest {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        let verdict = explain(eth, burst.len[lane], eth.ethertype(), mac);
        burst.leave(lane, verdict);
    }
    admitted
}

/// The verdict for a frame that does not go on: `ethertype` is the one behind any tags, `mac` the
/// address of the link that it arrived on.
#[cold]
pub fn explain(eth: EthView<'_>, len: u16, ethertype: u16, mac: MacWord) -> Verdict {
    if usize::from(len) < eth::LEN {
        return Verdict::Drop(DropReason::PktTooSmall);
    }
    if eth.dst() != mac && !eth.is_group() {
        return Verdict::Drop(DropReason::OtherHost);
    }
    match ethertype {
        ethertype::ARP | ethertype::IPV4 | ethertype::IPV6 => Verdict::Local,
        _ => Verdict::Drop(DropReason::UnhandledProto),
    }
}
