use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::wire::ipv6::{self, Ipv6View, is_link_local};
use crate::wire::l4;
use crate::wire::word64;

/// IPv6 packets that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Valid6 {
    /// All of them.
    pub lanes: Lanes,
    /// Those whose source must stay on its link: link-local, or unspecified.
    pub scoped: Lanes,
}

impl Valid6 {
    /// The packets that are not in `gone`.
    #[must_use]
    pub const fn without(self, gone: Lanes) -> Self {
        Self { lanes: self.lanes.without(gone), scoped: self.scoped.without(gone) }
    }
}

/// Checks IPv6 headers, cuts off bytes after each packet, and stores the upper half of its destination
/// as the key.
#[inline(always)]
pub fn ipv6(burst: &mut Burst, umem: &Umem, lanes: Lanes) -> Valid6 {
    let rare = match lanes.dense() {
        Some(range) => check(burst, umem, range),
        None => check(burst, umem, lanes),
    };
    let valid = Valid6 { lanes: lanes.without(rare), scoped: Lanes::NONE };
    if rare.is_empty() { valid } else { explain_all(burst, umem, rare, valid) }
}

/// Checks packets in a straight loop; returns those that need a closer look.
#[inline(always)]
fn check(burst: &mut Burst, umem: &Umem, lanes: impl IntoIterator<Item = usize>) -> Lanes {
    let mut rare = Lanes::NONE;
    for lane in lanes {
        let l3 = u32::from(burst.l3[lane]);
        let header = umem.bytes::<{ ipv6::LEN }>(burst.addr[lane], l3 as usize);
        let first = word64(header, 0);
        let end = l3 + ipv6::LEN as u32 + u32::from(((first >> 32) as u16).swap_bytes());
        burst.key[lane] = word64(header, 24).swap_bytes();
        if first as u8 >> 4 != 6
            || end > u32::from(burst.len[lane])
            || (first >> 48) as u8 == l4::HOP_BY_HOP
            || source_is_suspect(header[8])
        {
            rare.insert_rare(lane);
            continue;
        }
        burst.len[lane] = end as u16;
    }
    rare
}

/// Says whether a source with this first byte needs a closer look: 0, 0xfe and 0xff.
#[inline(always)]
const fn source_is_suspect(byte: u8) -> bool {
    byte.wrapping_add(2) <= 2
}

/// Examines the unusual packets of the straight loop.
#[cold]
fn explain_all(burst: &mut Burst, umem: &Umem, rare: Lanes, mut valid: Valid6) -> Valid6 {
    for lane in rare {
        let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
        let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
        match explain(packet) {
            Ok(sound) => {
                valid.lanes.0 |= 1 << lane;
                valid.scoped.0 |= u64::from(sound.scoped) << lane;
                burst.len[lane] = u16::from(burst.l3[lane]) + sound.total_len;
            }
            Err(verdict) => burst.exit(lane, verdict),
        }
    }
    valid
}

/// The result of the closer look at a valid packet.
struct Sound {
    /// Bytes, header included.
    total_len: u16,
    /// The source is bound to its link.
    scoped: bool,
}

/// The properties of a valid packet; or the verdict for an invalid one.
fn explain(packet: &[u8]) -> Result<Sound, Verdict> {
    let Some(header) = packet.first_chunk() else {
        return Err(Verdict::Drop(DropReason::PktTooSmall));
    };
    let ip = Ipv6View(header);
    if ip.version() != 6 {
        return Err(Verdict::Drop(DropReason::IpInhdr));
    }
    if packet.len() < ipv6::LEN + usize::from(ip.payload_len()) {
        return Err(Verdict::Drop(DropReason::PktTooSmall));
    }
    let (src, dst) = (ip.src(), ip.dst());
    if is_multicast(src) || src == 1 {
        return Err(Verdict::Drop(DropReason::IpInvalidSource));
    }
    // Multicast is for the router itself, which reads the hop-by-hop header of MLD there.
    if ip.next_header() == l4::HOP_BY_HOP && !is_multicast(dst) {
        return Err(Verdict::Punt(PuntReason::HopByHop));
    }
    let total_len = ipv6::LEN as u16 + ip.payload_len();
    Ok(Sound { total_len, scoped: src == 0 || is_link_local(src) })
}

const fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xff
}
