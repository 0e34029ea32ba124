use super::MAX_TAGS;
use super::table::{InnerLinks, InnerTag, PortRecord, VlanEntry, VlanLinks};
use crate::burst::{BURST, Burst, Lanes};
use crate::features::Features;
use crate::frame::Umem;
use crate::id::LinkId;
use crate::links::{LinkRecord, Links};
use crate::stages::admit::{self, Admitted};
use crate::verdict::{DropReason, Verdict};
use crate::wire::eth::{self, EthView, MacWord, TagKind, TwoTagsKind, TwoTagsView, ethertype};
use crate::wire::vlan::{self, TagView};

/// The packets that continue, by family.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Classified {
    /// IPv4.
    pub ip4: Lanes,
    /// IPv6.
    pub ip6: Lanes,
}

impl Classified {
    /// Adds packets of a family.
    #[inline(always)]
    fn add(&mut self, ethertype: u16, lanes: Lanes) {
        match ethertype {
            ethertype::IPV4 => self.ip4 = self.ip4.or(lanes),
            _ => self.ip6 = self.ip6.or(lanes),
        }
    }
}

/// Bytes of an Ethernet header with one tag, and with two.
const TAGGED: usize = eth::LEN + vlan::LEN;
const TWICE_TAGGED: usize = TAGGED + vlan::LEN;

/// Finds each frame's link and FIB root; untagged frames have those of their port.
#[inline(always)]
pub(crate) fn run<F: Features>(
    burst: &mut Burst,
    umem: &Umem,
    links: &Links,
    port: &PortRecord,
    mut admitted: Admitted,
) -> Classified {
    if !F::VLAN && !admitted.tagged.is_empty() {
        let unsorted = std::mem::take(&mut admitted.tagged);
        admitted = admit::sort(burst, umem, port.mac, unsorted, admitted);
        for lane in admitted.tagged {
            burst.exit(lane, Verdict::Drop(DropReason::VlanUnknown));
        }
    }
    let mut classified = Classified { ip4: admitted.ip4, ip6: admitted.ip6 };
    if F::VLAN && !admitted.tagged.is_empty() {
        untag(burst, umem, links, port, admitted, &mut classified);
    } else if classified.ip6.is_empty() {
        burst.root = [port.root4; BURST];
    } else {
        burst.root = [port.root6; BURST];
        for lane in classified.ip4 {
            burst.root[lane] = port.root4;
        }
    }
    classified
}

/// Looks up frames with one tag, the usual number, or two. One loop handles all those with the same tag
/// protocols and ethertype. Frames without a tag are sorted like in `admit`; those with more tags, or
/// priority tags, are walked one by one.
#[inline(always)]
fn untag(
    burst: &mut Burst,
    umem: &Umem,
    links: &Links,
    port: &PortRecord,
    mut admitted: Admitted,
    classified: &mut Classified,
) {
    let (mut rest, mut rare) = (admitted.tagged, Lanes::NONE);
    while let Some(lane) = rest.lowest() {
        let first = EthView(umem.bytes(burst.addr[lane], 0));
        let kind = first.kind();
        if !ethertype::is_vlan(kind.protocol()) {
            admitted.tagged = Lanes::NONE;
            admitted = admit::sort(burst, umem, port.mac, rest, admitted);
            rest = admitted.tagged;
            continue;
        }
        let Some(vlans) = port.vlans.of(kind.protocol()) else {
            rare = rare.or(rest);
            break;
        };
        if ethertype::is_vlan(kind.ethertype()) {
            let first = TwoTagsView(umem.bytes(burst.addr[lane], 0)).kind();
            if !is_ip(first.ethertype()) {
                rare.insert_rare(lane);
                rest = rest.without(rare);
                continue;
            }
            let inner = port.vlans.inner();
            let (others, strays) = match vlans.own_macs {
                false => {
                    untag_twice::<false>(burst, umem, links, (port.mac, vlans, inner), first, rest)
                }
                true => {
                    untag_twice::<true>(burst, umem, links, (port.mac, vlans, inner), first, rest)
                }
            };
            classified.add(first.ethertype(), rest.without(others).without(strays));
            rare = rare.or(strays);
            rest = others;
            continue;
        }
        if !is_ip(kind.ethertype()) {
            rare.insert_rare(lane);
            rest = rest.without(rare);
            continue;
        }
        let (others, strays) = match (vlans.own_macs, rest.dense()) {
            (false, Some(range)) => {
                untag_alike::<false>(burst, umem, links, port.mac, vlans, kind, range)
            }
            (false, None) => untag_alike::<false>(burst, umem, links, port.mac, vlans, kind, rest),
            (true, _) => untag_alike::<true>(burst, umem, links, port.mac, vlans, kind, rest),
        };
        classified.add(kind.ethertype(), rest.without(others).without(strays));
        rare = rare.or(strays);
        rest = others;
    }
    for lane in admitted.ip4 {
        burst.root[lane] = port.root4;
    }
    for lane in admitted.ip6 {
        burst.root[lane] = port.root6;
    }
    classified.ip4 = classified.ip4.or(admitted.ip4);
    classified.ip6 = classified.ip6.or(admitted.ip6);
    if !rare.is_empty() {
        walk_all(burst, umem, links, port, rare, classified);
    }
}

