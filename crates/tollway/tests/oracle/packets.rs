//! Random packets of a case, made of the values that its rules name and of values next to these.
//! They are sound, odd or broken. Each has a number that it keeps on its way: the IPv4
//! identification or the IPv6 flow label.

use crate::constants::Constants;
use crate::dice::Dice;
use crate::icmp::checksum;
use crate::net::{self, DEVICES};

const HOP_BY_HOP: u8 = 0;
const ROUTING: u8 = 43;
const FRAGMENT: u8 = 44;
const AUTH: u8 = 51;
const OPTIONS: u8 = 60;

/// The device on which a packet arrives, and the packet.
pub type Input = (usize, Vec<u8>);

/// Draws `count` packets, numbered from 1.
pub fn draw(constants: &Constants, count: usize, dice: &mut Dice) -> Vec<Input> {
    (1..=count).map(|tag| Draw { constants, dice, measured: false }.packet(tag as u32)).collect()
}

/// The number of a packet, or of the packet that a fragment belongs to; none for packets that the
/// router made.
pub fn tag(frame: &[u8]) -> Option<u32> {
    let packet = frame.get(14..)?;
    let is_four = frame[12] == 8;
    let own = match is_four {
        true => {
            (0..DEVICES.len()).any(|at| packet.get(12..16) == Some(&net::address4(at).octets()))
        }
        false => {
            (0..DEVICES.len()).any(|at| packet.get(8..24) == Some(&net::address6(at).octets()))
        }
    };
    let tag = match is_four {
        true => u32::from(u16::from_be_bytes(*packet.get(4..)?.first_chunk()?)),
        false => u32::from_be_bytes(*packet.first_chunk()?) & 0xf_ffff,
    };
    (!own && tag != 0).then_some(tag)
}

/// Draws packets.
pub struct Draw<'a> {
    pub constants: &'a Constants,
    pub dice: &'a mut Dice,
    /// Whether many packets have the constants' lengths.
    pub measured: bool,
}

