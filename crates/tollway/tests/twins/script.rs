//! What both twins do: rules, settings and conversations, all drawn from one seed.

use std::net::{Ipv4Addr, SocketAddrV4};
use std::time::Duration;

use crate::rules;
use crate::scene::{OUTSIDE, Place, Version, host, phantom, router};
use crate::testkit::dice::Dice;

/// Conversations of a script between sockets, and those of packets that the test makes.
const TALKS: usize = 28;
const CRAFTED: usize = 7;
/// The ports of a conversation, to which its number is added: where the server listens, what the router translates to
/// that, and what clients send from.
const SERVERS: u16 = 20_000;
const PUBLISHED: u16 = 30_000;
const CLIENTS: u16 = 40_000;
/// All ports that a script names; others are those that a kernel has chosen.
const NAMED: u16 = (TALKS + CRAFTED) as u16;

/// Says whether a port is one that the script names.
pub fn is_named(port: u16) -> bool {
    [SERVERS, PUBLISHED, CLIENTS].iter().any(|first| (*first..first + NAMED).contains(&port))
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Tcp,
    Udp,
    /// Echoes, and errors about packets; an echo's identifier is the client's port. Sockets have none.
    Icmp,
}

impl Protocol {
    const fn number_and_name(self, version: Version) -> (u8, &'static str) {
        match (self, version) {
            (Self::Tcp, _) => (6, "tcp"),
            (Self::Udp, _) => (17, "udp"),
            (Self::Icmp, Version::V4) => (1, "icmp"),
            (Self::Icmp, Version::V6) => (58, "icmpv6"),
        }
    }

    /// What the header of IP has for it.
    pub const fn number(self, version: Version) -> u8 {
        self.number_and_name(version).0
    }

    /// Its name in rules.
    pub const fn name(self, version: Version) -> &'static str {
        self.number_and_name(version).1
    }
}

/// One of both ends of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

/// How a conversation's target is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Target {
    /// By its own address.
    Direct,
    /// By an address of the router and a port, which rules translate.
    Published,
    /// By a port of the router, which serves itself.
    Redirected,
}

/// The packets of a conversation that rules keep out of connection tracking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Untracked {
    Nothing,
    FromClients,
    FromServer,
    All,
}

impl Untracked {
    /// Whether packets of a side are among them.
    pub const fn has(self, side: Side) -> bool {
        match side {
            Side::Client => matches!(self, Self::FromClients | Self::All),
            Side::Server => matches!(self, Self::FromServer | Self::All),
        }
    }
}

/// What happens next, with the connection of a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// The client connects.
    Open(usize),
    /// Both sides send small messages in turn.
    Chat(usize, usize),
    /// A side sends so many bytes.
    Say(usize, Side, usize),
    /// The same, while the other side reads nothing for a while.
    Fill(usize, Side, usize),
    Pause(Duration),
    /// A side sends nothing more.
    Shut(usize, Side),
    /// Both sides do so at the same time.
    ShutBoth(usize),
    /// A side ends the connection by an RST.
    Reset(usize, Side),
    /// Both sides have ended; sockets are closed.
    Close(usize),
    /// The server is gone; the client sends to its port.
    Gone(usize),
}

/// A conversation of one server with clients that all send from the same port.
#[derive(Clone, Debug)]
pub struct Talk {
    pub number: u16,
    pub version: Version,
    pub protocol: Protocol,
    pub clients: Vec<(Place, SocketAddrV4)>,
    pub target: SocketAddrV4,
    pub server: (Place, SocketAddrV4),
    pub kind: Target,
    pub untracked: Untracked,
    pub steps: Vec<Step>,
}

/// Timeouts and other settings of the kernel's tracking.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    pub established_s: u64,
    pub udp_stream_s: u64,
    pub udp_s: u64,
    pub others: Vec<(String, u64)>,
}

impl Settings {
    fn new(dice: &mut Dice) -> Self {
        let mut others = Vec::new();
        for (name, values) in [
            ("tcp_timeout_time_wait", [120, 2, 1]),
            ("tcp_timeout_close", [10, 10, 2]),
            ("tcp_timeout_fin_wait", [120, 120, 5]),
            ("tcp_timeout_close_wait", [60, 60, 5]),
            ("tcp_timeout_last_ack", [30, 30, 5]),
            ("tcp_loose", [1, 1, 0]),
            ("tcp_ignore_invalid_rst", [0, 0, 1]),
        ] {
            others.push((name.to_owned(), dice.pick(&values)));
        }
        others.push(("tcp_be_liberal".to_owned(), u64::from(dice.one_in(6))));
        Self {
            established_s: dice.pick(&[432_000, 432_000, 6]),
            udp_stream_s: dice.pick(&[120, 120, 4]),
            udp_s: dice.pick(&[30, 3]),
            others,
        }
    }

