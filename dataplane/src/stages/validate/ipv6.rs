use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::wire::ipv6::{self, Ipv6View};
use crate::wire::l4;

/// IPv6 packets that passed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Valid6 {
    /// All of them.
    pub lanes: Lanes,
    /// Those whose source may not leave its link: link-local, or unspecified.
    pub scoped: Lanes,
}

/// Checks IPv6 headers and notes the upper half of each destination as lookup key.
#[inline(always)]
pub fn ipv6(burst: &mut Burst, umem: &Umem, lanes: Lanes) -> Valid6 {
    let sound = lanes.filter(|lane| {
        let l3 = usize::from(burst.l3[lane]);
        let header = umem.bytes(burst.addr[lane], l3);
        let ip = Ipv6View(header);
        burst.key[lane] = ip.dst_high();
        // First bytes 0, 0xfe and 0xff, and nothing else, are at most 1 when 2 is added.
        let source_is_suspect = header[8].wrapping_add(2) <= 2;
        (ip.version() == 6)
            & (l3 + ipv6::LEN + usize::from(ip.payload_len()) <= usize::from(burst.len[lane]))
            & (ip.next_header() != l4::HOP_BY_HOP)
            & !source_is_suspect
    });
    let odd = lanes.without(sound);
    let valid = Valid6 { lanes: sound, scoped: Lanes::NONE };
    if odd.is_empty() { valid } else { explain_all(burst, umem, odd, valid) }
}

/// Looks again at packets that the straight loop found odd.
#[cold]
fn explain_all(burst: &mut Burst, umem: &Umem, odd: Lanes, mut valid: Valid6) -> Valid6 {
    for lane in odd {
        let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
        let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
        match explain(packet) {
            Ok(scoped) => {
                valid.lanes.0 |= 1 << lane;
                valid.scoped.0 |= u64::from(scoped) << lane;
            }
            Err(verdict) => burst.leave(lane, verdict),
        }
    }
    valid
}

/// Whether a sound packet's source is bound to its link; or the verdict for one that is not sound.
fn explain(packet: &[u8]) -> Result<bool, Verdict> {
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
    if is_multicast(src) || src == 1 || is_v4_mapped(src) {
        return Err(Verdict::Drop(DropReason::IpInvalidSource));
    }
    // Multicast is for the router itself, which reads the hop-by-hop header of MLD there.
    if ip.next_header() == l4::HOP_BY_HOP && !is_multicast(dst) {
        return Err(Verdict::Punt(PuntReason::HopByHop));
    }
    Ok(src == 0 || is_link_local(src))
}

const fn is_multicast(address: u128) -> bool {
    address >> 120 == 0xff
}

/// `::ffff:0:0/96`: the kernel drops such senders, as those that would fool filters.
const fn is_v4_mapped(address: u128) -> bool {
    address >> 32 == 0xffff
}

const fn is_link_local(address: u128) -> bool {
    address >> 118 == 0xfe80 >> 6
}
