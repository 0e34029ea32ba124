//! Conversations of TCP, with segments that belong into them and others that do not.

use std::net::IpAddr;

use etherparse::PacketBuilder;

use crate::testkit::dice::Dice;

pub const FIN: u8 = 1;
pub const SYN: u8 = 2;
pub const RST: u8 = 4;
pub const PSH: u8 = 8;
pub const ACK: u8 = 16;
pub const URG: u8 = 32;

/// A segment; `way` is 0 from the side that opens the connection.
#[derive(Clone, Debug)]
pub struct Segment {
    pub way: usize,
    pub seq: u32,
    pub ack: u32,
    pub flags: u8,
    pub win: u16,
    pub options: Vec<u8>,
    pub bytes: usize,
    pub is_damaged: bool,
}

/// What one side has sent and accepted.
#[derive(Clone, Copy, Debug, Default)]
struct Side {
    next: u32,
    /// What the other side has acknowledged.
    acknowledged: u32,
    win: u16,
    scale: u8,
}

/// Both sides of a conversation, whose segments all arrive.
pub struct Talk {
    sides: [Side; 2],
    has_sack: bool,
    has_timestamps: bool,
    dice: Dice,
}

impl Segment {
    /// The packet between these addresses and ports, those of way 0.
    pub fn packet(&self, hosts: [IpAddr; 2], ports: [u16; 2]) -> Vec<u8> {
        let (from, to) = (self.way, 1 - self.way);
        let (builder, tcp) = match (hosts[from], hosts[to]) {
            (IpAddr::V4(from), IpAddr::V4(to)) => {
                (PacketBuilder::ipv4(from.octets(), to.octets(), 64), 20)
            }
            (IpAddr::V6(from), IpAddr::V6(to)) => {
                (PacketBuilder::ipv6(from.octets(), to.octets(), 64), 40)
            }
            _ => panic!("{hosts:?} are of two families"),
        };
        let mut builder = builder.tcp(ports[from], ports[to], self.seq, self.win);
        let has = |flag| self.flags & flag != 0;
        if has(ACK) {
            builder = builder.ack(self.ack);
        }
        for (flag, set) in [(FIN, 0), (SYN, 1), (RST, 2), (PSH, 3), (URG, 4)] {
            builder = match (has(flag), set) {
                (true, 0) => builder.fin(),
                (true, 1) => builder.syn(),
                (true, 2) => builder.rst(),
                (true, 3) => builder.psh(),
                (true, 4) => builder.urg(1),
                _ => builder,
            };
        }
        let builder = builder.options_raw(&self.options).unwrap();
        let payload = vec![0x55; self.bytes];
        let mut bytes = Vec::new();
        builder.write(&mut bytes, &payload).unwrap();
        if self.is_damaged {
            // Its checksum.
            bytes[tcp + 16] ^= 0x10;
        }
        bytes
    }
}

impl Talk {
    /// A conversation that begins now; what its sides can do is drawn.
    pub fn new(mut dice: Dice) -> Self {
        let side = |dice: &mut Dice| {
            // Numbers that are about to wrap, and others.
            let next = if dice.one_in(2) { 0xffff_f000 } else { dice.roll() as u32 };
            let scale = if dice.one_in(3) { 0 } else { dice.below(10) as u8 };
            Side { next, acknowledged: next, win: 0xffff, scale }
        };
        let sides = [side(&mut dice), side(&mut dice)];
        let (has_sack, has_timestamps) = (!dice.one_in(4), dice.one_in(2));
        Self { sides, has_sack, has_timestamps, dice }
    }

    /// The three segments that open it.
    pub fn opening(&mut self) -> [Segment; 3] {
        let mut options = vec![2, 4, 5, 0xb4];
        if self.has_sack {
            options.extend([4, 2, 1, 1]);
        }
        let open = |talk: &mut Self, way: usize, flags: u8| {
            let scale = talk.sides[way].scale;
            let options = [&options[..], &[1, 3, 3, scale]].concat();
            let segment = talk.segment(way, 0);
            talk.sides[way].next = segment.seq.wrapping_add(1);
            Segment { flags, options, ..segment }
        };
        let (first, second) = (open(self, 0, SYN), open(self, 1, SYN | ACK));
        self.sides.iter_mut().for_each(|side| side.acknowledged = side.next);
        [first, second, self.segment(0, 0)]
    }