    /// All of them, by the end of their sysctl's name.
    pub fn sysctls(&self) -> Vec<(String, u64)> {
        let mut all = self.others.clone();
        for (name, value) in [
            ("tcp_timeout_established", self.established_s),
            ("udp_timeout_stream", self.udp_stream_s),
            ("udp_timeout", self.udp_s),
        ] {
            all.push((name.to_owned(), value));
        }
        all
    }
}

/// All that is drawn for a pair of twins.
#[derive(Clone, Debug)]
pub struct Script {
    pub seed: u64,
    pub engine: &'static str,
    pub version: Version,
    pub settings: Settings,
    pub rules: String,
    pub talks: Vec<Talk>,
    /// Of these, the test makes each packet.
    pub crafted: Vec<Talk>,
}

impl Script {
    pub fn new(seed: u64) -> Self {
        let mut dice = Dice(seed.wrapping_mul(0x1_0001));
        let engine = if seed.is_multiple_of(2) { "xdp" } else { "tc" };
        let version = if seed.is_multiple_of(3) { Version::V6 } else { Version::V4 };
        let settings = Settings::new(&mut dice);
        let mut talks: Vec<_> =
            (0..TALKS).map(|number| talk(number as u16, version, &settings, &mut dice)).collect();
        let mut crafted: Vec<_> =
            (0..CRAFTED).map(|number| crafted(number, version, &mut dice)).collect();
        if !dice.one_in(3) {
            talks.iter_mut().for_each(|talk| talk.untracked = of_sockets(talk, &mut dice));
            crafted.iter_mut().for_each(|talk| talk.untracked = of_crafted(talk, &mut dice));
        }
        let all: Vec<_> = talks.iter().chain(&crafted).cloned().collect();
        let rules = rules::draw(&all, version, &mut dice);
        Self { crafted, seed, engine, version, settings, rules, talks }
    }
}

fn talk(number: u16, version: Version, settings: &Settings, dice: &mut Dice) -> Talk {
    let protocol = if dice.one_in(3) { Protocol::Udp } else { Protocol::Tcp };
    let at = |address: Ipv4Addr, first: u16| SocketAddrV4::new(address, first + number);
    let (client, server) = match dice.below(8) {
        // From outside.
        0 => (1, 0),
        1 | 2 => (0, 2),
        _ => (0, 1),
    };
    let kind = match dice.below(8) {
        0..=3 => Target::Direct,
        7 => Target::Redirected,
        _ => Target::Published,
    };
    // To a service in the network from which it is asked for.
    let is_hairpin = client == 0 && kind == Target::Published && dice.one_in(3);
    let of_server = if is_hairpin { host(0, 1) } else { host(server, dice.below(2) as u8) };
    let (place, server) = match kind {
        Target::Redirected => (Place::Router, at(router(client), SERVERS)),
        _ if is_hairpin => (Place::Host(0), at(of_server, SERVERS)),
        _ => (Place::Host(server), at(of_server, SERVERS)),
    };
    let target = match kind {
        Target::Direct => server,
        Target::Published => at(dice.pick(&[router(1), OUTSIDE[0]]), PUBLISHED),
        Target::Redirected => at(router(client), PUBLISHED),
    };
    let first = if is_hairpin { 0 } else { dice.below(2) as u8 };
    let mut clients = vec![(Place::Host(client), at(host(client, first), CLIENTS))];
    if !is_hairpin && dice.one_in(4) {
        clients.push((Place::Host(client), at(host(client, 1 - first), CLIENTS)));
    }
    let steps = match protocol {
        Protocol::Tcp => of_tcp(clients.len(), settings, dice),
        Protocol::Udp | Protocol::Icmp => of_udp(clients.len(), settings, dice),
    };
    let (server, untracked) = ((place, server), Untracked::Nothing);
    Talk { number, version, protocol, clients, target, server, kind, untracked, steps }
}

/// A conversation of the neighbours without a stack.
fn crafted(number: usize, version: Version, dice: &mut Dice) -> Talk {
    // One of UDP takes seconds until it is assured.
    let protocol = match number {
        0 => Protocol::Udp,
        1 => Protocol::Icmp,
        _ => Protocol::Tcp,
    };
    let number = (TALKS + number) as u16;
    let [client, server] = [(phantom(0), CLIENTS), (phantom(1), SERVERS)]
        .map(|(address, first)| SocketAddrV4::new(address, first + number));
    let (kind, target) = match protocol != Protocol::Icmp && dice.one_in(3) {
        true => (Target::Published, SocketAddrV4::new(router(1), PUBLISHED + number)),
        false => (Target::Direct, server),
    };
    let (clients, server) = (vec![(Place::Host(3), client)], (Place::Host(3), server));
    let (untracked, steps) = (Untracked::Nothing, Vec::new());
    Talk { number, version, protocol, clients, target, server, kind, untracked, steps }
}

