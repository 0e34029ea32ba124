//! The properties of a packet that its route depends on.

use crate::burst::Burst;
use crate::frame::Umem;
use crate::id::LinkId;

/// The query for a packet's route.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RouteQuery {
    /// 4 or 6.
    pub(crate) version: u8,
    /// The link whose policy decides, if it has one.
    pub(crate) link: LinkId,
    /// The FIB to look up if there is no policy.
    pub(crate) root: u32,
    /// Source, left-aligned.
    pub(crate) src: u128,
    /// Destination, left-aligned.
    pub(crate) dst: u128,
    /// The packet's mark.
    pub(crate) mark: u32,
}

/// The query for a packet's route. If the packet ends before its addresses, they are zeros.
pub(crate) fn query(burst: &Burst, umem: &Umem, lane: usize, version: u8, mark: u32) -> RouteQuery {
    let (link, root) = (burst.link[lane], burst.root[lane]);
    let l3 = usize::from(burst.l3[lane]);
    let frame = umem.frame(burst.addr[lane], usize::from(burst.len[lane]));
    let packet = frame.get(l3..).unwrap_or_default();
    let (src, dst) = match version {
        4 => (word4(packet, 12), word4(packet, 16)),
        _ => (word6(packet, 8), word6(packet, 24)),
    };
    RouteQuery { version, link, root, src, dst, mark }
}

fn word4(packet: &[u8], at: usize) -> u128 {
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u128::from(u32::from_be_bytes(*bytes)) << 96)
}

fn word6(packet: &[u8], at: usize) -> u128 {
    let bytes = packet.get(at..).and_then(<[u8]>::first_chunk);
    bytes.map_or(0, |bytes| u128::from_be_bytes(*bytes))
}
