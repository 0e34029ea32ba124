//! The receive function in Rust, whole and split in two: what `receive.c` does, line by line.

use std::hint::black_box;

use tollway_dataplane::wire::{be16, be32};

use super::super::road::{Digest, Next, ROUTER_MAC, Routes};
use crate::frames::{FRAME_LEN, Template};

/// What became of a frame; the numbers are those of `receive.h`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(usize)]
enum Verdict {
    Sent,
    Dropped,
    Bad,
    OtherHost,
    NoRoute,
}

#[derive(Clone, Copy)]
pub(super) struct Frame {
    data: Template,
    len: u32,
    out: u16,
    verdict: u16,
}

#[derive(Default)]
struct Device {
    packets: u64,
    bytes: u64,
    forwarded: u64,
}

pub(super) struct Road {
    device: Device,
    verdicts: [u64; 5],
    tapped: u64,
    taps: u32,
    drop_port: u16,
    routes: Routes,
}

/// A variant of the receive function.
pub(super) type Receive = fn(&mut Road, &mut Frame) -> usize;

/// The variants, by name.
pub(super) const VARIANTS: [(&str, Receive); 3] =
    [("whole", whole), ("call", split_called), ("inline", split_inlined)];

impl Road {
    pub(super) fn new() -> Self {
        Self {
            device: Device::default(),
            verdicts: [0; 5],
            tapped: 0,
            taps: 0,
            drop_port: 7,
            routes: Routes::new(),
        }
    }
}

impl Frame {
    pub(super) const fn new(data: Template) -> Self {
        Self { data, len: FRAME_LEN as u32, out: 0, verdict: 0 }
    }
}

/// What is the link's: counts, Ethernet, taps; where layer 3 begins.
macro_rules! first {
    ($road:ident, $frame:ident, $leave:tt) => {{
        $road.device.packets += 1;
        $road.device.bytes += u64::from($frame.len);
        if $frame.len < 42 {
            break $leave Verdict::Bad;
        }
        if $frame.data[..6] != ROUTER_MAC {
            break $leave Verdict::OtherHost;
        }
        if $road.taps > 0 {
            $road.tapped += 1;
        }
        14_usize
    }};
}

/// What is the packet's: early drop, IPv4, route, rewriting.
macro_rules! second {
    ($road:ident, $frame:ident, $l3:expr, $len:expr, $leave:tt) => {{
        let Some(ip) = $frame.data[$l3..].first_chunk::<24>() else { break $leave Verdict::Bad };
        if be16(&$frame.data, $l3 - 2) != 0x0800 {
            break $leave Verdict::Bad;
        }
        if $road.drop_port != 0 && ip[9] == 17 && be16(ip, 22) == $road.drop_port {
            break $leave Verdict::Dropped;
        }
        if ip[0] != 0x45 || u32::from(be16(ip, 2)) > $len - 14 || ip[8] < 2 {
            break $leave Verdict::Bad;
        }
        let sum: u32 = (0..10).map(|word| u32::from(be16(ip, 2 * word))).sum();
        let sum = (sum & 0xffff) + (sum >> 16);
        if (sum & 0xffff) + (sum >> 16) != 0xffff {
            break $leave Verdict::Bad;
        }
        let Next { header, port } = *$road.routes.find(be32(ip, 16));
        if port == 0 {
            break $leave Verdict::NoRoute;
        }
        let sum = u32::from(be16(&$frame.data, 24)) + 0x100;
        let sum = (sum & 0xffff) + (sum >> 16);
        $frame.data[24..26].copy_from_slice(&(sum as u16).to_be_bytes());
        $frame.data[22] -= 1;
        $frame.data[..14].copy_from_slice(&header);
        $frame.out = port;
        $road.device.forwarded += 1;
        Verdict::Sent
    }};
}

#[inline(always)]
fn done(road: &mut Road, frame: &mut Frame, verdict: Verdict) -> usize {
    frame.verdict = verdict as u16;
    road.verdicts[verdict as usize] += 1;
    verdict as usize
}

#[inline(never)]
fn whole(road: &mut Road, frame: &mut Frame) -> usize {
    let verdict = 'leave: {
        let l3 = first!(road, frame, 'leave);
        second!(road, frame, l3, frame.len, 'leave)
    };
    done(road, frame, verdict)
}

#[inline(never)]
fn split_called(road: &mut Road, frame: &mut Frame) -> usize {
    let verdict = 'leave: {
        let mut l3 = first!(road, frame, 'leave);
        called_second(road, frame, &mut l3, frame.len)
    };
    done(road, frame, verdict)
}

#[inline(never)]
fn split_inlined(road: &mut Road, frame: &mut Frame) -> usize {
    let verdict = 'leave: {
        let mut l3 = first!(road, frame, 'leave);
        inlined_second(road, frame, &mut l3, frame.len)
    };
    done(road, frame, verdict)
}

#[inline(never)]
fn called_second(road: &mut Road, frame: &mut Frame, l3: &mut usize, len: u32) -> Verdict {
    inlined_second(road, frame, l3, len)
}

#[inline(always)]
fn inlined_second(road: &mut Road, frame: &mut Frame, l3: &mut usize, len: u32) -> Verdict {
    'leave: { second!(road, frame, *l3, len, 'leave) }
}

/// Hands all frames to a variant.
#[inline(never)]
pub(super) fn run(receive: Receive, road: &mut Road, frames: &mut [Frame]) {
    let receive = black_box(receive);
    for frame in frames {
        receive(road, frame);
    }
}

/// The digest that the harness in C makes of its frames.
pub(super) fn digest(frames: &[Frame]) -> u64 {
    let mut digest = Digest::new();
    for frame in frames {
        digest.add_frame(&frame.data);
        digest.add(u64::from(frame.verdict));
        digest.add(u64::from(frame.out));
    }
    digest.0
}

#[cfg(test)]
mod tests {
    use super::super::super::road::templates;
    use super::*;

    #[test]
    fn every_variant_forwards_and_drops_what_it_should() {
        for (name, receive) in VARIANTS {
            let mut road = Road::new();
            for (port, verdict) in [(53, Verdict::Sent), (7, Verdict::Dropped)] {
                for template in templates(100, &[], port) {
                    let mut frame = Frame::new(template);
                    assert_eq!(receive(&mut road, &mut frame), verdict as usize, "{name}");
                    let is_sent = verdict == Verdict::Sent;
                    assert_eq!(frame.data[22], if is_sent { 63 } else { 64 });
                    assert_eq!(frame.out > 0, is_sent);
                }
            }
            assert_eq!(road.verdicts, [100, 100, 0, 0, 0]);
            assert_eq!((road.device.packets, road.device.forwarded, road.tapped), (200, 100, 0));
        }
    }

    #[test]
    fn what_is_wrong_or_not_for_us_goes_nowhere() {
        for (at, value, verdict) in [
            (0, 9, Verdict::OtherHost),
            (12, 9, Verdict::Bad),
            (14, 0x46, Verdict::Bad),
            (22, 1, Verdict::Bad),
            (25, 0xff, Verdict::Bad),
        ] {
            for (name, receive) in VARIANTS {
                let mut template = templates(1, &[], 53)[0];
                template[at] = value;
                let found = receive(&mut Road::new(), &mut Frame::new(template));
                assert_eq!(found, verdict as usize, "{name}, byte {at}");
            }
        }
    }
}
