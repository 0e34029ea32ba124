//! Random packets that the fast path forwards, with numbers that occur in the rules.

use super::edges::{self, Edge};
use super::path_bench::{MAC, VID};
use crate::ir::{Field, Match, Ruleset, Step, Test};
use crate::testkit::dice::Dice;

/// IPv4 addresses to draw from, also used as the lower bits of IPv6 addresses.
pub(super) const ADDRESSES: [u32; 8] = [
    0x0a00_0000,
    0x0a00_0100,
    0x0a00_ff00,
    0x0b00_0000,
    0xc000_0200,
    0xc000_02fe,
    0xdfff_ff00,
    0x0100_0000,
];
pub(super) const PORTS: [u16; 8] = [0, 1, 22, 53, 80, 1024, 8080, 65_535];
pub(super) const PROTOCOLS: [u8; 6] = [6, 17, 1, 58, 132, 255];

/// Room for most frames without another allocation.
const ROOM: usize = 256;

/// An IPv6 address with these lower bits.
pub(super) fn six(low: u32) -> u128 {
    0x2001_0db8_u128 << 96 | u128::from(low)
}

/// Numbers to draw packets from, at the edges of rules.
pub struct Frames {
    pub(super) ports: Vec<u16>,
    pub(super) sources: Vec<u32>,
    edges: Vec<Edge>,
}

impl Frames {
    pub(crate) fn new(rules: &Ruleset, dice: &mut Dice) -> Self {
        let (mut ports, mut sources) = (PORTS.to_vec(), ADDRESSES.to_vec());
        let steps = rules.chains.iter().flat_map(|chain| &chain.rules).flat_map(|rule| &rule.steps);
        for step in steps {
            let Step::Match(Match { keys, test: Test::Ranges(ranges), .. }) = step else {
                continue;
            };
            for range in ranges {
                let edges = [
                    range.first.wrapping_sub(1),
                    range.first,
                    range.last,
                    range.last.wrapping_add(1),
                ];
                match keys[0].field {
                    Field::SourcePort | Field::DestinationPort => {
                        ports.extend(edges.map(|edge| edge as u16));
                    }
                    Field::Source4 | Field::Source6 => {
                        sources.extend(edges.map(|edge| edge as u32));
                    }
                    _ => {}
                }
            }
        }
        // Martian packets do not reach the rules.
        sources.retain(|source| !matches!(source >> 24, 0 | 127 | 224..));
        ports.push(dice.roll() as u16);
        Self { ports, sources, edges: edges::edges(rules) }
    }

    /// An untagged IPv4 or IPv6 frame to one station.
    pub(crate) fn plain(&self, dice: &mut Dice) -> Vec<u8> {
        loop {
            let frame = self.draw(dice);
            if frame[0] & 1 == 0 && matches!(frame[12..14], [8, 0] | [0x86, 0xdd]) {
                return frame;
            }
        }
    }

    pub(crate) fn draw(&self, dice: &mut Dice) -> Vec<u8> {
        let is_six = dice.one_in(3);
        let protocol = dice.pick(&PROTOCOLS);
        let mut body = self.transport(dice);
        // The packet ends anywhere, even in its transport header.
        if dice.one_in(6) {
            body.truncate(dice.below(body.len() + 1));
        }
        let source = dice.pick(&self.sources);
        // Routes exist for these and their neighbours.
        let destination = dice.pick(&ADDRESSES) ^ dice.below(2) as u32;
        let mut frame = Vec::with_capacity(ROOM);
        frame.extend_from_slice(&MAC);
        frame.extend_from_slice(&[2, 0, 0, 0, 7, dice.below(3) as u8]);
        if dice.one_in(8) {
            frame[..6].copy_from_slice(&[0x33, 0x33, 0, 0, 0, 1]);
        }
        if dice.one_in(4) {
            frame.extend_from_slice(&[0x81, 0]);
            frame.extend_from_slice(&((dice.below(8) as u16) << 13 | VID).to_be_bytes());
        }
        if dice.one_in(12) {
            frame.extend_from_slice(&[8, 6]);
            frame.extend((0..28).map(|_| dice.below(4) as u8));
            return frame;
        }
        let packet = match is_six {
            false => four(source, destination, protocol, &body, dice),
            true => self.six_packet(source, destination, protocol, &body, dice),
        };
        frame.extend_from_slice(if is_six { &[0x86, 0xdd] } else { &[8, 0] });
        frame.extend_from_slice(&packet);
        if dice.one_in(3) {
            frame.resize(frame.len() + dice.below(20), 0x16);
        }
        frame
    }

