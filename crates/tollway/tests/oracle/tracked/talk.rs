//! Conversations: mostly right packets of both sides, some that are not, and errors about them.

use super::build::{self, Ends};
use super::nat::NatRules;
use crate::dice::Dice;
use crate::net;
use crate::packets::Input;

/// Ports of servers, which rules name.
pub const SERVERS: [u16; 4] = [53, 80, 443, 7000];

/// One side of a conversation.
#[derive(Clone, Copy)]
struct End {
    device: usize,
    address: u128,
    port: u16,
    /// Address and port that the other side knows it by.
    seen: (u128, u16),
    /// TCP: the next number to send, and the next one expected.
    next: u32,
    expected: u32,
    /// TCP: by how many bits windows are shifted.
    scale: Option<u8>,
    has_finished: bool,
}

struct Talk {
    is_six: bool,
    ends: [End; 2],
    protocol: u8,
    /// TCP: packets so far.
    phase: u32,
    has_sack: bool,
}

struct Draw<'a> {
    dice: &'a mut Dice,
    talks: Vec<Talk>,
    /// Packets that errors quote: number of the conversation, sender, and packet.
    sent: Vec<(usize, usize, Vec<u8>)>,
}

/// Draws packets of a case, numbered from 1, and if `translates`, rules that translate some of the conversations. Each case
/// has other addresses: the kernel remembers connections.
pub fn draw(dice: &mut Dice, case: u64, count: usize, translates: bool) -> (Vec<Input>, NatRules) {
    let mut talks: Vec<_> =
        (0..2 + dice.below(3)).map(|number| Talk::draw(dice, case, number)).collect();
    let mut rules = NatRules::default();
    if translates {
        talks.iter_mut().for_each(|talk| talk.translate(dice, &mut rules));
    }
    let mut draw = Draw { dice, talks, sent: Vec::new() };
    ((1..=count as u32).map(|tag| draw.packet(tag)).collect(), rules)
}

impl Talk {
    fn draw(dice: &mut Dice, case: u64, number: usize) -> Self {
        let is_six = dice.one_in(3);
        let from = dice.below(4);
        let devices = [from, (from + 1 + dice.below(3)) % 4];
        let host = case % 6000 * 8 + number as u64 + 1;
        let ports = [1024 + dice.below(60000) as u16, dice.pick(&SERVERS)];
        let isns =
            [dice.roll() as u32, if dice.one_in(4) { u32::MAX - 50 } else { dice.roll() as u32 }];
        let end = |side: usize| {
            let base = match is_six {
                true => u128::from(net::behind6(devices[side])),
                false => u32::from(net::behind4(devices[side])).into(),
            };
            let address = base + u128::from(host);
            End {
                device: devices[side],
                address,
                port: ports[side],
                seen: (address, ports[side]),
                next: isns[side],
                expected: 0,
                scale: None,
                has_finished: false,
            }
        };
        let protocol = match (dice.below(12), is_six) {
            (0..7, _) => 6,
            (7 | 8, _) => 17,
            (9 | 10, true) => 58,
            (9 | 10, false) => 1,
            _ => [47, 50, 99][dice.below(3)],
        };
        Self { is_six, ends: [end(0), end(1)], protocol, phase: 0, has_sack: dice.one_in(2) }
    }

    /// The addresses of a packet as it is sent.
    fn between(&self, side: usize) -> Ends {
        let [source, destination] = [self.ends[side].address, self.ends[side ^ 1].seen.0];
        Ends { is_six: self.is_six, source, destination }
    }

    /// An error that the other side sends about a packet: who it is from and to, and the beginning of that packet as it
    /// has arrived there.
    fn quoted(&self, side: usize, packet: &[u8]) -> (Ends, Vec<u8>) {
        let (own, other) = (&self.ends[side], &self.ends[side ^ 1]);
        let arrived = Ends { is_six: self.is_six, source: own.seen.0, destination: other.address };
        let mut payload = packet[if self.is_six { 40 } else { 20 }..].to_vec();
        if matches!(self.protocol, 6 | 17)
            && let Some(ports) = payload.first_chunk_mut::<4>()
        {
            ports[..2].copy_from_slice(&own.seen.1.to_be_bytes());
            ports[2..].copy_from_slice(&other.port.to_be_bytes());
        }
        let back =
            Ends { is_six: self.is_six, source: arrived.destination, destination: arrived.source };
        (back, build::packet(arrived, self.protocol, 0, &payload))
    }
}

