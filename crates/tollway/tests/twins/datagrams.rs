//! Datagrams and echoes that the test makes, with what may be wrong about them, and messages of ICMP about them.

use std::time::{Duration, Instant};

use crate::crafted::{Agreement, Bench, Fault, Line, Note, Sum};
use crate::errors;
use crate::packets::{ICMP_HEADER, Packet};
use crate::scene::{ALONE, Version, WITH};
use crate::script::{Protocol, Untracked};
use crate::testkit::dice::Dice;

/// After so long, packets in both directions make a connection assured.
const ASSURED: Duration = Duration::from_millis(2300);
/// After so long, Tollway knows of packets that it asks no kernel about.
const KNOWN: Duration = Duration::from_millis(200);
const PACE: Duration = Duration::from_millis(60);
/// Datagrams behind that.
const DATAGRAMS: usize = 60;
/// Bytes of a datagram that the device outside does not take in one packet.
const NARROW: usize = 1440;
/// Bytes of a message in the first one of two fragments.
const FRAGMENT: usize = 200;

/// What is wrong about a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Wrong {
    Nothing,
    NoSum,
    Sum,
    /// No router may forward it.
    Hops,
    /// UDP's length: that of more than the packet.
    Length,
    /// The kind of an echo: a query is an answer, and the other way round.
    Kind,
}

impl Wrong {
    fn apply(self, packet: &mut Packet) {
        let (sum, (_, at)) = (packet.sum_at(), packet.upper());
        match self {
            Self::Nothing => {}
            Self::NoSum => packet.0[sum..sum + 2].fill(0),
            Self::Sum => packet.0[sum] ^= 1,
            Self::Hops => packet.end_here(),
            Self::Length => packet.0[at + 4] = 0xff,
            Self::Kind => {
                packet.0[at] = other_kind(packet.0[at]);
                packet.sum();
            }
        }
    }

    /// The checksum of such a packet.
    fn sum(self, protocol: Protocol) -> Sum {
        match self {
            Self::Sum | Self::Length => Sum::Wrong,
            Self::NoSum if protocol != Protocol::Udp => Sum::Wrong,
            Self::Nothing | Self::NoSum | Self::Hops | Self::Kind => Sum::Right,
        }
    }
}

/// The types of an echo's query and answer.
const fn kinds(version: Version) -> [u8; 2] {
    match version {
        Version::V4 => [8, 0],
        Version::V6 => [128, 129],
    }
}

fn other_kind(kind: u8) -> u8 {
    let [query, answer] = kinds(if kind < 128 { Version::V4 } else { Version::V6 });
    if kind == query { answer } else { query }
}

/// A conversation of UDP, or of queries and answers of ICMP.
pub fn converse(bench: &mut Bench, line: &mut Line, mut dice: Dice) -> Result<(), Fault> {
    let start = Instant::now();
    let has_state = line.talk.untracked == Untracked::Nothing;
    let is_udp = line.talk.protocol == Protocol::Udp;
    let time = if has_state && is_udp { ASSURED } else { KNOWN };
    let mut number = 0;
    while start.elapsed() < time {
        if !datagram(bench, line, (number % 2, 30), Wrong::Nothing)? {
            return Ok(());
        }
        number += 1;
        std::thread::sleep(PACE);
    }
    let is_fast = bench.is_fast(line.talk);
    for _ in 0..DATAGRAMS {
        let some = (dice.below(2), dice.below(900));
        match dice.below(12) {
            0 => datagram(bench, line, some, Wrong::NoSum)?,
            1 => datagram(bench, line, some, Wrong::Sum)?,
            2 => datagram(bench, line, some, Wrong::Hops)?,
            3 if is_udp => datagram(bench, line, some, Wrong::Length)?,
            3 => datagram(bench, line, some, Wrong::Kind)?,
            4 => datagram(bench, line, (0, NARROW), Wrong::Nothing)?,
            5 => fragments(bench, line, some.0)?,
            6 | 7 => {
                datagram(bench, line, (some.0, 40), Wrong::Nothing)?
                    && errors::about_last(bench, line, &mut dice)?
            }
            _ => datagram(bench, line, some, Wrong::Nothing)?,
        };
        bench.count.by_tollway += usize::from(is_fast);
    }
    Ok(())
}

/// A packet of each twin.
fn packets(line: &Line, way: usize, len: usize) -> Option<[Packet; 2]> {
    let protocol = line.talk.protocol;
    let packet = |twin: usize| {
        let mut ends = line.ends(way, twin)?;
        // The identifier of an echo is that of the side that asks.
        let identifier = ends[0].port();
        if way == 1 {
            ends.reverse();
        }
        let [from, to] = ends.map(|end| end.port());
        let header = match protocol {
            Protocol::Icmp => [u16::from(kinds(line.talk.version)[way]) << 8, 0, identifier, 1],
            _ => [from, to, (ICMP_HEADER + len) as u16, 0],
        };
        let header = header.map(u16::to_be_bytes).concat();
        let message = [header, vec![way as u8; len]].concat();
        Some(Packet::new(ends.map(|end| end.ip()), protocol, &message))
    };
    Some([packet(ALONE)?, packet(WITH)?])
}

/// Sends a datagram with so many bytes one way. Says whether it arrives.
fn datagram(
    bench: &mut Bench,
    line: &mut Line,
    (way, len): (usize, usize),
    wrong: Wrong,
) -> Result<bool, Fault> {
    let Some(mut packets) = packets(line, way, len) else { return Ok(false) };
    packets.iter_mut().for_each(|packet| wrong.apply(packet));
    let what = format!("{len} bytes, wrong: {wrong:?}");
    let sum = wrong.sum(line.talk.protocol);
    line.packet(bench, way, packets, &Note { what, agreement: Agreement::Exact, sum })
}

/// Sends a datagram in two fragments, which the kernel puts together.
fn fragments(bench: &mut Bench, line: &mut Line, way: usize) -> Result<bool, Fault> {
    let Some(whole) = packets(line, way, 400) else { return Ok(false) };
    let identification = 0x8000 | bench.count.packets as u16;
    let [alone, with] = whole.map(|packet| packet.fragments(FRAGMENT));
    let mut arrives = false;
    // They leave as fragments again, of which the first one is compared.
    for (alone, with) in alone.into_iter().zip(with) {
        let arrived = bench.pass_as(identification, way, [alone, with], Agreement::Exact);
        arrives = line.compare(way, arrived, Agreement::Exact, Sum::Wrong)?;
    }
    Ok(arrives)
}