    /// A frame with some fields at the edges of rules.
    pub(super) fn at_edges(&self, dice: &mut Dice) -> Vec<u8> {
        let mut frame = self.draw(dice);
        if !self.edges.is_empty() {
            for _ in 0..dice.below(5) {
                dice.pick(&self.edges).put(&mut frame, dice);
            }
        }
        edges::finish(&mut frame);
        frame
    }

    fn transport(&self, dice: &mut Dice) -> Vec<u8> {
        let mut body = vec![0; 20 + dice.below(9)];
        body[..2].copy_from_slice(&dice.pick(&self.ports).to_be_bytes());
        body[2..4].copy_from_slice(&dice.pick(&self.ports).to_be_bytes());
        body[13] = dice.roll() as u8 & 0x1f;
        body
    }

    fn six_packet(
        &self,
        source: u32,
        destination: u32,
        protocol: u8,
        body: &[u8],
        dice: &mut Dice,
    ) -> Vec<u8> {
        let (mut first, mut chain) = (protocol, Vec::with_capacity(ROOM));
        let mut last: Option<usize> = None;
        for _ in 0..if dice.one_in(2) { 0 } else { dice.below(4) } {
            // Routing, fragment, authentication, destination options; hop-by-hop.
            let kind = dice.pick(&[43, 44, 51, 60, 43, 44, 51, 60, 0]);
            match last {
                None => first = kind,
                Some(at) => chain[at] = kind,
            }
            last = Some(chain.len());
            let mut header = [protocol, 0, 0, 0, 0, 0, 0, 0];
            match kind {
                44 => {
                    let field = dice.pick(&[0_u16, 1, 8, 9, 0xfff8]);
                    header[2..4].copy_from_slice(&field.to_be_bytes());
                }
                _ if dice.one_in(6) => header[1] = dice.below(4) as u8,
                _ => {}
            }
            chain.extend(header);
        }
        chain.extend_from_slice(body);
        let mut packet = Vec::with_capacity(ROOM);
        packet.extend_from_slice(&[0x60, (dice.below(4) as u8) << 6, 0, 0]);
        packet.extend_from_slice(&(chain.len() as u16).to_be_bytes());
        packet.extend_from_slice(&[first, dice.pick(&[2, 64, 65, 255])]);
        packet.extend_from_slice(&six(source).to_be_bytes());
        packet.extend_from_slice(&six(destination).to_be_bytes());
        packet.extend(chain);
        packet
    }
}

fn four(source: u32, destination: u32, protocol: u8, body: &[u8], dice: &mut Dice) -> Vec<u8> {
    // No-operation options up to the header's length.
    let options = vec![1; if dice.one_in(8) { 4 + dice.below(10) * 4 } else { 0 }];
    let header_len = 20 + options.len();
    let mut packet = Vec::with_capacity(ROOM);
    packet.extend_from_slice(&[0x40 | (header_len / 4) as u8, (dice.below(4) as u8) << 2]);
    packet.extend_from_slice(&((header_len + body.len()) as u16).to_be_bytes());
    packet.extend_from_slice(&[0, 7]);
    let fragment =
        if dice.one_in(4) { dice.pick(&[0x2000_u16, 1, 0x2001, 0x1fff]) } else { 0x4000 };
    packet.extend_from_slice(&fragment.to_be_bytes());
    packet.extend_from_slice(&[dice.pick(&[2, 64, 65, 255]), protocol, 0, 0]);
    packet.extend_from_slice(&source.to_be_bytes());
    packet.extend_from_slice(&destination.to_be_bytes());
    packet.extend(options);
    let sum = !tollway_dataplane::wire::checksum::sum(&packet);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
    packet.extend_from_slice(body);
    packet
}
