//! Turns bytes into frames, and sends them through the path in a burst, alone, and through a
//! router.
//!
//! The input is a sequence of frame descriptions: one byte for port, address and tags, two bytes
//! for the length, then the frame. A byte of 0xff is a pause of one second.

use std::cell::RefCell;

use crate::testkit::net::Net;
use crate::testkit::packet::{DOT1Q, Tag};
use crate::testkit::path_bench::{Outcome, PathBench, paths};
use crate::testkit::wires::{LinkVariant, PORTS, TABLES};

/// The most frames of an input; more frames find no more defects.
const FRAMES: usize = 64;
const CHUNK_BYTES: u32 = 2048;
const CHUNKS: u32 = 256;
const PAUSE: u8 = 0xff;

/// A step of the input.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Frame(u8, Vec<u8>),
    Pause,
}

/// Sends what the input describes, and asserts what must hold for every input.
pub fn run(data: &[u8]) {
    thread_local! {
        static NET: RefCell<Net> = RefCell::new(Net::with_memory(CHUNKS, CHUNK_BYTES));
        static PATH_BENCHES: RefCell<Vec<PathBench<'static>>> = RefCell::new(path_benches());
    }
    let steps = steps(data);
    PATH_BENCHES.with_borrow_mut(|path_benches| compare(path_benches, &steps));
    NET.with_borrow_mut(|net| route(net, &steps));
}

/// One path for each instruction set. The bytes of other frames remain behind the frames in memory.
fn path_benches() -> Vec<PathBench<'static>> {
    let stale = [LinkVariant::Plain.host4(1), LinkVariant::Stacked.host6(2)];
    let stale = stale.map(|dst| LinkVariant::Qinq.packet(0, dst).size(300).build());
    let path_bench = |(path, stale): (_, &Vec<u8>)| {
        PathBench::over(&TABLES, path, CHUNK_BYTES).with_stale(stale)
    };
    paths().into_iter().zip(stale.iter().cycle()).map(path_bench).collect()
}

/// Asserts that a packet has the same outcome in a burst and alone, for every instruction set.
fn compare(path_benches: &mut [PathBench<'_>], steps: &[Step]) {
    for port in 0..PORTS {
        let frames: Vec<_> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Frame(to, frame) if *to == port => Some(frame),
                _ => None,
            })
            .collect();
        let Some((first, others)) = path_benches.split_first_mut() else { return };
        let alone: Vec<Outcome> = frames.iter().map(|frame| first.send(port, frame)).collect();
        assert_eq!(first.burst(port, &frames), alone);
        for path_bench in others {
            assert_eq!(path_bench.burst(port, &frames), alone);
        }
    }
}

/// Asserts that a router accounts for every packet and for its memory.
fn route(net: &mut Net, steps: &[Step]) {
    for step in steps {
        match step {
            Step::Frame(port, frame) => {
                net.inject(*port, frame);
            }
            Step::Pause => {
                net.run();
                net.pass(1);
            }
        }
    }
    net.run();
    net.check();
    net.take_all();
    net.check();
}

fn steps(mut data: &[u8]) -> Vec<Step> {
    let room = Net::room(CHUNK_BYTES);
    let mut steps = Vec::new();
    while steps.len() < FRAMES {
        match *data {
            [PAUSE, ref rest @ ..] => {
                steps.push(Step::Pause);
                data = rest;
            }
            [flags, high, low, ref rest @ ..] => {
                let len = usize::from(u16::from_be_bytes([high, low])).min(rest.len()).min(room);
                let (frame, rest) = rest.split_at(len);
                let port = flags % PORTS;
                let mut frame = with_link(port, flags, frame);
                frame.truncate(room);
                steps.push(Step::Frame(port, frame));
                data = rest;
            }
            _ => break,
        }
    }
    steps
}

/// Returns the frame, with the destination address and tags of a link if bits of `flags` say so.
fn with_link(port: u8, flags: u8, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if flags & 0x40 == 0 || frame.len() < 12 {
        return frame;
    }
    let variant = LinkVariant::ALL[usize::from(flags >> 2) % LinkVariant::ALL.len()];
    frame[..6].copy_from_slice(&variant.mac(port));
    let priority: &[Tag] = if flags & 0x80 == 0 { &[] } else { &[(DOT1Q, 0xe000)] };
    let tags = priority.iter().chain(variant.tags());
    let tags = tags.flat_map(|(protocol, vid)| [protocol.to_be_bytes(), vid.to_be_bytes()]);
    frame.splice(12..12, tags.flatten());
    frame
}

/// Encodes frames, each with its port, as an input.
pub fn encode<'a>(frames: impl IntoIterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    let mut input = Vec::new();
    for (port, frame) in frames {
        input.push(port);
        input.extend_from_slice(&(frame.len() as u16).to_be_bytes());
        input.extend_from_slice(frame);
    }
    input
}