    /// The next segment of a side, with so much data.
    pub fn segment(&self, way: usize, bytes: usize) -> Segment {
        let (own, other) = (&self.sides[way], &self.sides[1 - way]);
        Segment {
            way,
            seq: own.next,
            ack: other.next,
            flags: ACK,
            win: own.win,
            options: self.options(&[]),
            bytes,
            is_damaged: false,
        }
    }

    fn options(&self, blocks: &[[u32; 2]]) -> Vec<u8> {
        let mut options = Vec::new();
        if self.has_timestamps {
            options.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
        }
        if !blocks.is_empty() {
            options.extend([1, 1, 5, 2 + 8 * blocks.len() as u8]);
            options.extend(blocks.iter().flatten().flat_map(|edge| edge.to_be_bytes()));
        }
        options
    }

    /// A segment of any kind, most of them as they belong.
    pub fn draw(&mut self) -> Segment {
        let way = self.dice.below(2);
        let bytes = if self.dice.one_in(2) { 0 } else { 1 + self.dice.below(1200) };
        if self.dice.one_in(6) {
            self.sides[way].win = self.dice.pick(&[0, 1, 100, 5000, 0xffff]);
        }
        let mut segment = self.segment(way, bytes);
        match self.dice.below(16) {
            0 => segment.seq = self.near(segment.seq),
            1 => segment.ack = self.near(segment.ack),
            2 => {
                let blocks = 1 + self.dice.below(3);
                let blocks: Vec<_> = (0..blocks)
                    .map(|_| {
                        let end = self.near(segment.ack);
                        [end.wrapping_sub(500), end]
                    })
                    .collect();
                segment.options = self.options(&blocks);
            }
            3 => segment.is_damaged = self.dice.one_in(3),
            4 => segment.flags |= self.dice.pick(&[PSH, URG, PSH | URG]),
            5 if self.dice.one_in(4) => {
                segment.flags =
                    self.dice.pick(&[0, FIN, SYN | FIN, ACK | SYN | FIN, URG, RST | URG]);
            }
            6 if self.dice.one_in(4) => {
                segment.flags = self.dice.pick(&[RST, RST | ACK]);
                segment.bytes = 0;
                segment.seq = match self.dice.below(4) {
                    0 => self.sides[way].acknowledged,
                    1 => segment.seq,
                    _ => self.near(segment.seq),
                };
            }
            7 if self.dice.one_in(8) => segment.flags |= FIN,
            8 if self.dice.one_in(30) => segment.flags = self.dice.pick(&[SYN, SYN | ACK]),
            // A probe whether the other side still lives.
            9 => segment.seq = segment.seq.wrapping_sub(1),
            _ => {}
        }
        segment
    }

    /// A number near another one, at the borders of windows or beyond.
    fn near(&mut self, number: u32) -> u32 {
        let window = 0xffff_u32 << self.dice.below(10);
        let far =
            self.dice.pick(&[0, 1, 2, 100, 1000, 66_000, window, window + 1, 1 << 30, 1 << 31]);
        let far = if self.dice.one_in(3) { self.dice.below(70_000) as u32 } else { far };
        if self.dice.one_in(2) { number.wrapping_add(far) } else { number.wrapping_sub(far) }
    }

    /// Takes note of a segment that arrived where it belongs.
    pub fn arrived(&mut self, segment: &Segment) {
        let (way, back) = (segment.way, 1 - segment.way);
        if segment.flags & (SYN | FIN | RST) != 0 || segment.seq != self.sides[way].next {
            return;
        }
        self.sides[way].next = segment.seq.wrapping_add(segment.bytes as u32);
        if segment.ack == self.sides[back].next {
            self.sides[back].acknowledged = segment.ack;
        }
    }
}
