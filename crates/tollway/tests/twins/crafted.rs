//! Conversations of packets that the test makes, between neighbours without a stack: some belong, and others do not. Each
//! packet is sent in both twins, and what arrives is compared.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::{Duration, Instant};

use tollway_commands::control::{ConnectionFilter, ShowRequest};

use crate::datagrams;
use crate::icmp::checksum;
use crate::scene::{ALONE, PHANTOMS, Twin, WITH, router_mac};
use crate::script::{Protocol, Talk};
use crate::socket::Wire;
use crate::talks::Difference;
use crate::tcp_segments::{ACK, FIN, RST, SYN, Segment, Talk as Conversation};
use crate::testkit::dice::Dice;

/// How long a packet has to arrive in either twin.
const PATIENCE: Duration = Duration::from_millis(25);
/// How long it has in one of them when it has arrived in the other one.
const LONG: Duration = Duration::from_secs(3);
/// Segments that let Tollway take over, their pace, and those that are drawn behind them, at most.
const FIRST: usize = 16;
const PACE: Duration = Duration::from_millis(4);
const SEGMENTS: usize = 90;
/// After so many invalid segments of a way in a row, Tollway follows the windows no more, and the kernel goes on.
const STRAYS: usize = 3;
/// Segments behind those, of which the last two end the connection.
const AFTER: usize = 6;
/// Where a packet's identification, and its checksums, are.
const IDENTIFICATION: std::ops::Range<usize> = 4..6;

/// What came of conversations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub packets: usize,
    pub arrived: usize,
    /// Of connections that Tollway forwarded then.
    pub by_tollway: usize,
    /// Conversations that ended because Tollway was late: meanwhile, the kernel's entry takes what is out of window.
    pub late: usize,
}

/// The neighbours of both twins.
pub struct Bench<'a> {
    twins: &'a [Twin; 2],
    wires: [[Wire; 2]; 2],
    identification: u16,
    pub count: Count,
    /// The last packets of each conversation, for whoever looks for a fault.
    pub told: Vec<String>,
}

impl<'a> Bench<'a> {
    pub fn new(twins: &'a [Twin; 2]) -> Self {
        let wires = [ALONE, WITH].map(|twin| [0, 1].map(|way| twins[twin].wire(way)));
        Self { twins, wires, identification: 0x1000, count: Count::default(), told: Vec::new() }
    }

    /// Has all these conversations, one after the other. Returns how the twins differ.
    pub fn converse(&mut self, talks: &[Talk], seed: u64) -> Vec<Difference> {
        let mut differences = Vec::new();
        for talk in talks {
            let dice = Dice(seed << 8 | u64::from(talk.number));
            let late = self.twins[WITH].late();
            let mut line = Line::new(talk);
            let result = match talk.protocol {
                Protocol::Tcp => self.tcp(&mut line, dice),
                Protocol::Udp => datagrams::converse(self, &mut line, dice),
            };
            self.told.push(format!("{}:\n{}", talk.target, line.told(20)));
            let Err((kind, text)) = result else { continue };
            if kind == Kind::Taken && self.twins[WITH].late() > late {
                self.count.late += 1;
            } else {
                differences.push(format!("{}: {text}", talk.target));
            }
        }
        differences
    }

    /// Sends a packet from one side in both twins. Returns what arrives at the other side.
    pub fn pass(&mut self, way: usize, packets: [Vec<u8>; 2]) -> [Option<Vec<u8>>; 2] {
        self.identification += 1;
        self.pass_as(self.identification, way, packets)
    }

    /// The same, with an identification that other fragments have, too.
    pub fn pass_as(
        &mut self,
        identification: u16,
        way: usize,
        mut packets: [Vec<u8>; 2],
    ) -> [Option<Vec<u8>>; 2] {
        self.count.packets += 1;
        for (packet, wires) in packets.iter_mut().zip(&mut self.wires) {
            packet[IDENTIFICATION].copy_from_slice(&identification.to_be_bytes());
            seal(packet);
            let (net, mac) = PHANTOMS[way];
            wires[way].send(&[&router_mac(net)[..], &mac, &[8, 0], packet].concat()).unwrap();
        }
        let mut alone = self.take(ALONE, 1 - way, identification, PATIENCE);
        let patience = if alone.is_some() { LONG } else { Duration::from_millis(3) };
        let with = self.take(WITH, 1 - way, identification, patience);
        if alone.is_none() && with.is_some() {
            alone = self.take(ALONE, 1 - way, identification, LONG);
        }
        self.count.arrived += usize::from(with.is_some());
        [alone, with]
    }

