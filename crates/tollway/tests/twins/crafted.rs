//! Conversations of packets that the test makes, between neighbours without a stack: some belong, and others do not. Each
//! packet is sent in both twins, and what arrives is compared.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tollway_commands::control::{ConnectionFilter, ShowRequest};

use crate::packets::Packet;
use crate::scene::{ALONE, PHANTOMS, Twin, WITH, router_mac};
use crate::script::{Protocol, Talk, Untracked};
use crate::socket::Wire;
use crate::talks::Difference;
use crate::testkit::dice::Dice;
use crate::{datagrams, segments};

/// How long a packet has to arrive in either twin.
const PATIENCE: Duration = Duration::from_millis(25);
/// How long it has in one of them when it has arrived in the other one.
const LONG: Duration = Duration::from_secs(3);

/// What came of conversations.
#[derive(Clone, Copy, Debug, Default)]
pub struct Count {
    pub packets: usize,
    pub arrived: usize,
    /// Of these, errors of ICMP.
    pub errors: usize,
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
                Protocol::Tcp => segments::converse(self, &mut line, dice),
                Protocol::Udp | Protocol::Icmp => datagrams::converse(self, &mut line, dice),
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
    fn pass(
        &mut self,
        way: usize,
        packets: [Packet; 2],
        agreement: Agreement,
    ) -> [Option<Packet>; 2] {
        self.identification += 1;
        self.pass_as(self.identification, way, packets, agreement)
    }

    /// The same, with an identification that other fragments have, too.
    pub fn pass_as(
        &mut self,
        identification: u16,
        way: usize,
        mut packets: [Packet; 2],
        agreement: Agreement,
    ) -> [Option<Packet>; 2] {
        self.count.packets += 1;
        for (packet, wires) in packets.iter_mut().zip(&mut self.wires) {
            packet.identify(identification);
            let (net, mac) = PHANTOMS[way];
            let frame = [&router_mac(net)[..], &mac, &packet.ethertype(), &packet.0].concat();
            wires[way].send(&frame).unwrap();
        }
        let mut alone = self.take(ALONE, 1 - way, identification, PATIENCE);
        let patience = if alone.is_some() { LONG } else { Duration::from_millis(3) };
        let with = self.take(WITH, 1 - way, identification, patience);
        if alone.is_none() && with.is_some() && agreement == Agreement::Exact {
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
    ) -> Option<Packet> {
        let start = Instant::now();
        loop {
            while let Some(frame) = self.wires[twin][side].receive().unwrap() {
                if !frame.starts_with(&PHANTOMS[side].1) {
                    continue;
                }
                let packet = Packet::of_frame(&frame);
                if packet.as_ref().is_some_and(|packet| packet.identification() == identification) {
                    return packet;
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
        if talk.untracked == Untracked::All {
            // The kernel has no connection that Tollway could show.
            return self.twins[WITH].untracked() > 0;
        }
        let port = Some(talk.clients[0].1.port());
        let request = ShowRequest::Connections(ConnectionFilter { port, ..Default::default() });
        let answer = self.twins[WITH].tollway.as_ref().unwrap().show(&request);
        let connections = answer["connections"].as_array().unwrap();
        connections.iter().any(|connection| connection["path"] == "fast")
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

/// What both twins have to do with a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Agreement {
    /// It arrives in both, or in neither.
    Exact,
    /// If it arrives by the kernel alone, then with Tollway, too.
    AtLeast,
}

/// The checksum of a packet as it arrives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    Right,
    Wrong,
}

/// What there is to say of a packet.
#[derive(Clone, Debug)]
pub struct Note {
    pub what: String,
    pub agreement: Agreement,
    pub sum: Sum,
}

/// The addresses of a conversation, as the side outside sees them in each twin.
pub struct Line<'a> {
    pub talk: &'a Talk,
    pub outside: [Option<SocketAddr>; 2],
    /// The last packet as it arrived, and its way; none if it did not in both twins.
    pub last: Option<(usize, [Packet; 2])>,
    /// The last packet did not arrive, or not translated: the kernels found it invalid.
    pub is_stray: bool,
    /// The last packets, for whoever looks for the fault.
    seen: Vec<String>,
}

impl<'a> Line<'a> {
    pub const fn new(talk: &'a Talk) -> Self {
        Self { talk, outside: [None; 2], last: None, is_stray: false, seen: Vec::new() }
    }

    /// The addresses of packets from the side outside, in a twin: as those of way 0, the other way round.
    pub fn ends(&self, way: usize, twin: usize) -> Option<[SocketAddr; 2]> {
        let socket = |address| self.talk.version.socket(address);
        match way {
            0 => Some([self.talk.clients[0].1, self.talk.target].map(socket)),
            _ => Some([self.outside[twin]?, socket(self.talk.server.1)]),
        }
    }

    /// Sends a packet in both twins. Says whether it arrives.
    pub fn packet(
        &mut self,
        bench: &mut Bench,
        way: usize,
        packets: [Packet; 2],
        note: &Note,
    ) -> Result<bool, Fault> {
        let sent = packets[WITH].tuple();
        let arrived = bench.pass(way, packets, note.agreement);
        self.seen.push(format!(
            "way {way}, arrived {:?}: {}",
            arrived.each_ref().map(Option::is_some),
            note.what
        ));
        let client = self.talk.version.socket(self.talk.clients[0].1);
        let is_translated = self.talk.target != self.talk.server.1
            || self.outside[WITH].is_some_and(|outside| outside != client);
        self.is_stray =
            arrived[WITH].as_ref().is_none_or(|packet| is_translated && packet.tuple() == sent);
        self.last = match &arrived {
            [Some(alone), Some(with)] => Some((way, [alone.clone(), with.clone()])),
            _ => None,
        };
        self.compare(way, arrived, note.agreement, note.sum)
    }

    /// The last packets.
    fn told(&self, count: usize) -> String {
        self.seen[self.seen.len().saturating_sub(count)..].join("\n")
    }

    /// Compares what has arrived.
    pub fn compare(
        &mut self,
        way: usize,
        arrived: [Option<Packet>; 2],
        agreement: Agreement,
        sum: Sum,
    ) -> Result<bool, Fault> {
        let told = self.told(8);
        match arrived {
            [None, None] => Ok(false),
            [Some(alone), Some(with)] => {
                let sides = [alone, with];
                for (twin, packet) in sides.iter().enumerate() {
                    if way == 0 && self.outside[twin].is_none() {
                        self.outside[twin] = Some(packet.source());
                    }
                }
                let [alone, with] = sides.each_ref().map(|packet| packet.plain(way));
                if alone != with {
                    return Err((Kind::Other, format!("{told}\n{alone:02x?}\n{with:02x?}")));
                }
                if sum == Sum::Right && sides.iter().any(|packet| !packet.is_whole()) {
                    return Err((
                        Kind::Other,
                        format!("{told}\na checksum is wrong: {sides:02x?}"),
                    ));
                }
                Ok(true)
            }
            [None, Some(_)] if agreement == Agreement::Exact => {
                Err((Kind::Taken, format!("only with Tollway, one arrived:\n{told}")))
            }
            [None, Some(_)] => Ok(true),
            [Some(_), None] => {
                Err((Kind::Other, format!("only by the kernel alone, one arrived:\n{told}")))
            }
        }
    }
}