const fn is_ip(ethertype: u16) -> bool {
    matches!(ethertype, ethertype::IPV4 | ethertype::IPV6)
}

/// As [`untag_alike`], for frames with two tags.
#[inline(never)]
fn untag_twice<const OWN_MACS: bool>(
    burst: &mut Burst,
    umem: &Umem,
    links: &Links,
    (port_mac, vlans, inner): (MacWord, VlanLinks<'_>, &InnerLinks),
    kind: TwoTagsKind,
    lanes: Lanes,
) -> (Lanes, Lanes) {
    let (mut others, mut strays) = (Lanes::NONE, Lanes::NONE);
    let is_ip4 = kind.ethertype() == ethertype::IPV4;
    for lane in lanes {
        let eth = TwoTagsView(umem.bytes(burst.addr[lane], 0));
        if eth.kind() != kind {
            others.insert_rare(lane);
            continue;
        }
        let [outer, vid] = eth.vids();
        // No link is on top of the one that stands for none.
        let entry = inner.get(InnerTag::new(vlans.get(outer).link, kind.inner(), vid));
        let mac = EthView(umem.bytes(burst.addr[lane], 0)).dst();
        if !arrives::<OWN_MACS>(burst, links, port_mac, (lane, mac), entry, (TWICE_TAGGED, is_ip4))
        {
            strays.insert_rare(lane);
        }
    }
    (others, strays)
}

/// Gives a frame the link of an entry, if there is one, and the frame is for its address; says whether it has.
#[inline(always)]
fn arrives<const OWN_MACS: bool>(
    burst: &mut Burst,
    links: &Links,
    port_mac: MacWord,
    (lane, dst): (usize, MacWord),
    entry: &VlanEntry,
    (l3, is_ip4): (usize, bool),
) -> bool {
    if !entry.is_some() {
        return false;
    }
    let mac = if OWN_MACS { links[entry.link].mac } else { port_mac };
    if dst != mac {
        return false;
    }
    burst.l3[lane] = l3 as u8;
    burst.link[lane] = entry.link;
    burst.root[lane] = if is_ip4 { entry.root4 } else { entry.root6 };
    true
}

/// Looks up frames of one kind; returns those of other kinds, and those to be walked.
///
/// The loop compares with the port's address, unless links have their own addresses (`OWN_MACS`).
#[inline(never)]
fn untag_alike<const OWN_MACS: bool>(
    burst: &mut Burst,
    umem: &Umem,
    links: &Links,
    port_mac: MacWord,
    vlans: VlanLinks<'_>,
    kind: TagKind,
    lanes: impl IntoIterator<Item = usize>,
) -> (Lanes, Lanes) {
    let (mut others, mut strays) = (Lanes::NONE, Lanes::NONE);
    let is_ip4 = kind.ethertype() == ethertype::IPV4;
    for lane in lanes {
        let eth = EthView(umem.bytes(burst.addr[lane], 0));
        if eth.kind() != kind {
            others.insert_rare(lane);
            continue;
        }
        let entry = vlans.get(eth.vid());
        let mac = eth.dst();
        if !arrives::<OWN_MACS>(burst, links, port_mac, (lane, mac), entry, (TAGGED, is_ip4)) {
            strays.insert_rare(lane);
        }
    }
    (others, strays)
}

/// Walks the tags of frames that the straight loop did not handle.
#[cold]
fn walk_all(
    burst: &mut Burst,
    umem: &Umem,
    links: &Links,
    port: &PortRecord,
    lanes: Lanes,
    classified: &mut Classified,
) {
    for lane in lanes {
        let (addr, len) = (burst.addr[lane], burst.len[lane]);
        let walked = walk(umem.frame(addr, usize::from(len)), links, port.link);
        burst.l3[lane] = walked.l3;
        burst.link[lane] = walked.link;
        let link = &links[walked.link];
        match walked.outcome {
            Ok(ethertype) => {
                let eth = EthView(umem.bytes(addr, 0));
                let mine = eth.dst() == link.mac;
                enter(burst, link, lane, ethertype, mine, classified, || {
                    admit::explain(eth, len, ethertype, link.mac)
                });
            }
            Err(reason) => burst.exit(lane, Verdict::Drop(reason)),
        }
    }
}

/// Adds a packet to those that continue, or gives it the verdict from `explain`.
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
        _ => burst.exit(lane, explain()),
    }
}

/// The result of walking a frame's tags.
struct Walk {
    l3: u8,
    link: LinkId,
    /// The ethertype after the last tag.
    outcome: Result<u16, DropReason>,
}

fn walk(frame: &[u8], links: &Links, port_link: LinkId) -> Walk {
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
            vid => match links.vlan(link, protocol, vid) {
                Some(inner) => link = inner,
                None => {
                    return Walk { l3: l3 as u8, link, outcome: Err(DropReason::VlanUnknown) };
                }
            },
        }
    }
    Walk { l3: l3 as u8, link, outcome: Err(DropReason::VlanTooDeep) }
}