/// What rules keep out of tracking in a conversation of sockets. What they translate, they have to track.
fn of_sockets(talk: &Talk, dice: &mut Dice) -> Untracked {
    match talk.protocol {
        _ if talk.kind != Target::Direct || !dice.one_in(3) => Untracked::Nothing,
        // A kernel that sees half of TCP finds it invalid, and a socket sends again what has not arrived: how often, the clocks
        // of both twins decide.
        Protocol::Tcp => Untracked::All,
        Protocol::Udp | Protocol::Icmp => some_or_all(dice),
    }
}

/// The same of packets that the test makes, each of them once.
fn of_crafted(talk: &Talk, dice: &mut Dice) -> Untracked {
    let has_ports = talk.protocol != Protocol::Icmp;
    let is_kept_out = has_ports && talk.kind == Target::Direct && dice.one_in(2);
    if is_kept_out { some_or_all(dice) } else { Untracked::Nothing }
}

fn some_or_all(dice: &mut Dice) -> Untracked {
    dice.pick(&[Untracked::FromClients, Untracked::FromServer, Untracked::All, Untracked::All])
}

fn side(dice: &mut Dice) -> Side {
    dice.pick(&[Side::Client, Side::Server])
}

const fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

fn pause(milliseconds: usize) -> Step {
    Step::Pause(Duration::from_millis(milliseconds as u64))
}

/// Longer than a timeout, by more than the kernel's clocks differ.
fn longer_than(timeout_s: u64) -> Step {
    pause(timeout_s as usize * 1000 + 1500)
}

fn of_tcp(clients: usize, settings: &Settings, dice: &mut Dice) -> Vec<Step> {
    let mut steps: Vec<_> = (0..clients).map(Step::Open).collect();
    for client in 0..clients {
        // Beyond this, Tollway asks for the connection.
        steps.push(Step::Chat(client, 5));
        steps.push(pause(20));
    }
    for _ in 0..2 + dice.below(4) {
        let client = dice.below(clients);
        steps.push(match dice.below(8) {
            0..=3 => Step::Chat(client, 20 + dice.below(150)),
            4 | 5 => Step::Say(client, side(dice), 1 + dice.below(60_000)),
            6 => Step::Fill(client, side(dice), 400_000),
            _ => pause(dice.below(1200)),
        });
    }
    for client in 0..clients {
        steps.extend(end_of_tcp(client, settings, dice));
    }
    steps
}

fn end_of_tcp(client: usize, settings: &Settings, dice: &mut Dice) -> Vec<Step> {
    let one = side(dice);
    let is_short = settings.established_s < 100;
    match dice.below(10) {
        0 => vec![],
        1 => vec![Step::Reset(client, one)],
        2 => vec![Step::Say(client, one, 2000), Step::Reset(client, other(one))],
        3 => vec![
            Step::Shut(client, one),
            Step::Say(client, other(one), 1 + dice.below(20_000)),
            Step::Shut(client, other(one)),
            Step::Close(client),
        ],
        4 => vec![Step::ShutBoth(client), Step::Close(client)],
        5 => vec![Step::Shut(client, one), Step::Reset(client, other(one))],
        6 | 7 => vec![
            // The client's port is free for another connection, while the server's side waits.
            Step::Shut(client, Side::Server),
            Step::Shut(client, Side::Client),
            Step::Close(client),
            Step::Open(client),
            Step::Chat(client, 10 + dice.below(50)),
            pause(20),
            Step::Chat(client, 50),
        ],
        8 if is_short => vec![
            longer_than(settings.established_s),
            Step::Say(client, one, 100),
            Step::Chat(client, 10),
        ],
        _ => vec![Step::Shut(client, one), Step::Shut(client, other(one)), Step::Close(client)],
    }
}

fn of_udp(clients: usize, settings: &Settings, dice: &mut Dice) -> Vec<Step> {
    let mut steps = Vec::new();
    // A connection is assured if packets come both ways for two seconds.
    for round in 0..4 {
        for client in 0..clients {
            steps.push(Step::Chat(client, if round == 0 { 1 } else { 3 }));
        }
        steps.push(pause(720));
    }
    for _ in 0..1 + dice.below(4) {
        let client = dice.below(clients);
        steps.push(match dice.below(8) {
            0 | 1 => Step::Say(client, side(dice), 1 + dice.below(40)),
            2 => pause(dice.below(1200)),
            _ => Step::Chat(client, 50 + dice.below(300)),
        });
    }
    match dice.below(4) {
        0 => steps.push(Step::Gone(0)),
        1 if settings.udp_stream_s < 100 => {
            let one = side(dice);
            steps.push(longer_than(settings.udp_stream_s));
            steps.extend([Step::Say(0, one, 2), Step::Chat(0, 3)]);
        }
        _ => {}
    }
    steps
}