    /// Waits for a packet.
    fn take(
        &mut self,
        twin: usize,
        side: usize,
        identification: u16,
        patience: Duration,
    ) -> Option<Vec<u8>> {
        let start = Instant::now();
        loop {
            while let Some(frame) = self.wires[twin][side].receive().unwrap() {
                let is_own =
                    frame.len() >= 34 && frame[..6] == PHANTOMS[side].1 && frame[12..14] == [8, 0];
                if is_own && frame[14..][IDENTIFICATION] == identification.to_be_bytes() {
                    let len = usize::from(u16::from_be_bytes([frame[16], frame[17]]));
                    return Some(frame[14..14 + len].to_vec());
                }
            }
            if start.elapsed() > patience {
                return None;
            }
            std::thread::sleep(Duration::from_micros(100));
        }
    }

    /// Says whether Tollway forwards packets of a conversation.
    pub fn is_fast(&self, talk: &Talk) -> bool {
        let port = Some(talk.clients[0].1.port());
        let request = ShowRequest::Connections(ConnectionFilter { port, ..Default::default() });
        let answer = self.twins[WITH].tollway.as_ref().unwrap().show(&request);
        let connections = answer["connections"].as_array().unwrap();
        connections.iter().any(|connection| connection["path"] == "fast")
    }

    fn tcp(&mut self, line: &mut Line, mut dice: Dice) -> Result<(), Fault> {
        let mut conversation = Conversation::new(dice.clone());
        let opening = conversation.opening();
        let opening = if dice.one_in(4) { at_once(&opening) } else { opening.to_vec() };
        for segment in opening {
            if !line.segment(self, &segment, true)? {
                return Ok(());
            }
        }
        for number in 0..FIRST {
            let bytes = if number % 3 == 2 { 0 } else { 100 };
            let segment = conversation.segment(number / 2 % 2, bytes);
            if !line.segment(self, &segment, true)? {
                return Ok(());
            }
            conversation.arrived(&segment);
            std::thread::sleep(PACE);
        }
        let is_fast = self.is_fast(line.talk);
        let mut strays = [0; 2];
        for _ in 0..SEGMENTS {
            let segment = conversation.draw();
            let arrived = line.segment(self, &segment, true)?;
            self.count.by_tollway += usize::from(is_fast);
            strays[segment.way] = if line.is_stray { strays[segment.way] + 1 } else { 0 };
            // The kernel has it again: a SYN does so even where it is invalid.
            let is_end = arrived && segment.flags & (FIN | RST) != 0 || segment.flags & SYN != 0;
            if is_end || strays.contains(&STRAYS) {
                break;
            }
            if arrived {
                conversation.arrived(&segment);
            }
        }
        // Whatever came last, it goes on and ends as it should.
        for number in 0..AFTER {
            let flags = if number < AFTER - 2 { ACK } else { FIN | ACK };
            let segment = conversation.segment(number % 2, 0);
            line.segment(self, &Segment { flags, ..segment }, false)?;
        }
        Ok(())
    }
}

/// How the twins may differ.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A packet arrived only with Tollway.
    Taken,
    Other,
}

pub type Fault = (Kind, String);

/// Both sides open the connection at the same time.
fn at_once(opening: &[Segment; 3]) -> Vec<Segment> {
    let [first, second, last] = opening;
    let second_alone = Segment { flags: SYN, ack: 0, ..second.clone() };
    let answer = Segment { flags: SYN | ACK, ack: last.ack, ..first.clone() };
    vec![first.clone(), second_alone, answer, second.clone()]
}

/// The addresses of a conversation, as the side outside sees them in each twin.
pub struct Line<'a> {
    pub talk: &'a Talk,
    pub outside: [Option<SocketAddrV4>; 2],
    /// The last packet did not arrive, or not translated: the kernels found it invalid.
    is_stray: bool,
    /// The last packets, for whoever looks for the fault.
    seen: Vec<String>,
}

impl<'a> Line<'a> {
    pub const fn new(talk: &'a Talk) -> Self {
        Self { talk, outside: [None; 2], is_stray: false, seen: Vec::new() }
    }

    /// The addresses of packets from the side outside, in a twin: as those of way 0, the other way round.
    pub fn ends(&self, way: usize, twin: usize) -> Option<[SocketAddrV4; 2]> {
        match way {
            0 => Some([self.talk.clients[0].1, self.talk.target]),
            _ => Some([self.outside[twin]?, self.talk.server.1]),
        }
    }

    /// Sends a segment in both twins. Says whether it arrives. `is_exact`: it arrives in both, or in neither.
    fn segment(
        &mut self,
        bench: &mut Bench,
        segment: &Segment,
        is_exact: bool,
    ) -> Result<bool, Fault> {
        let packet = |twin: usize| {
            let ends = self.ends(segment.way, twin)?;
            let hosts = ends.map(|end| (*end.ip()).into());
            Some(segment.packet(hosts, ends.map(|end| end.port())))
        };
        let (Some(alone), Some(with)) = (packet(ALONE), packet(WITH)) else { return Ok(false) };
        let what = format!("{segment:?}");
        self.packet(bench, segment.way, [alone, with], (&what, is_exact, segment.is_damaged))
    }

