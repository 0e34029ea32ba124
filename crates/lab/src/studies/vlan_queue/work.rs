//! The work on a packet of a VLAN: remove the tag, forward the packet, add another tag.

use tollway_dataplane::wire::be16;
use tollway_dataplane::wire::eth::ethertype;

use super::super::small_path::{self, HEADER, Routes};
use super::queue::{Packet, ROOM};
use crate::frames::{FRAME_LEN, Template};

/// Tags in and out.
pub(super) const VIDS: [u16; 2] = [100, 200];

/// How packets go from one part of the path to the next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Method {
    /// No tags and no queue.
    Plain,
    /// Through queues, one packet at a time.
    Mutex,
    /// Through queues, a burst at a time.
    Burst,
    /// Not at all: a tag is two bytes to read and four more to write.
    InPlace,
}

impl Method {
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

/// The network card's work: puts a frame into a buffer.
#[inline(always)]
pub(super) fn arrive(packet: &mut Packet, template: &Template) {
    packet.start = ROOM;
    if let Some(frame) = packet.data[ROOM..].first_chunk_mut::<FRAME_LEN>() {
        *frame = *template;
    }
}

/// Removes the tag.
#[inline(always)]
pub(super) fn untag(packet: &mut Packet) {
    let start = packet.start & 63;
    packet.vid = be16(&packet.data, start + 14) & 0xfff;
    packet.data.copy_within(start..start + 12, start + 4);
    packet.start = start + 4;
}

/// Routes and rewrites an untagged packet. Says whether it continues.
#[inline(always)]
pub(super) fn forward(packet: &mut Packet, routes: &Routes) -> bool {
    let start = packet.start & 63;
    let Some(header) = packet.data[start..].first_chunk_mut::<HEADER>() else { return false };
    let Some(dst) = small_path::destination(header) else { return false };
    small_path::rewrite(header, routes.find(dst));
    true
}

/// Adds the egress tag.
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

/// Forwards a tagged packet in place: the new header contains the egress tag.
#[inline(always)]
pub(super) fn forward_tagged(packet: &mut Packet, routes: &Routes) -> bool {
    let start = packet.start & 63;
    packet.vid = be16(&packet.data, start + 14) & 0xfff;
    let Some(tagged) = packet.data[start..].first_chunk_mut::<{ HEADER + 4 }>() else {
        return false;
    };
    // The header as it would be without the tag; the addresses then overwrite it.
    let mut header = [0; HEADER];
    header[..12].copy_from_slice(&tagged[..12]);
    header[12..].copy_from_slice(&tagged[16..]);
    let Some(dst) = small_path::destination(&header) else { return false };
    small_path::rewrite(&mut header, routes.find(dst));
    tagged[..12].copy_from_slice(&header[..12]);
    tagged[16..].copy_from_slice(&header[12..]);
    write_tag(packet);
    true
}

/// Whether a frame is correct when it is sent.
#[inline(always)]
pub(super) fn is_correct(packet: &Packet, method: Method) -> bool {
    let start = packet.start & 63;
    let from_us = packet.data[start + 11] == 2;
    if method == Method::Plain {
        return from_us && packet.data[start + 22] == 63;
    }
    let tagged = be16(&packet.data, start + 12) == ethertype::DOT1Q
        && be16(&packet.data, start + 14) == VIDS[1];
    from_us && tagged && packet.vid == VIDS[0] && packet.data[start + 26] == 63
}

#[cfg(test)]
mod tests {
    use super::super::super::small_path::templates;
    use super::*;

    #[test]
    fn queues_and_in_place_forwarding_send_the_same_frame() {
        let routes = Routes::new();
        for template in templates(100, &[(ethertype::DOT1Q, VIDS[0])], 53) {
            let mut by_queues = Packet::new();
            arrive(&mut by_queues, &template);
            let mut in_place = by_queues.clone();
            assert!(!is_correct(&by_queues, Method::Mutex));
            untag(&mut by_queues);
            assert!(forward(&mut by_queues, &routes));
            tag(&mut by_queues);
            assert!(forward_tagged(&mut in_place, &routes));
            let frame = |packet: &Packet| packet.data[packet.start..][..FRAME_LEN].to_vec();
            assert_eq!(frame(&by_queues), frame(&in_place));
            assert!(
                is_correct(&by_queues, Method::Mutex) && is_correct(&in_place, Method::InPlace)
            );
        }
    }
}
