use crate::burst::{Burst, Lanes};
use crate::frame::Umem;
use crate::verdict::{DropReason, PuntReason, Verdict};
use crate::wire::checksum;
use crate::wire::ipv4::{self, Ipv4View, VERSION_IHL_PLAIN};

/// First bytes of source addresses that no forwarded packet has (RFC 1122, 3.2.1.3): 0/8, 127/8,
/// 224/4. 255/8 is looked at more closely: only its last address is barred, as in Linux.
const SUSPECT_SOURCE: [bool; 256] = {
    let mut suspect = [false; 256];
    let mut byte = 0;
    while byte < 256 {
        suspect[byte] = byte == 0 || byte == 127 || (byte >= 224 && byte < 240) || byte == 255;
        byte += 1;
    }
    suspect
};

/// Checks IPv4 headers and notes each destination as lookup key.
#[inline(always)]
pub fn ipv4(burst: &mut Burst, umem: &Umem, lanes: Lanes) -> Lanes {
    let sound = lanes.filter(|lane| {
        let l3 = usize::from(burst.l3[lane]);
        let header = umem.bytes(burst.addr[lane], l3);
        let ip = Ipv4View(header);
        burst.key[lane] = u64::from(ip.dst()) << 32;
        let total_len = usize::from(ip.total_len());
        (ip.version_ihl() == VERSION_IHL_PLAIN)
            & (total_len >= ipv4::LEN)
            & (l3 + total_len <= usize::from(burst.len[lane]))
            & !SUSPECT_SOURCE[usize::from(header[12])]
            & checksum::header_is_valid(header)
    });
    let odd = lanes.without(sound);
    if odd.is_empty() { sound } else { sound.or(explain_all(burst, umem, odd)) }
}

/// Looks again at packets that the straight loop found odd; returns those that are sound.
#[cold]
fn explain_all(burst: &mut Burst, umem: &Umem, odd: Lanes) -> Lanes {
    let mut sound = Lanes::NONE;
    for lane in odd {
        let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
        let packet = frame.get(usize::from(burst.l3[lane])..).unwrap_or_default();
        match explain(packet) {
            None => sound.0 |= 1 << lane,
            Some(verdict) => burst.leave(lane, verdict),
        }
    }
    sound
}

/// The verdict for a packet that does not go on, in the kernel's order of checks.
fn explain(packet: &[u8]) -> Option<Verdict> {
    let Some(header) = packet.first_chunk() else {
        return Some(Verdict::Drop(DropReason::PktTooSmall));
    };
    let ip = Ipv4View(header);
    let header_len = ip.header_len();
    if ip.version_ihl() >> 4 != 4 || header_len < ipv4::LEN {
        return Some(Verdict::Drop(DropReason::IpInhdr));
    }
    let Some(whole_header) = packet.get(..header_len) else {
        return Some(Verdict::Drop(DropReason::PktTooSmall));
    };
    if checksum::sum(whole_header) != 0xffff {
        return Some(Verdict::Drop(DropReason::IpCsum));
    }
    let total_len = usize::from(ip.total_len());
    if packet.len() < total_len {
        return Some(Verdict::Drop(DropReason::PktTooSmall));
    }
    if total_len < header_len {
        return Some(Verdict::Drop(DropReason::IpInhdr));
    }
    if source_is_martian(ip.src()) {
        return Some(Verdict::Drop(DropReason::IpInvalidSource));
    }
    (header_len > ipv4::LEN).then_some(Verdict::Punt(PuntReason::IpOptions))
}

const fn source_is_martian(src: u32) -> bool {
    matches!(src >> 24, 0 | 127 | 224..=239) || src == u32::MAX
}
