//! Bytes become frames, and those go through the path in a burst, alone, and through a router.
//!
//! A frame's description is a byte that says port, address and tags, two bytes of length, and the
//! frame; the input is such descriptions until it ends. A byte of 0xff is a pause of a second.

use std::cell::RefCell;

use crate::testkit::net::Net;
use crate::testkit::packet::{DOT1Q, Tag};
use crate::testkit::road::{Outcome, Road, paths};
use crate::testkit::wires::{PORTS, TABLES, Way};

/// Frames of one input at most; more of them find nothing that fewer do not.
const FRAMES: usize = 64;
const CHUNK_BYTES: u32 = 2048;
const CHUNKS: u32 = 256;
const PAUSE: u8 = 0xff;

/// What an input says.
#[derive(Debug, PartialEq, Eq)]
enum Step {
    Frame(u8, Vec<u8>),
    Pause,
}

/// Sends what the input describes, and asserts what must hold of anything.
pub fn run(data: &[u8]) {
    thread_local! {
        static NET: RefCell<Net> = RefCell::new(Net::with_memory(CHUNKS, CHUNK_BYTES));
        static ROADS: RefCell<Vec<Road<'static>>> = RefCell::new(roads());
    }
    let steps = steps(data);
    ROADS.with_borrow_mut(|roads| compare(roads, &steps));
    NET.with_borrow_mut(|net| route(net, &steps));
}

/// The path for each instruction set; behind the frames lie the bytes of others.
fn roads() -> Vec<Road<'static>> {
    let stale = [Way::Plain.host4(1), Way::Stacked.host6(2)];
    let stale = stale.map(|dst| Way::Qinq.packet(0, dst).size(300).build());
    let road =
        |(path, stale): (_, &Vec<u8>)| Road::over(&TABLES, path, CHUNK_BYTES).with_stale(stale);
    paths().into_iter().zip(stale.iter().cycle()).map(road).collect()
}

/// A packet fares in a burst as it does alone, whatever the instruction set.
fn compare(roads: &mut [Road<'_>], steps: &[Step]) {
    for port in 0..PORTS {
        let frames: Vec<_> = steps
            .iter()
            .filter_map(|step| match step {
                Step::Frame(to, frame) if *to == port => Some(frame),
                _ => None,
            })
            .collect();
        let Some((first, others)) = roads.split_first_mut() else { return };
        let alone: Vec<Outcome> = frames.iter().map(|frame| first.one(port, frame)).collect();
        assert_eq!(first.burst(port, &frames), alone);
        for road in others {
            assert_eq!(road.burst(port, &frames), alone);
        }
    }
}

/// A router accounts for every packet and for its memory.
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
            [how, high, low, ref rest @ ..] => {
                let len = usize::from(u16::from_be_bytes([high, low])).min(rest.len()).min(room);
                let (frame, rest) = rest.split_at(len);
                let port = how % PORTS;
                let mut frame = disguised(port, how, frame);
                frame.truncate(room);
                steps.push(Step::Frame(port, frame));
                data = rest;
            }
            _ => break,
        }
    }
    steps
}

/// The frame as it is, or (as bits of `how` say) with the address and tags of a link in front.
fn disguised(port: u8, how: u8, frame: &[u8]) -> Vec<u8> {
    let mut frame = frame.to_vec();
    if how & 0x40 == 0 || frame.len() < 12 {
        return frame;
    }
    let way = Way::ALL[usize::from(how >> 2) % Way::ALL.len()];
    frame[..6].copy_from_slice(&way.mac(port));
    let priority: &[Tag] = if how & 0x80 == 0 { &[] } else { &[(DOT1Q, 0xe000)] };
    let tags = priority.iter().chain(way.tags());
    let tags = tags.flat_map(|(protocol, vid)| [protocol.to_be_bytes(), vid.to_be_bytes()]);
    frame.splice(12..12, tags.flatten());
    frame
}

/// The input that describes frames, each with its port.
pub fn describe<'a>(frames: impl IntoIterator<Item = (u8, &'a [u8])>) -> Vec<u8> {
    let mut input = Vec::new();
    for (port, frame) in frames {
        input.push(port);
        input.extend_from_slice(&(frame.len() as u16).to_be_bytes());
        input.extend_from_slice(frame);
    }
    input
}
