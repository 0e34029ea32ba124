//! Random frames, between hosts that the bridge knows and others, sound and odd.

use super::net::{BRIDGE, HOSTS, host, port_mac};
use crate::dice::Dice;
use crate::icmp::checksum;

const IPV4: [u8; 2] = [0x08, 0x00];
const IPV6: [u8; 2] = [0x86, 0xdd];
const ARP: [u8; 2] = [0x08, 0x06];
/// Protocols that bridges know or not: RARP, MRP, CFM, PPPoE, LLDP, MPLS, one for experiments, a length.
const OTHERS: [[u8; 2]; 8] = [
    [0x80, 0x35],
    [0x88, 0xe3],
    [0x89, 0x02],
    [0x88, 0x64],
    [0x88, 0xcc],
    [0x88, 0x47],
    [0x88, 0xb6],
    [0x00, 0x2e],
];
const TAGS: [[u8; 2]; 2] = [[0x81, 0x00], [0x88, 0xa8]];
const PROTOCOLS: [u8; 4] = [17, 17, 6, 1];
/// Payload lengths: about the MTUs of ports, and beyond them.
const LENGTHS: [usize; 8] = [0, 18, 64, 1280, 1372, 1452, 1472, 2000];

/// Draws frames.
pub struct Draw<'a> {
    pub dice: &'a mut Dice,
    /// The number of ports.
    pub ports: usize,
    /// The port that each host is behind.
    pub homes: [usize; HOSTS],
    /// The number of the last frame, which makes each one different.
    pub number: u16,
}

