//! Fragments: counts IPv4 fragments that are to be forwarded.
//!
//! Kernel equivalent: none; `ip -s -s link` and `nstat` count fragments only where the kernel makes or reassembles
//! them. RFC 791, section 3.1 (flags and fragment offset).
//!
//! Limits: it counts what enters it in sampled bursts, as every toll does, and changes nothing.

use crate::burst::{Burst, Lanes};
use crate::frame::Umem;

/// Bits of MF and of the offset, in the second byte pair of the header's second word.
const FRAGMENT: u16 = 0x3fff;

/// The packets that are fragments.
#[inline(always)]
pub(crate) fn run(burst: &Burst, umem: &Umem, lanes: Lanes) -> Lanes {
    let mut fragments = Lanes::NONE;
    for lane in lanes {
        let header: &[u8; 8] = umem.bytes(burst.addr[lane], usize::from(burst.l3[lane]));
        fragments.put(lane, u16::from_be_bytes([header[6], header[7]]) & FRAGMENT != 0);
    }
    fragments
}
