use crate::burst::{BURST, Burst, Lanes};
use crate::frame::Umem;
use crate::id::LinkId;
use crate::verdict::{DropReason, Verdict};
use crate::wire::eth::{self, EthView, MacWord, ethertype};

/// The frames that continue, by what they carry.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Admitted {
    /// Untagged IPv4 to the port's address.
    pub ip4: Lanes,
    /// Untagged IPv6 to the port's address.
    pub ip6: Lanes,
    /// Tagged frames to any address, which classify examines; the whole burst if its first frame is
    /// tagged.
    pub tagged: Lanes,
}

/// Sorts the burst's frames by what they carry; those that are not admitted exit with a verdict. `mac` is
/// the port's address, `link` the link for its untagged frames.
#[inline(always)]
pub fn run(burst: &mut Burst, umem: &Umem, mac: MacWord, link: LinkId) -> Admitted {
    let all = burst.lanes();
    burst.l3 = [eth::LEN as u8; BURST];
    burst.link = [link; BURST];
    // Most bursts carry one ethertype, so the first frame's is the one to compare with.
    let first = EthView(umem.bytes(burst.addr[0], 0)).ethertype();
    if ethertype::is_vlan(first) {
        return Admitted { tagged: all, ..Admitted::default() };
    }
    let mut rest = Lanes::NONE;
    for lane in 0..burst.count.min(BURST) {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        if eth.dst() != mac || eth.ethertype() != first {
            rest.insert_rare(lane);
        }
    }
    let alike = all.without(rest);
    let mut admitted = Admitted::default();
    match first {
        ethertype::IPV4 => admitted.ip4 = alike,
        ethertype::IPV6 => admitted.ip6 = alike,
        _ => rest = all,
    }
    if rest.is_empty() { admitted } else { sort(burst, umem, mac, rest, admitted) }
}

/// Sorts the frames of a mixed burst and adds them to those already admitted.
pub fn sort(
    burst: &mut Burst,
    umem: &Umem,
    mac: MacWord,
    lanes: Lanes,
    mut admitted: Admitted,
) -> Admitted {
    for lane in lanes {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        match (eth.ethertype(), eth.dst() == mac) {
            (ethertype::IPV4, true) => admitted.ip4.put(lane, true),
            (ethertype::IPV6, true) => admitted.ip6.put(lane, true),
            (ethertype::DOT1Q | ethertype::DOT1AD, _) => admitted.tagged.put(lane, true),
            (ethertype, _) => burst.exit(lane, explain(eth, burst.len[lane], ethertype, mac)),
        }
    }
    admitted
}

/// The verdict for a frame that exits: `ethertype` is the one after any tags, `mac` the address of the
/// link that it arrived on.
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
