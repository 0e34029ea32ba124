//! Datagrams that the test makes, with what may be wrong about them, and messages of ICMP about them.

use std::time::{Duration, Instant};

use etherparse::PacketBuilder;

use crate::crafted::{Bench, Fault, Line};
use crate::icmp;
use crate::scene::{ALONE, WITH, phantom};
use crate::testkit::dice::Dice;

/// After so long, packets in both directions make a connection assured.
const ASSURED: Duration = Duration::from_millis(2300);
const PACE: Duration = Duration::from_millis(60);
/// Datagrams behind that.
const DATAGRAMS: usize = 60;
/// Bytes of a datagram that the device outside does not take in one packet.
const NARROW: usize = 1440;
/// Of what has too large a length of UDP, there is no checksum.
const LONGER: &str = "longer than its packet";
/// Where UDP's length and checksum are.
const LENGTH: usize = 24;
const CHECKSUM: usize = 26;
const TTL: usize = 8;

/// A conversation of UDP.
pub fn converse(bench: &mut Bench, line: &mut Line, mut dice: Dice) -> Result<(), Fault> {
    let start = Instant::now();
    let mut number = 0;
    while start.elapsed() < ASSURED {
        if !datagram(bench, line, number % 2, 30, |_| "plain")? {
            return Ok(());
        }
        number += 1;
        std::thread::sleep(PACE);
    }
    let is_fast = bench.is_fast(line.talk);
    for _ in 0..DATAGRAMS {
        let way = dice.below(2);
        let len = dice.below(900);
        match dice.below(12) {
            0 => datagram(bench, line, way, len, |packet| {
                packet[CHECKSUM..CHECKSUM + 2].fill(0);
                "without a checksum"
            })?,
            1 => datagram(bench, line, way, len, |packet| {
                packet[CHECKSUM] ^= 1;
                "damaged"
            })?,
            2 => datagram(bench, line, way, len, |packet| {
                packet[TTL] = 1;
                "at its end"
            })?,
            3 => datagram(bench, line, way, len, |packet| {
                packet[LENGTH] = 0xff;
                LONGER
            })?,
            4 => datagram(bench, line, 0, NARROW, |_| "too long for the device")?,
            5 => fragments(bench, line, way)?,
            6 | 7 => message(bench, line, way, &mut dice)?,
            _ => datagram(bench, line, way, len, |_| "plain")?,
        };
        bench.count.by_tollway += usize::from(is_fast);
    }
    Ok(())
}

/// A packet of each twin.
fn packets(line: &Line, way: usize, len: usize) -> Option<[Vec<u8>; 2]> {
    let packet = |twin: usize| {
        let mut ends = line.ends(way, twin)?;
        if way == 1 {
            ends.reverse();
        }
        let [from, to] = ends.map(|end| end.ip().octets());
        let builder = PacketBuilder::ipv4(from, to, 64).udp(ends[0].port(), ends[1].port());
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &vec![way as u8; len]).unwrap();
        // It may be fragmented.
        bytes[6..8].fill(0);
        Some(bytes)
    };
    Some([packet(ALONE)?, packet(WITH)?])
}

/// Sends a datagram, changed in some way.
fn datagram(
    bench: &mut Bench,
    line: &mut Line,
    way: usize,
    len: usize,
    change: impl Fn(&mut Vec<u8>) -> &'static str,
) -> Result<bool, Fault> {
    let Some(mut packets) = packets(line, way, len) else { return Ok(false) };
    let [what, _] = packets.each_mut().map(change);
    line.packet(bench, way, packets, (what, true, ["damaged", LONGER].contains(&what)))
}

/// Sends a datagram in two fragments, which the kernel puts together.
fn fragments(bench: &mut Bench, line: &mut Line, way: usize) -> Result<bool, Fault> {
    let Some(whole) = packets(line, way, 400) else { return Ok(false) };
    let identification = 0x8000 | bench.count.packets as u16;
    let part = |range: std::ops::Range<usize>, offset: u16| {
        whole.each_ref().map(|packet| {
            let mut part = [&packet[..20], &packet[range.clone()]].concat();
            let len = (part.len() as u16).to_be_bytes();
            part[2..4].copy_from_slice(&len);
            part[6..8].copy_from_slice(&offset.to_be_bytes());
            part
        })
    };
    let len = whole[0].len();
    let first = bench.pass_as(identification, way, part(20..220, 0x2000));
    line.compare(way, first, true, true)?;
    let second = bench.pass_as(identification, way, part(220..len, 25));
    // They leave as fragments again, of which this is the first one.
    line.compare(way, second, true, true)
}

/// Sends an ICMP error about a datagram of the other side, or about one that nobody has sent.
fn message(bench: &mut Bench, line: &mut Line, way: usize, dice: &mut Dice) -> Result<bool, Fault> {
    let Some(plain) = packets(line, 1 - way, 40) else { return Ok(false) };
    let arrived = bench.pass(1 - way, plain);
    let [Some(alone), Some(with)] = arrived.clone() else {
        return line.compare(1 - way, arrived, true, false);
    };
    let (kind, code, mtu) = dice.pick(&[(3, 3, 0), (3, 1, 0), (3, 4, 1300), (11, 0, 0), (4, 0, 0)]);
    let (is_stranger, len) = (dice.one_in(4), dice.pick(&[28, 60]));
    let by_router = dice.one_in(3);
    let error = [alone, with].map(|mut inner| {
        if is_stranger {
            // Another port: there is no such connection.
            inner[20] ^= 0x55;
        }
        let addresses: [u8; 8] = inner[12..20].try_into().unwrap();
        let [a, b, c, d, e, f, g, h] = addresses;
        inner.truncate(len);
        let mut message = [&[kind, code, 0, 0, 0, 0][..], &u16::to_be_bytes(mtu), &inner].concat();
        let sum = icmp::checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        let from = if by_router { router_behind(way) } else { [e, f, g, h].into() };
        icmp::ip4([from, [a, b, c, d].into()], 0, &message)
    });
    let what = format!("ICMP {kind}, {code}, {}", if is_stranger { "about nothing" } else { "" });
    line.packet(bench, way, error, (&what, true, false))
}

/// Another router, on the way to a side.
fn router_behind(way: usize) -> std::net::Ipv4Addr {
    let [a, b, c, _] = phantom(way).octets();
    [a, b, c, 77].into()
}
