use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::wire::checksum;
use crate::wire::ipv4::{self, Ipv4View, VERSION_IHL_PLAIN};
use crate::wire::{word32, word64};

/// First bytes of rare source addresses: 127/8 and 224/4, which are invalid (RFC 1122, 3.2.1.3);
/// 0/8 and 255/8, in each of which one address is invalid, as in Linux (`ip_route_input_slow`).
static SUSPECT_SOURCE: [bool; 256] = {
    let mut suspect = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        suspect[byte] = matches!(byte, 0 | 127 | 224..=239 | 255);
        byte += 1;
    }
    suspect
};

/// Checks IPv4 headers, cuts off bytes after each packet, and stores its destination as the key.
#[inline(always)]
pub fn ipv4(burst: &mut Burst, umem: &Umem, lanes: Lanes) -> Lanes {
    let rare = match lanes.dense() {
        Some(range) => check(burst, umem, range),
        None => check(burst, umem, lanes),
    };
    if rare.is_empty() { lanes } else { lanes.without(rare).or(explain_all(burst, umem, rare)) }
}

/// Checks packets in a straight loop; returns those that need a closer look.
#[inline(always)]
fn check(burst: &mut Burst, umem: &Umem, lanes: impl IntoIterator<Item = usize>) -> Lanes {
    let mut rare = Lanes::NONE;
    for lane in lanes {
        let l3 = u32::from(burst.l3[lane]);
        let header = umem.bytes::<{ ipv4::LEN }>(burst.addr[lane], l3 as usize);
        let (first, second, third) = (word64(header, 0), word64(header, 8), word32(header, 16));
        let total_len = u32::from(((first >> 16) as u16).swap_bytes());
        burst.key[lane] = u64::from(third.swap_bytes()) << 32;
        if first as u8 != VERSION_IHL_PLAIN
            || total_len < ipv4::LEN as u32
            || l3 + total_len > u32::from(burst.len[lane])
            || SUSPECT_SOURCE[(second >> 32) as usize & 0xff]
            || !checksum::header_is_valid(first, second, third)
        {
            rare.insert_rare(lane);
            continue;
        }
        burst.len[lane] = (l3 + total_len) as u16;
    }
    rare
}

/// Examines the unusual packets of the straight loop; returns those that are valid.
#[cold]
fn explain_all(burst: &mut Burst, umem: &Umem, rare: Lanes) -> Lanes {
    let mut sound = Lanes::NONE;
    for lane in rare {
        let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
        let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
        match explain(packet) {
            Ok(total_len) => {
                sound.0 |= 1 << lane;
                burst.len[lane] = u16::from(burst.l3[lane]) + total_len;
            }
            Err(verdict) => burst.exit(lane, verdict),
        }
    }
    sound
}

/// The packet's length; or the verdict for a packet that exits, in the kernel's order of checks.
fn explain(packet: &[u8]) -> Result<u16, Verdict> {
    let Some(header) = packet.first_chunk() else {
        return Err(Verdict::Drop(DropReason::PktTooSmall));
    };
    let ip = Ipv4View(header);
    let header_len = ip.header_len();
    if ip.version_ihl() >> 4 != 4 || header_len < ipv4::LEN {
        return Err(Verdict::Drop(DropReason::IpInhdr));
    }
    let Some(whole_header) = packet.get(..header_len) else {
        return Err(Verdict::Drop(DropReason::PktTooSmall));
    };
    if checksum::sum(whole_header) != 0xffff {
        return Err(Verdict::Drop(DropReason::IpCsum));
    }
    let total_len = usize::from(ip.total_len());
    if packet.len() < total_len {
        return Err(Verdict::Drop(DropReason::PktTooSmall));
    }
    if total_len < header_len {
        return Err(Verdict::Drop(DropReason::IpInhdr));
    }
    if source_is_martian(ip.src()) {
        return Err(Verdict::Drop(DropReason::IpInvalidSource));
    }
    if header_len > ipv4::LEN {
        return Err(Verdict::Punt(PuntReason::IpOptions));
    }
    Ok(ip.total_len())
}

const fn source_is_martian(src: u32) -> bool {
    matches!(src >> 24, 127 | 224..=239) || src == 0 || src == u32::MAX
}