impl Draw<'_> {
    /// A frame for everybody, from which a bridge learns where a host is.
    pub fn announcement(&mut self, number: usize) -> (usize, Vec<u8>) {
        let mut frame = [[0xff; 6], host(number)].concat();
        frame.extend(self.content(true));
        (self.homes[number], frame)
    }

    /// The port where a frame arrives, and the frame.
    pub fn frame(&mut self) -> (usize, Vec<u8>) {
        if self.dice.one_in(2) { self.known() } else { self.any() }
    }

    /// A sound frame between two hosts.
    fn known(&mut self) -> (usize, Vec<u8>) {
        let [from, to] = [(); 2].map(|()| self.dice.below(HOSTS));
        let is_elsewhere = |to: &usize| self.homes[*to] != self.homes[from];
        let to = (to..HOSTS).chain(0..to).find(is_elsewhere).unwrap_or(to);
        let frame = [&host(to)[..], &host(from), &self.content(true)].concat();
        (self.homes[from], frame)
    }

    /// Any frame.
    fn any(&mut self) -> (usize, Vec<u8>) {
        let number = self.dice.below(HOSTS);
        let mut port = self.homes[number];
        let source = match self.dice.below(40) {
            0 => [0; 6],
            1 => [0x01, 0, 0x5e, 0, 0, 1],
            2 => BRIDGE,
            3 => port_mac(self.dice.below(self.ports)),
            4 => [2, 0, 0, 0, 9, self.dice.below(256) as u8],
            5 | 6 => {
                port = self.dice.below(self.ports);
                host(number)
            }
            7 => {
                port = self.dice.below(self.ports);
                self.homes[number] = port;
                host(number)
            }
            _ => host(number),
        };
        let is_plain = !self.dice.one_in(3);
        let frame = [&self.destination()[..], &source, &self.content(is_plain)].concat();
        (port, frame)
    }

    fn destination(&mut self) -> [u8; 6] {
        let low = self.dice.below(256) as u8;
        match self.dice.below(30) {
            0 => [0xff; 6],
            1 => [0x01, 0, 0x5e, 0, 0, low],
            2 => [0x33, 0x33, 0, 0, 0, low],
            3 => [0x01, 0x80, 0xc2, 0, 0, low % 34],
            4 => BRIDGE,
            5 => port_mac(self.dice.below(self.ports)),
            6 | 7 => [2, 0, 0, 0, 8, low],
            8 => [0; 6],
            _ => host(self.dice.below(HOSTS)),
        }
    }

    /// What a frame has behind its addresses.
    fn content(&mut self, is_plain: bool) -> Vec<u8> {
        self.number += 1;
        let mut content = Vec::new();
        let tags = if is_plain { 0 } else { [0, 0, 0, 1, 1, 2][self.dice.below(6)] };
        for _ in 0..tags {
            content.extend(self.dice.pick(&TAGS));
            content.extend((self.dice.below(4) as u16 * 10).to_be_bytes());
        }
        let kind = if is_plain { self.dice.below(2) } else { self.dice.below(5) };
        match kind {
            0 => content.extend([&IPV4, &self.four(is_plain)[..]].concat()),
            1 => content.extend([&IPV6, &self.six(is_plain)[..]].concat()),
            2 => content.extend([&ARP, &self.arp()[..]].concat()),
            _ => {
                content.extend(self.dice.pick(&OTHERS));
                content.extend([&self.number.to_be_bytes(), &[0x5a; 44][..]].concat());
            }
        }
        if !is_plain {
            self.spoil(&mut content);
        }
        content
    }

    /// Pads a frame, cuts it off, changes a byte, or leaves it as it is.
    fn spoil(&mut self, content: &mut Vec<u8>) {
        match self.dice.below(8) {
            0 | 1 => content.resize(content.len() + 1 + self.dice.below(30), 0xfa),
            2 => content.truncate(content.len() - 1 - self.dice.below(content.len() - 2)),
            3 => {
                let at = 2 + self.dice.below(content.len().min(40) - 2);
                content[at] ^= 1 << self.dice.below(8);
            }
            _ => {}
        }
    }

    fn payload(&mut self, is_plain: bool) -> Vec<u8> {
        let len = if is_plain { self.dice.below(64) } else { self.dice.pick(&LENGTHS) };
        // About the boundary.
        let len = len + if is_plain { 0 } else { self.dice.below(9) };
        vec![0xda; len]
    }

    /// The transport header and payload: of UDP, TCP or an echo, with ports that no other frame has.
    fn transport(&mut self, is_plain: bool) -> (u8, Vec<u8>) {
        let protocol = self.dice.pick(&PROTOCOLS);
        let payload = self.payload(is_plain);
        let (from, to) = (self.number.to_be_bytes(), self.dice.pick(&[7_u16, 9, 53]).to_be_bytes());
        let len = (8 + payload.len() as u16).to_be_bytes();
        let header = match protocol {
            6 => [&from[..], &to, &[0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x18, 1, 0, 0x12, 0x34, 0, 0]]
                .concat(),
            17 => [from, to, len, [0x56, 0x78]].concat(),
            _ => [[8, 0], [0x12, 0x34], from, to].concat(),
        };
        (protocol, [header, payload].concat())
    }

    fn four(&mut self, is_plain: bool) -> Vec<u8> {
        let (protocol, transport) = self.transport(is_plain);
        let options = if !is_plain && self.dice.one_in(6) { 4 } else { 0 };
        let number = self.number.to_be_bytes();
        let len = ((20 + options + transport.len()) as u16).to_be_bytes();
        let fragment = if !is_plain && self.dice.one_in(6) { [0x20, 0] } else { [0x40, 0] };
        let words = 0x45 + options as u8 / 4;
        let mut header =
            [words, 0, len[0], len[1], number[0], number[1], fragment[0], fragment[1]].to_vec();
        header.extend([64, protocol, 0, 0]);
        header.extend([10, 0, 0, 1 + self.dice.below(HOSTS) as u8]);
        header.extend([10, 0, 0, 1 + self.dice.below(HOSTS) as u8]);
        header.resize(20 + options, 1);
        let sum = checksum(&header).to_be_bytes();
        header[10..12].copy_from_slice(&sum);
        [header, transport].concat()
    }

    fn six(&mut self, is_plain: bool) -> Vec<u8> {
        let (mut protocol, mut transport) = self.transport(is_plain);
        if protocol == 1 {
            protocol = 58;
            // Echoes, and neighbour discovery.
            transport[0] = self.dice.pick(&[128, 128, 135, 136]);
        }
        if !is_plain && self.dice.one_in(6) {
            transport = [&[protocol, 0, 1, 4, 0, 0, 0, 0][..], &transport].concat();
            protocol = self.dice.pick(&[0, 60]);
        }
        let len = (transport.len() as u16).to_be_bytes();
        let mut packet = vec![0x60, 0, self.number.to_be_bytes()[0], self.number.to_be_bytes()[1]];
        packet.extend([len[0], len[1], protocol, 64]);
        for _ in 0..2 {
            packet.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
            packet.push(1 + self.dice.below(HOSTS) as u8);
        }
        [packet, transport].concat()
    }

    /// A request or reply; the bridge has the address 10.0.0.254 and answers for those of its neighbours.
    fn arp(&mut self) -> Vec<u8> {
        let mut packet = vec![0, 1, 8, 0, 6, 4, 0, 1 + self.dice.below(2) as u8];
        let number = self.dice.below(HOSTS);
        let target = self.dice.pick(&[1, 2, 3, 254]);
        packet.extend(host(number));
        packet.extend([10, 0, 0, 1 + number as u8]);
        packet.extend([0, 0, 0, 0, 0, 0, 10, 0, 0, target]);
        packet.extend([&self.number.to_be_bytes(), &[0; 16][..]].concat());
        packet
    }
}
