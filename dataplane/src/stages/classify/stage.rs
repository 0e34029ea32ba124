use super::MAX_TAGS;
use super::table::VlanLinks;
use crate::burst::{BURST, Burst, Lanes};
use crate::frame::Umem;
use crate::id::LinkId;
use crate::path::Features;
use crate::stages::admit::{self, Admitted};
use crate::tables::{LinkRecord, PortRecord, Tables};
use crate::verdict::{DropReason, Verdict};
use crate::wire::eth::{self, EthView, ethertype};
use crate::wire::vlan::{self, TagView};

/// The packets that go on, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classified {
    /// IPv4.
    pub ip4: Lanes,
    /// IPv6.
    pub ip6: Lanes,
}

/// Bytes of an Ethernet header with one tag.
const TAGGED: usize = eth::LEN + vlan::LEN;

/// Finds each frame's link and FIB root; untagged frames have their port's.
#[inline(always)]
pub fn run<F: Features>(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    port: &PortRecord,
    admitted: Admitted,
) -> Classified {
    let mut classified = Classified { ip4: admitted.ip4, ip6: admitted.ip6 };
    if admitted.ip6.is_empty() {
        burst.root = [port.root4; BURST];
    } else {
        burst.root = [port.root6; BURST];
        for lane in admitted.ip4 {
            burst.root[lane] = port.root4;
        }
    }
    if admitted.tagged.is_empty() {
        return classified;
    }
    if F::VLAN {
        untag(burst, umem, tables, port, admitted.tagged, &mut classified);
    } else {
        for lane in admitted.tagged {
            burst.leave(lane, Verdict::Drop(DropReason::VlanUnknown));
        }
    }
    classified
}

/// Looks up frames with one tag, the usual number: those that are alike in tag protocol and
/// ethertype in one loop. The others are walked one by one.
#[inline(always)]
fn untag(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    port: &PortRecord,
    tagged: Lanes,
    classified: &mut Classified,
) {
    let vlans = &tables.link(port.link).vlans;
    let (mut rest, mut odd) = (tagged, Lanes::NONE);
    while let Some(lane) = rest.lowest() {
        let first = EthView(umem.bytes(burst.addr[lane], 0));
        let kind = Kind { protocol: first.ethertype(), ethertype: first.tag().ethertype };
        let Some(links) = vlans.of(kind.protocol).filter(|_| kind.is_ip()) else {
            odd = odd.or(rest);
            break;
        };
        let (others, strays) = match rest.dense() {
            Some(range) => untag_alike(burst, umem, tables, links, kind, range),
            None => untag_alike(burst, umem, tables, links, kind, rest),
        };
        let done = rest.without(others).without(strays);
        match kind.ethertype {
            ethertype::IPV4 => classified.ip4 = classified.ip4.or(done),
            _ => classified.ip6 = classified.ip6.or(done),
        }
        odd = odd.or(strays);
        rest = others;
    }
    if !odd.is_empty() {
        walk_all(burst, umem, tables, port, odd, classified);
    }
}

/// What tagged frames can be alike in.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Kind {
    /// The tag's protocol.
    protocol: u16,
    /// What is behind the tag.
    ethertype: u16,
}

impl Kind {
    const fn is_ip(self) -> bool {
        matches!(self.ethertype, ethertype::IPV4 | ethertype::IPV6)
    }
}

/// Looks up frames of one kind; returns those of other kinds, and those to be walked.
#[inline(always)]
fn untag_alike(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    links: &VlanLinks,
    kind: Kind,
    lanes: impl IntoIterator<Item = usize>,
) -> (Lanes, Lanes) {
    let (mut others, mut strays) = (Lanes::NONE, Lanes::NONE);
    let is_ip4 = kind.ethertype == ethertype::IPV4;
    for lane in lanes {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        let tag = eth.tag();
        if eth.ethertype() != kind.protocol || tag.ethertype != kind.ethertype {
            others.put_odd(lane);
            continue;
        }
        let Some((id, link)) = links.get(tag.vid()).and_then(|id| tables.find_link(id)) else {
            strays.put_odd(lane);
            continue;
        };
        if eth.dst() != link.mac {
            strays.put_odd(lane);
            continue;
        }
        burst.l3[lane] = TAGGED as u8;
        burst.link[lane] = id;
        burst.root[lane] = if is_ip4 { link.root4 } else { link.root6 };
    }
    (others, strays)
}

/// Walks the tags of frames that the straight loop left.
#[cold]
fn walk_all(
    burst: &mut Burst,
    umem: &Umem,
    tables: &Tables,
    port: &PortRecord,
    lanes: Lanes,
    classified: &mut Classified,
) {
    for lane in lanes {
        let (addr, len) = (burst.addr[lane], burst.len[lane]);
        let walked = walk(umem.frame(addr, usize::from(len)), tables, port.link);
        burst.l3[lane] = walked.l3;
        burst.link[lane] = walked.link;
        let link = tables.link(walked.link);
        match walked.outcome {
            Ok(ethertype) => {
                let eth = EthView(umem.bytes(addr, 0));
                let mine = eth.dst() == link.mac;
                enter(burst, link, lane, ethertype, mine, classified, || {
                    admit::explain(eth, len, ethertype, link.mac)
                });
            }
            Err(reason) => burst.leave(lane, Verdict::Drop(reason)),
        }
    }
}

/// Puts a packet among those that go on, or gives it the verdict that `explain` finds.
fn enter(
    burst: &mut Burst,
    link: &LinkRecord,
    lane: usize,
    ethertype: u16,
    mine: bool,
    classified: &mut Classified,
    explain: impl FnOnce() -> Verdict,
) {
    match (ethertype, mine) {
        (ethertype::IPV4, true) => {
            classified.ip4.0 |= 1 << lane;
            burst.root[lane] = link.root4;
        }
        (ethertype::IPV6, true) => {
            classified.ip6.0 |= 1 << lane;
            burst.root[lane] = link.root6;
        }
        _ => burst.leave(lane, explain()),
    }
}

/// Where the tags of a frame lead.
struct Walk {
    l3: u8,
    link: LinkId,
    /// The ethertype behind the last tag.
    outcome: Result<u16, DropReason>,
}

fn walk(frame: &[u8], tables: &Tables, port_link: LinkId) -> Walk {
    let (mut link, mut l3) = (port_link, eth::LEN);
    for _ in 0..=MAX_TAGS {
        let Some(&[high, low]) = frame.get(l3 - 2..l3).and_then(|bytes| bytes.first_chunk()) else {
            return Walk { l3: l3 as u8, link, outcome: Err(DropReason::PktTooSmall) };
        };
        let protocol = u16::from_be_bytes([high, low]);
        if !ethertype::is_vlan(protocol) {
            return Walk { l3: l3 as u8, link, outcome: Ok(protocol) };
        }
        let Some(tag) = frame.get(l3..).and_then(<[u8]>::first_chunk) else {
            return Walk { l3: l3 as u8, link, outcome: Err(DropReason::PktTooSmall) };
        };
        l3 += vlan::LEN;
        match TagView::new(tag).vid() {
            // A priority tag: the frame belongs to the link without it.
            0 => {}
            vid => match tables.link(link).vlans.get(protocol, vid) {
                Some(inner) => link = inner,
                None => {
                    return Walk { l3: l3 as u8, link, outcome: Err(DropReason::VlanUnknown) };
                }
            },
        }
    }
    Walk { l3: l3 as u8, link, outcome: Err(DropReason::VlanTooDeep) }
}