impl Draw<'_> {
    fn packet(&mut self, tag: u32) -> Input {
        let at = self.dice.below(self.talks.len());
        if !self.sent.is_empty() && self.dice.one_in(12) {
            return self.error(tag);
        }
        if !self.sent.is_empty() && self.dice.one_in(25) {
            return self.again(tag);
        }
        let (side, payload) = match self.talks[at].protocol {
            6 => self.tcp(at),
            17 => self.udp(at),
            1 | 58 => self.query(at),
            47 => (self.dice.below(2), vec![0; 8]),
            _ => (self.dice.below(2), self.dice.roll().to_be_bytes().to_vec()),
        };
        let talk = &self.talks[at];
        let packet = build::packet(talk.between(side), talk.protocol, tag, &payload);
        let input =
            (talk.ends[side].device, build::frame(talk.ends[side].device, talk.is_six, &packet));
        self.sent.push((at, side, packet));
        input
    }

    /// An earlier packet, with another number.
    fn again(&mut self, tag: u32) -> Input {
        let (at, side, packet) = self.dice.pick(&self.sent);
        let talk = &self.talks[at];
        let header = if talk.is_six { 40 } else { 20 };
        let packet = build::packet(talk.between(side), talk.protocol, tag, &packet[header..]);
        let device = talk.ends[side].device;
        (device, build::frame(device, talk.is_six, &packet))
    }

    /// An error about an earlier packet, from its other end or from a router.
    fn error(&mut self, tag: u32) -> Input {
        let (at, side, quoted) = self.dice.pick(&self.sent);
        let talk = &self.talks[at];
        let (mut ends, quoted) = talk.quoted(side, &quoted);
        if self.dice.one_in(3) {
            ends.source ^= 0x40;
        }
        if self.dice.one_in(6) {
            // Not one of the router's neighbours, of which nobody would answer.
            ends.destination ^= if talk.is_six { 0x10 << 64 } else { 0x1000 };
        }
        let header = if talk.is_six { 40 } else { 20 };
        let mut quoted = quoted[..quoted
            .len()
            .min(header + self.dice.pick(&[if talk.protocol == 47 { 8 } else { 4 }, 8, 20, 60]))]
            .to_vec();
        if self.dice.one_in(8) {
            let at = self.dice.below(quoted.len());
            quoted[at] ^= 1 << self.dice.below(8);
        }
        let kind = if talk.is_six {
            self.dice.pick(&[1, 2, 3, 4])
        } else {
            self.dice.pick(&[3, 11, 12, 4])
        };
        let code = self.dice.below(4) as u8;
        let message = build::icmp(ends, [kind, code], 1280, &quoted);
        let packet = build::packet(ends, if talk.is_six { 58 } else { 1 }, tag, &message);
        let device = talk.ends[side ^ 1].device;
        (device, build::frame(device, talk.is_six, &packet))
    }

    fn udp(&mut self, at: usize) -> (usize, Vec<u8>) {
        let talk = &self.talks[at];
        let side = self.dice.below(2);
        let mut payload = ports(talk, side);
        let data = vec![0x55; self.dice.below(40)];
        payload.extend((8 + data.len() as u16).to_be_bytes());
        payload.extend([0, 0]);
        payload.extend(data);
        build::sign(talk.between(side), 17, &mut payload, 6);
        match self.dice.below(30) {
            0 => payload[6] ^= 1,
            1 if !talk.is_six => payload[6..8].fill(0),
            2 => payload[5] = payload[5].wrapping_add(1),
            3 => payload.truncate(self.dice.below(8)),
            _ => {}
        }
        (side, payload)
    }

    fn query(&mut self, at: usize) -> (usize, Vec<u8>) {
        let talk = &self.talks[at];
        let side = self.dice.below(2);
        let usual = match (talk.is_six, side) {
            (false, 0) => 8,
            (false, _) => 0,
            (true, 0) => 128,
            (true, _) => 129,
        };
        let odd: &[u8] = match talk.is_six {
            false => &[8, 0, 13, 14, 15, 17, 18, 9, 30, 19],
            true => &[128, 129, 139, 140, 132, 143, 144, 200],
        };
        let kind = if self.dice.one_in(6) { self.dice.pick(odd) } else { usual };
        let code = u8::from(self.dice.one_in(12));
        let id = u32::from(talk.ends[0].port) << 16 | self.dice.below(9) as u32;
        let mut message = build::icmp(talk.between(side), [kind, code], id, b"ping");
        match self.dice.below(30) {
            0 => message[2] ^= 4,
            1 => message.truncate(self.dice.below(8)),
            _ => {}
        }
        (side, message)
    }

    /// The next packet of a connection, or one that is not right.
    fn tcp(&mut self, at: usize) -> (usize, Vec<u8>) {
        let dice = &mut *self.dice;
        let talk = &mut self.talks[at];
        let (mut side, mut flags) = match talk.phase {
            0 => (0, 0x02),
            1 if dice.one_in(12) => (1, 0x02),
            1 => (1, 0x12),
            2 => (0, 0x10),
            _ => {
                let both_end = talk.ends.iter().all(|end| end.has_finished);
                match dice.below(if both_end { 6 } else { 20 }) {
                    0 => (dice.below(2), 0x11),
                    1 if both_end || dice.one_in(3) => (dice.below(2), 0x14),
                    2 if both_end => (0, 0x02),
                    _ => (dice.below(2), 0x18),
                }
            }
        };
        let mut length =
            if flags & 0x02 != 0 || dice.one_in(2) { 0 } else { dice.below(300) as u32 };
        let (mut seq, mut ack) = (talk.ends[side].next, talk.ends[side].expected);
        let mut window = dice.pick(&[65535, 1000, 29200, 64240]);
        let is_right = !dice.one_in(4);
        if !is_right {
            let far = dice.pick(&[1_u32, 2, 40, 1000, 66_001, 140_000, 1 << 22, 1 << 31]);
            let far = if dice.one_in(2) { far } else { far.wrapping_neg() };
            match dice.below(9) {
                0 | 1 => seq = seq.wrapping_add(far),
                2 | 3 => ack = ack.wrapping_add(far),
                4 => {
                    flags = dice.pick(&[
                        2, 0x12, 0x10, 0x11, 0x14, 4, 0x18, 0, 1, 0x29, 0x3f, 0x22, 0xc2, 0x31,
                    ]);
                }
                5 => side ^= 1,
                6 => window = 0,
                7 => (seq, flags) = (0, 0x14),
                _ => length = dice.below(1200) as u32,
            }
        }
        let is_lost = is_right && dice.one_in(10);
        let options = options(talk, side, (flags, ack), dice);
        let mut payload = ports(talk, side);
        payload.extend(seq.to_be_bytes());
        payload.extend(if flags & 0x10 == 0 { [0; 4] } else { ack.to_be_bytes() });
        payload.extend([((20 + options.len()) as u8 / 4) << 4, flags]);
        payload.extend((window as u16).to_be_bytes());
        payload.extend([0; 4]);
        payload.extend(&options);
        payload.extend(vec![0x2e; length as usize]);
        build::sign(talk.between(side), 6, &mut payload, 16);
        match dice.below(60) {
            0 => payload[16] ^= 1,
            1 => payload.truncate(dice.below(20)),
            2 => payload[12] ^= 0x80,
            _ => {}
        }
        if is_right {
            talk.advance(side, flags, length, dice);
        }
        if is_lost {
            // Nobody saw it: both sides go on.
            return self.tcp(at);
        }
        (side, payload)
    }
}