    /// The same with any packet, whose checksum may be wrong.
    pub fn packet(
        &mut self,
        bench: &mut Bench,
        way: usize,
        packets: [Vec<u8>; 2],
        (what, is_exact, is_damaged): (&str, bool, bool),
    ) -> Result<bool, Fault> {
        let sent = addresses(&packets[WITH]).to_vec();
        let arrived = bench.pass(way, packets);
        self.note(way, what, &arrived);
        let is_translated = self.talk.target != self.talk.server.1
            || self.outside[WITH].is_some_and(|outside| outside != self.talk.clients[0].1);
        self.is_stray =
            arrived[WITH].as_ref().is_none_or(|packet| is_translated && addresses(packet) == sent);
        self.compare(way, arrived, is_exact, is_damaged)
    }

    fn note(&mut self, way: usize, what: &str, arrived: &[Option<Vec<u8>>; 2]) {
        let arrived = arrived.each_ref().map(Option::is_some);
        self.seen.push(format!("way {way}, arrived {arrived:?}: {what}"));
    }

    /// The last packets.
    fn told(&self, count: usize) -> String {
        self.seen[self.seen.len().saturating_sub(count)..].join("\n")
    }

    /// Compares what has arrived.
    pub fn compare(
        &mut self,
        way: usize,
        arrived: [Option<Vec<u8>>; 2],
        is_exact: bool,
        is_damaged: bool,
    ) -> Result<bool, Fault> {
        let told = self.told(8);
        match arrived {
            [None, None] => Ok(false),
            [Some(alone), Some(with)] => {
                let sides = [alone, with];
                for (twin, packet) in sides.iter().enumerate() {
                    if way == 0 && self.outside[twin].is_none() {
                        self.outside[twin] = Some(source(packet));
                    }
                }
                let [alone, with] = sides.each_ref().map(|packet| plain(packet, way));
                if alone != with {
                    return Err((Kind::Other, format!("{told}\n{alone:02x?}\n{with:02x?}")));
                }
                if !is_damaged && sides.iter().any(|packet| !is_whole(packet)) {
                    return Err((
                        Kind::Other,
                        format!("{told}\na checksum is wrong: {sides:02x?}"),
                    ));
                }
                Ok(true)
            }
            [None, Some(_)] if is_exact => {
                Err((Kind::Taken, format!("only with Tollway, one arrived:\n{told}")))
            }
            [None, Some(_)] => Ok(true),
            [Some(_), None] => {
                Err((Kind::Other, format!("only by the kernel alone, one arrived:\n{told}")))
            }
        }
    }
}

/// Computes the checksum of the IPv4 header.
pub fn seal(packet: &mut [u8]) {
    packet[10..12].fill(0);
    let len = usize::from(packet[0] & 15) * 4;
    let sum = checksum(&packet[..len]);
    packet[10..12].copy_from_slice(&sum.to_be_bytes());
}

/// Addresses and ports.
fn addresses(packet: &[u8]) -> &[u8] {
    &packet[12..24]
}

fn source(packet: &[u8]) -> SocketAddrV4 {
    let octets: [u8; 4] = packet[12..16].try_into().unwrap();
    SocketAddrV4::new(Ipv4Addr::from(octets), u16::from_be_bytes([packet[20], packet[21]]))
}

/// A packet without what a kernel may choose: the client's port as the side outside sees it.
fn plain(packet: &[u8], way: usize) -> Vec<u8> {
    let mut plain = packet.to_vec();
    // The port and the checksum that goes with it; in ICMP, those of the packet that it is about.
    let chosen = match packet[9] {
        6 => [20, 36],
        17 => [20, 26],
        _ => [50, 54],
    };
    if way == 0 {
        chosen.into_iter().for_each(|at| plain[at..at + 2].fill(0));
    }
    plain
}

/// Says whether the checksums of a packet are right, as far as it has any.
fn is_whole(packet: &[u8]) -> bool {
    let len = usize::from(packet[0] & 15) * 4;
    let (header, rest) = packet.split_at(len);
    let is_fragment = u16::from_be_bytes([packet[6], packet[7]]) & 0x3fff != 0;
    let mut all = Vec::new();
    match packet[9] {
        17 if rest[6..8] == [0, 0] => return checksum(header) == 0,
        6 | 17 => {
            all.extend(&packet[12..20]);
            all.extend([0, packet[9]]);
            all.extend((rest.len() as u16).to_be_bytes());
        }
        _ => {}
    }
    all.extend(rest);
    checksum(header) == 0 && (is_fragment || checksum(&all) == 0)
}