impl Draw<'_> {
    fn packet(&mut self, tag: u32) -> Input {
        let from = self.dice.below(DEVICES.len());
        let to = (from + 1 + self.dice.below(DEVICES.len() - 1)) % DEVICES.len();
        let six = self.dice.one_in(2);
        let mut frame = [net::mac(from), [0x0a, 0, 0, 0, 0, from as u8 + 1]].concat();
        frame.extend(if six { [0x86, 0xdd] } else { [8, 0] });
        let large = net::MTU[from] > 1400;
        frame.extend(if six {
            let source = self.dice.pick(&self.constants.six[from]);
            let destination = self.dice.pick(&self.constants.six[to]);
            self.six([source, destination], large, tag)
        } else {
            let source = self.dice.pick(&self.constants.four[from]);
            let destination = self.dice.pick(&self.constants.four[to]);
            self.four([source, destination], large, tag)
        });
        self.end(&mut frame);
        (from, frame)
    }

    /// Pads a frame, truncates it, or leaves it as it is.
    pub fn end(&mut self, frame: &mut Vec<u8>) {
        match self.dice.below(40) {
            // The padding that a network card adds to short frames, and more.
            0..4 => frame.extend(vec![0xfa; 1 + self.dice.below(30)]),
            // Truncated: its length field gives more bytes than the frame has.
            4 => frame.truncate(frame.len() - 1 - self.dice.below(8)),
            _ => {}
        }
    }

    /// An IPv4 packet from one address to another. `large` means that there is room for more than
    /// 1,400 bytes.
    pub fn four(&mut self, [source, destination]: [u32; 2], large: bool, tag: u32) -> Vec<u8> {
        let addresses = [source.to_be_bytes(), destination.to_be_bytes()].concat();
        let options = if self.dice.one_in(12) { self.options() } else { Vec::new() };
        let (protocol, payload) = self.transport(false, &addresses, large);
        let (mut offset, mut more) = (0_u16, false);
        if !self.constants.tracked && self.dice.one_in(6) {
            (offset, more) = self.fragment();
        }
        let payload = self.piece(payload, offset, more);
        let dont = !more && offset == 0 && self.dice.one_in(3);
        let flags = u16::from(dont) << 14 | u16::from(more) << 13 | offset;
        let flags = if self.dice.one_in(60) { flags | 0x8000 } else { flags };
        let words = (5 + options.len() / 4) as u8;
        let length = (20 + options.len() + payload.len()) as u16;
        let mut header = vec![4 << 4 | words, self.dice.roll() as u8];
        header.extend(length.to_be_bytes());
        header.extend((tag as u16).to_be_bytes());
        header.extend(flags.to_be_bytes());
        header.extend([self.ttl(), protocol, 0, 0]);
        header.extend(addresses);
        header.extend(options);
        match self.dice.below(150) {
            0 => header[0] = 5 << 4 | words,
            1 => header[0] = 4 << 4 | self.dice.below(5) as u8,
            2 => header[0] = 4 << 4 | 15,
            3 => header[2..4].copy_from_slice(&(length + 1).to_be_bytes()),
            4 => {
                header[2..4].copy_from_slice(&(length - payload.len().min(1) as u16).to_be_bytes())
            }
            _ => {}
        }
        let sum = checksum(&header).wrapping_add(u16::from(self.dice.one_in(60)));
        header[10..12].copy_from_slice(&sum.to_be_bytes());
        header.extend(payload);
        header
    }

    /// An IPv6 packet, likewise.
    pub fn six(&mut self, [source, destination]: [u128; 2], large: bool, tag: u32) -> Vec<u8> {
        let addresses = [source.to_be_bytes(), destination.to_be_bytes()].concat();
        let (protocol, payload) = self.transport(true, &addresses, large);
        let (first, chain) = if self.dice.one_in(3) {
            self.extensions(protocol, payload)
        } else {
            (protocol, payload)
        };
        let class = u32::from(self.dice.roll() as u8);
        let version = if self.dice.one_in(150) { 5 } else { 6 };
        let mut header = (version << 28 | class << 20 | tag).to_be_bytes().to_vec();
        let length = match self.dice.below(150) {
            0 => chain.len() + 1,
            1 => chain.len().saturating_sub(1),
            _ => chain.len(),
        };
        header.extend((length as u16).to_be_bytes());
        header.extend([first, self.ttl()]);
        header.extend(addresses);
        header.extend(chain);
        header
    }

    fn ttl(&mut self) -> u8 {
        self.dice.pick(&[1, 2, 3, 5, 63, 64, 64, 64, 128, 255])
    }

    /// Draws an offset in units of eight bytes, and whether more fragments follow.
    fn fragment(&mut self) -> (u16, bool) {
        match self.dice.below(5) {
            0 | 1 => (0, true),
            2 | 3 if !self.constants.later_fragments => (0, true),
            2 => (self.dice.pick(&[1, 2, 3, 185]), true),
            3 => (self.dice.pick(&[1, 5, 185, 8191]), false),
            _ => (0, false),
        }
    }

    /// The payload of a fragment.
    fn piece(&mut self, mut payload: Vec<u8>, offset: u16, more: bool) -> Vec<u8> {
        if offset == 0 && more {
            // Tiny fragments, too, which split a transport header.
            payload.resize(self.dice.pick(&[8, 16, 24, 40]), 0);
        } else if offset == 8191 {
            payload.truncate(7);
        } else if more {
            payload.resize(payload.len() / 8 * 8 + 8, 0);
        }
        payload
    }

    /// Draws a protocol and the bytes behind the IP headers, which may be truncated.
    fn transport(&mut self, six: bool, addresses: &[u8], large: bool) -> (u8, Vec<u8>) {
        let icmp = if six { 58 } else { 1 };
        let protocol = match self.dice.below(20) {
            0..7 => 6,
            7..12 => 17,
            12..15 => icmp,
            15 => self.dice.pick(&[132, 136, 33]),
            16 => self.dice.pick(&[47, 50, 108]),
            17 => self.dice.pick(&[1, 58, 2]),
            18 => self.dice.pick(&[4, 41, 59, 255, 103]),
            _ => 17,
        };
        let mut bytes = self.header(protocol);
        let room = match self.dice.below(12) {
            0 => 0,
            1 => usize::from(self.dice.pick(&self.constants.lengths)),
            // A veth accepts no more than its device may send.
            3..7 if self.measured => usize::from(self.dice.pick(&self.constants.lengths)),
            2 if large => 1100 + self.dice.below(200),
            _ => self.dice.below(60),
        };
        bytes.extend((0..room).map(|at| at as u8));
        finish(protocol, six, addresses, &mut bytes, self.dice);
        match self.dice.below(24) {
            0 | 1 => bytes.truncate(self.dice.below(22)),
            // Nothing at all behind the IP headers.
            2 => bytes.clear(),
            _ => {}
        }
        (protocol, bytes)
    }

    fn header(&mut self, protocol: u8) -> Vec<u8> {
        let mut bytes = self.constants.near_port(self.dice).to_be_bytes().to_vec();
        bytes.extend(self.constants.near_port(self.dice).to_be_bytes());
        match protocol {
            6 => {
                bytes.extend([0, 0, 1, 0, 0, 0, 2, 0]);
                let doff = if self.dice.one_in(10) { self.dice.below(16) } else { 5 };
                let flags = self.dice.pick(&[2, 0x10, 0x12, 4, 0x14, 0x18, 0x11, 0x29, 0, 0xff]);
                bytes.extend([(doff as u8) << 4, flags, 0x20, 0, 0, 0, 0, 0]);
            }
            17 | 136 => bytes.extend([0, 8, 0, 0]),
            1 | 58 => {
                let types: [u8; 20] =
                    [0, 8, 8, 3, 4, 5, 6, 7, 9, 10, 11, 12, 13, 17, 18, 19, 128, 129, 1, 2];
                bytes = vec![self.dice.pick(&types), self.dice.below(5) as u8, 0, 0];
                bytes.extend([0, self.dice.below(4) as u8, 0, self.dice.below(4) as u8]);
            }
            _ => bytes.extend([0, 0, 0, 1, 0, 0, 0, 0]),
        }
        bytes
    }

    /// Draws IPv4 options in whole words; a few are malformed.
    fn options(&mut self) -> Vec<u8> {
        let kind = match self.dice.below(7) {
            1 | 2 | 6 if !self.constants.filled_options => 0,
            kind => kind,
        };
        let mut options = match kind {
            0 => vec![1, 1, 1, 0],
            1 => vec![7, 11, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0],
            2 => vec![7, 7, 8, 0, 0, 0, 0, 0],
            3 => vec![148, 4, 0, 0],
            4 => vec![131, 7, 4, 10, 9, 9, 9, 0],
            5 => vec![30, 6, 1, 2, 3, 4, 0, 0],
            _ => vec![7, 40, 4, 0],
        };
        options.resize(options.len().div_ceil(4) * 4, 0);
        options
    }

    /// Draws extension headers before a payload. Returns the first one's number, and all bytes.
    fn extensions(&mut self, protocol: u8, payload: Vec<u8>) -> (u8, Vec<u8>) {
        let mut kinds: Vec<u8> = (0..1 + self.dice.below(5))
            .map(|_| self.dice.pick(&[OPTIONS, OPTIONS, FRAGMENT, ROUTING, AUTH, HOP_BY_HOP]))
            .collect();
        if self.constants.tracked {
            kinds.retain(|kind| *kind != FRAGMENT);
        }
        let (mut next, mut bytes) = (protocol, payload);
        for kind in kinds.into_iter().rev() {
            let mut header = match kind {
                FRAGMENT => {
                    let (offset, more) = self.fragment();
                    bytes = self.piece(bytes, offset, more);
                    let field = (offset << 3 | u16::from(more)).to_be_bytes();
                    vec![next, 0, field[0], field[1], 0, 0, 0, 7]
                }
                AUTH => [&[next, 4, 0, 0, 0, 0, 0, 1][..], &[0; 16]].concat(),
                ROUTING => {
                    let kind = self.dice.pick(&[0, 2, 4, 254]);
                    vec![next, 0, kind, self.dice.below(2) as u8, 0, 0, 0, 0]
                }
                // Padding; sometimes an unknown option, whose type determines what a receiver must do
                // with the packet.
                _ => match self.dice.below(6) {
                    0 => vec![next, 0, self.dice.pick(&[0x1e, 0x5e, 0x9e, 0xde]), 4, 0, 0, 0, 0],
                    1 => [&[next, 1, 1, 12][..], &[0; 12]].concat(),
                    _ => vec![next, 0, 1, 4, 0, 0, 0, 0],
                },
            };
            if self.dice.one_in(30) {
                header[1] = self.dice.roll() as u8;
            }
            header.append(&mut bytes);
            (next, bytes) = (kind, header);
        }
        if self.dice.one_in(15) {
            bytes.truncate(self.dice.below(bytes.len() + 1));
        }
        (next, bytes)
    }
}

/// Writes lengths and checksums of a transport header; a few are wrong.
fn finish(protocol: u8, six: bool, addresses: &[u8], bytes: &mut [u8], dice: &mut Dice) {
    let length = bytes.len() as u16;
    if protocol == 17 {
        bytes[4..6].copy_from_slice(&length.to_be_bytes());
    }
    let at = match protocol {
        6 => 16,
        17 => 6,
        1 | 58 => 2,
        _ => return,
    };
    let mut pseudo = addresses.to_vec();
    pseudo.extend([0, protocol]);
    pseudo.extend(length.to_be_bytes());
    if protocol == 1 && !six {
        pseudo.clear();
    }
    let sum = checksum(&[&pseudo, &*bytes].concat());
    let sum = if sum == 0 { 0xffff } else { sum };
    let sum = sum.wrapping_add(u16::from(dice.one_in(15)));
    let sum = if protocol == 17 && dice.one_in(10) { 0 } else { sum };
    bytes[at..at + 2].copy_from_slice(&sum.to_be_bytes());
}
