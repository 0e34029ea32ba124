//! Where the straight loops find a field.

use std::ops::Range;

use super::super::scratch::{GATHERED, GATHERED_FROM, Scratch};
use super::super::{Field, Point};
use super::Work;
use crate::burst::BURST;
use crate::wire::{be32, ipv4};

/// The position of a field for the straight loops: in four bytes of the IP header, if that has its
/// usual length. Fields of the transport header are there unless the packet is a fragment.
#[derive(Clone, Copy)]
pub(super) struct Window {
    at: usize,
    shift: u32,
    mask: u32,
    plus: u32,
}

pub(super) const fn window(field: Field, version: u8, point: Point) -> Option<Window> {
    let minus_hop = if point.is_behind_route() { u32::MAX } else { 0 };
    let (at, shift, mask, plus) = match (field, version) {
        (Field::TrafficClass, 4) => (0, 16, 0xff, 0),
        (Field::Length, 4) => (0, 0, 0xffff, 0),
        (Field::Fragment, 4) => (4, 0, 0x7fff, 0),
        (Field::FragmentOffset, 4) => (4, 0, 0x1fff, 0),
        (Field::Ttl, 4) => (8, 24, 0xff, minus_hop),
        (Field::Protocol, 4) => (8, 16, 0xff, 0),
        (Field::Source4, 4) => (12, 0, u32::MAX, 0),
        (Field::Destination4, 4) => (16, 0, u32::MAX, 0),
        (Field::SourcePort, 4) => (20, 16, 0xffff, 0),
        (Field::DestinationPort, 4) => (20, 0, 0xffff, 0),
        (Field::IcmpType, 4) => (20, 24, 0xff, 0),
        (Field::IcmpCode, 4) => (20, 16, 0xff, 0),
        (Field::TcpFlags, 4) => (32, 16, 0xff, 0),
        (Field::TransportLength, 4) => (0, 0, 0xffff, (ipv4::LEN as u32).wrapping_neg()),
        (Field::TrafficClass, 6) => (0, 20, 0xff, 0),
        (Field::Length, 6) => (4, 16, 0xffff, 40),
        (Field::NextHeader6 | Field::Protocol, 6) => (4, 8, 0xff, 0),
        (Field::Ttl, 6) => (4, 0, 0xff, minus_hop),
        (Field::SourcePort, 6) => (40, 16, 0xffff, 0),
        (Field::DestinationPort, 6) => (40, 0, 0xffff, 0),
        (Field::IcmpType, 6) => (40, 24, 0xff, 0),
        (Field::IcmpCode, 6) => (40, 16, 0xff, 0),
        (Field::TcpFlags, 6) => (52, 16, 0xff, 0),
        (Field::TransportLength, 6) => (4, 16, 0xffff, 0),
        (Field::FragmentOffset, 6) => (0, 0, 0, 0),
        _ => return None,
    };
    Some(Window { at, shift, mask, plus })
}

/// Writes the values in a window to [`Scratch::value`].
#[inline(always)]
pub(super) fn take_words(
    window: Window,
    work: &Work<'_>,
    scratch: &mut Scratch,
    gathered: bool,
    lanes: Range<usize>,
) {
    let word = window.at.wrapping_sub(GATHERED_FROM) / 4;
    if gathered && word < GATHERED {
        for (value, word) in scratch.value.iter_mut().zip(&scratch.word[word]) {
            *value = (word >> window.shift & window.mask).wrapping_add(window.plus);
        }
        return;
    }
    for lane in lanes {
        let lane = lane & (BURST - 1);
        let at = usize::from(work.burst.l3[lane]) + window.at;
        let word = be32(work.umem.bytes::<4>(work.burst.addr[lane], at), 0);
        scratch.value[lane] = (word >> window.shift & window.mask).wrapping_add(window.plus);
    }
}
