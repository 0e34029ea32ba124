//! The receive function in Rust, as one function and split in two: the same as `receive.c`, line by
//! line.

use std::hint::black_box;

use tollway_dataplane::wire::{be16, be32};

use super::super::small_path::{Digest, Next, ROUTER_MAC, Routes};
use crate::frames::{FRAME_LEN, Template};

/// The verdict on a frame; the numbers are those of `receive.h`.
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

pub(super) struct SmallPath {
    device: Device,
    verdicts: [u64; 5],
    tapped: u64,
    taps: u32,
    drop_port: u16,
    routes: Routes,
}

/// A variant of the receive function.
pub(super) type Receive = fn(&mut SmallPath, &mut Frame) -> usize;

/// The variants, by name.
pub(super) const VARIANTS: [(&str, Receive); 3] =
    [("whole", whole), ("call", split_called), ("inline", split_inlined)];

impl SmallPath {
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

/// First half, about the link: counters, Ethernet, taps. Returns where layer 3 begins.
macro_rules! first {
    ($small_path:ident, $frame:ident, $leave:tt) => {{
        $small_path.device.packets += 1;
        $small_path.device.bytes += u64::from($frame.len);
        if $frame.len < 42 {
            break $leave Verdict::Bad;
        }
        if $frame.data[..6] != ROUTER_MAC {
            break $leave Verdict::OtherHost;
        }
        if $small_path.taps > 0 {
            $small_path.tapped += 1;
        }
        14_usize
    }};
}

/// Second half, about the packet: early drop, IPv4, route, rewriting.
macro_rules! second {
    ($small_path:ident, $frame:ident, $l3:expr, $len:expr, $leave:tt) => {{
        let Some(ip) = $frame.data[$l3..].first_chunk::<24>() else { break $leave Verdict::Bad };
        if be16(&$frame.data, $l3 - 2) != 0x0800 {
            break $leave Verdict::Bad;
        }
        if $small_path.drop_port != 0 && ip[9] == 17 && be16(ip, 22) == $small_path.drop_port {
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
        let Next { header, port } = *$small_path.routes.find(be32(ip, 16));
        if port == 0 {
            break $leave Verdict::NoRoute;
        }
        let sum = u32::from(be16(&$frame.data, 24)) + 0x100;
        let sum = (sum & 0xffff) + (sum >> 16);
        $frame.data[24..26].copy_from_slice(&(sum as u16).to_be_bytes());
        $frame.data[22] -= 1;
        $frame.data[..14].copy_from_slice(&header);
        $frame.out = port;
        $small_path.device.forwarded += 1;
        Verdict::Sent
    }};
}

#[inline(always)]
fn done(small_path: &mut SmallPath, frame: &mut Frame, verdict: Verdict) -> usize {
    frame.verdict = verdict as u16;
    small_path.verdicts[verdict as usize] += 1;
    verdict as usize
}

#[inline(never)]
fn whole(small_path: &mut SmallPath, frame: &mut Frame) -> usize {
    let verdict = 'leave: {
        let l3 = first!(small_path, frame, 'leave);
        second!(small_path, frame, l3, frame.len, 'leave)
    };
    done(small_path, frame, verdict)
}

#[inline(never)]
fn split_called(small_path: &mut SmallPath, frame: &mut Frame) -> usize {
    let verdict = 'leave: {
        let mut l3 = first!(small_path, frame, 'leave);
        called_second(small_path, frame, &mut l3, frame.len)
    };
    done(small_path, frame, verdict)
}

#[inline(never)]
fn split_inlined(small_path: &mut SmallPath, frame: &mut Frame) -> usize {
    let verdict = 'leave: {
        let mut l3 = first!(small_path, frame, 'leave);
        inlined_second(small_path, frame, &mut l3, frame.len)
    };
    done(small_path, frame, verdict)
}

#[inline(never)]
fn called_second(
    small_path: &mut SmallPath,
    frame: &mut Frame,
    l3: &mut usize,
    len: u32,
) -> Verdict {
    inlined_second(small_path, frame, l3, len)
}

#[inline(always)]
fn inlined_second(
    small_path: &mut SmallPath,
    frame: &mut Frame,
    l3: &mut usize,
    len: u32,
) -> Verdict {
    'leave: { second!(small_path, frame, *l3, len, 'leave) }
}

/// Passes all frames to a variant.
#[inline(never)]
pub(super) fn run(receive: Receive, small_path: &mut SmallPath, frames: &mut [Frame]) {
    let receive = black_box(receive);
    for frame in frames {
        receive(small_path, frame);
    }
}

/// The same digest of frames as in the C harness.
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
    use super::super::super::small_path::templates;
    use super::*;

    #[test]
    fn every_variant_forwards_and_drops_what_it_should() {
        for (name, receive) in VARIANTS {
            let mut small_path = SmallPath::new();
            for (port, verdict) in [(53, Verdict::Sent), (7, Verdict::Dropped)] {
                for template in templates(100, &[], port) {
                    let mut frame = Frame::new(template);
                    assert_eq!(receive(&mut small_path, &mut frame), verdict as usize, "{name}");
                    let is_sent = verdict == Verdict::Sent;
                    assert_eq!(frame.data[22], if is_sent { 63 } else { 64 });
                    assert_eq!(frame.out > 0, is_sent);
                }
            }
            assert_eq!(small_path.verdicts, [100, 100, 0, 0, 0]);
            assert_eq!(
                (small_path.device.packets, small_path.device.forwarded, small_path.tapped),
                (200, 100, 0)
            );
        }
    }

    #[test]
    fn faulty_and_foreign_frames_are_dropped() {
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
                let found = receive(&mut SmallPath::new(), &mut Frame::new(template));
                assert_eq!(found, verdict as usize, "{name}, byte {at}");
            }
        }
    }
}