impl Talk {
    /// Lets rules translate its source, its destination, or both.
    fn translate(&mut self, dice: &mut Dice, rules: &mut NatRules) {
        let [client, server] = self.ends.map(|end| (end.device, end.address, end.port));
        let drawn = super::nat::draw(dice, (self.is_six, self.protocol), [client, server], rules);
        for (end, seen) in self.ends.iter_mut().zip(drawn) {
            end.seen = seen;
        }
    }

    fn advance(&mut self, side: usize, flags: u8, length: u32, dice: &mut Dice) {
        let next = &mut self.ends[side].next;
        if flags & 0x02 != 0 && side == 0 && self.phase > 2 {
            // Another connection with the same ports.
            *next = next.wrapping_add(dice.pick(&[100_000, 1 << 30, 1 << 31]));
            self.ends.iter_mut().for_each(|end| end.has_finished = false);
            self.phase = 1;
            return;
        }
        *next = next.wrapping_add(length + u32::from(flags & 1) + u32::from(flags >> 1 & 1));
        let next = *next;
        self.ends[side].has_finished |= flags & 5 != 0;
        self.ends[side ^ 1].has_finished |= flags & 4 != 0;
        // The other side mostly sees it.
        if self.phase < 3 || !dice.one_in(5) {
            self.ends[side ^ 1].expected = next;
        }
        self.phase += 1;
    }
}

fn ports(talk: &Talk, side: usize) -> Vec<u8> {
    let [source, destination] = [talk.ends[side].port, talk.ends[side ^ 1].seen.1];
    [source.to_be_bytes(), destination.to_be_bytes()].concat()
}

/// Options, filled up to words.
fn options(talk: &mut Talk, side: usize, (flags, ack): (u8, u32), dice: &mut Dice) -> Vec<u8> {
    let mut options = Vec::new();
    if flags & 2 != 0 {
        if talk.has_sack {
            options.extend([4, 2]);
        }
        if !dice.one_in(3) {
            let scale = dice.below(16) as u8;
            talk.ends[side].scale = Some(scale);
            options.extend([3, 3, scale]);
        }
    } else if dice.one_in(4) {
        let first = ack.wrapping_add(dice.pick(&[0, 10, 1000, 70_000]));
        options.extend([1, 1, 5, 10]);
        options.extend(first.to_be_bytes());
        options.extend(first.wrapping_add(dice.pick(&[1, 100, 3000])).to_be_bytes());
    } else if dice.one_in(3) {
        options.extend([1, 1, 8, 10, 0, 0, 0, 1, 0, 0, 0, 2]);
    }
    if dice.one_in(40) {
        options.extend(dice.pick(&[&[9_u8, 0, 1][..], &[9, 40], &[3], &[0, 3, 3, 7]]));
    }
    while !options.len().is_multiple_of(4) {
        options.push(1);
    }
    options
}
