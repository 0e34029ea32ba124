//! What is done to a packet on a VLAN: the tag taken off, the packet forwarded, another tag put on.

use tollway_dataplane::wire::be16;
use tollway_dataplane::wire::eth::ethertype;

use super::super::road::{self, HEADER, Routes};
use super::queue::{Packet, ROOM};
use crate::frames::{FRAME_LEN, Template};

/// Tags in and out.
pub(super) const VIDS: [u16; 2] = [100, 200];

/// How packets go from one part of the road to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// No tags, and no queue.
    Plain,
    /// By queues, one packet at a time.
    Mutex,
    /// By queues, a burst at a time.
    Burst,
    /// Not at all: a tag is two bytes to read and four more to write.
    InPlace,
}

impl Way {
    pub(super) const ALL: [Self; 4] = [Self::Plain, Self::Mutex, Self::Burst, Self::InPlace];

    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Plain => "plain",
            Self::Mutex => "mutex",
            Self::Burst => "burst",
            Self::InPlace => "in-place",
        }
    }

    pub(super) const fn has_queues(self) -> bool {
        matches!(self, Self::Mutex | Self::Burst)
    }
}

/// What the card does: a frame in a buffer.
#[inline(always)]
pub(super) fn arrive(packet: &mut Packet, template: &Template) {
    packet.start = ROOM;
    if let Some(frame) = packet.data[ROOM..].first_chunk_mut::<FRAME_LEN>() {
        *frame = *template;
    }
}

/// Takes the tag off.
#[inline(always)]
pub(super) fn untag(packet: &mut Packet) {
    let start = packet.start & 63;
    packet.vid = be16(&packet.data, start + 14) & 0xfff;
    packet.data.copy_within(start..start + 12, start + 4);
    packet.start = start + 4;
}

/// Routes a packet without tags and rewrites it; whether it goes on.
#[inline(always)]
pub(super) fn forward(packet: &mut Packet, routes: &Routes) -> bool {
    let start = packet.start & 63;
    let Some(header) = packet.data[start..].first_chunk_mut::<HEADER>() else { return false };
    let Some(dst) = road::destination(header) else { return false };
    road::rewrite(header, routes.find(dst));
    true
}

/// Puts the tag of the way out on.
#[inline(always)]
pub(super) fn tag(packet: &mut Packet) {
    let start = (packet.start & 63).max(4);
    packet.data.copy_within(start..start + 12, start - 4);
    packet.start = start - 4;
    write_tag(packet);
}

#[inline(always)]
fn write_tag(packet: &mut Packet) {
    let at = (packet.start & 63) + 12;
    packet.data[at..at + 2].copy_from_slice(&ethertype::DOT1Q.to_be_bytes());
    packet.data[at + 2..at + 4].copy_from_slice(&VIDS[1].to_be_bytes());
}

/// Forwards a tagged packet where it lies: the header that it leaves with has the tag in it.
#[inline(always)]
pub(super) fn forward_tagged(packet: &mut Packet, routes: &Routes) -> bool {
    let start = packet.start & 63;
    packet.vid = be16(&packet.data, start + 14) & 0xfff;
    let Some(tagged) = packet.data[start..].first_chunk_mut::<{ HEADER + 4 }>() else {
        return false;
    };
    // As it would lie without its tag, which the addresses are then written over.
    let mut header = [0; HEADER];
    header[..12].copy_from_slice(&tagged[..12]);
    header[12..].copy_from_slice(&tagged[16..]);
    let Some(dst) = road::destination(&header) else { return false };
    road::rewrite(&mut header, routes.find(dst));
    tagged[..12].copy_from_slice(&header[..12]);
    tagged[16..].copy_from_slice(&header[12..]);
    write_tag(packet);
    true
}

/// Whether a frame is what it is to be when it is sent.
#[inline(always)]
pub(super) fn is_right(packet: &Packet, way: Way) -> bool {
    let start = packet.start & 63;
    let from_us = packet.data[start + 11] == 2;
    if way == Way::Plain {
        return from_us && packet.data[start + 22] == 63;
    }
    let tagged = be16(&packet.data, start + 12) == ethertype::DOT1Q
        && be16(&packet.data, start + 14) == VIDS[1];
    from_us && tagged && packet.vid == VIDS[0] && packet.data[start + 26] == 63
}

#[cfg(test)]
mod tests {
    use super::super::super::road::templates;
    use super::*;

    #[test]
    fn a_packet_leaves_alike_whether_its_tag_was_taken_off_or_not() {
        let routes = Routes::new();
        for template in templates(100, &[(ethertype::DOT1Q, VIDS[0])], 53) {
            let mut by_queues = Packet::new();
            arrive(&mut by_queues, &template);
            let mut in_place = by_queues.clone();
            assert!(!is_right(&by_queues, Way::Mutex));
            untag(&mut by_queues);
            assert!(forward(&mut by_queues, &routes));
            tag(&mut by_queues);
            assert!(forward_tagged(&mut in_place, &routes));
            let frame = |packet: &Packet| packet.data[packet.start..][..FRAME_LEN].to_vec();
            assert_eq!(frame(&by_queues), frame(&in_place));
            assert!(is_right(&by_queues, Way::Mutex) && is_right(&in_place, Way::InPlace));
        }
    }
}
