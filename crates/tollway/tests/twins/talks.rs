//! A conversation between sockets, in both twins step by step.

use std::fmt::Debug;
use std::io::{self, ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::time::{Duration, Instant};

use crate::scene::{ALONE, Twin, WITH};
use crate::script::{Protocol, Side, Step, Talk};
use crate::sockets;

/// How long the first twin has for each thing that may happen.
const PATIENCE: Duration = Duration::from_millis(400);
/// How long one twin has for what has happened in the other one.
const LONG: Duration = Duration::from_secs(6);
/// How long the second one has for what has not happened in the first one.
const GRACE: Duration = Duration::from_millis(50);
/// Bytes of a message in a chat, and of a datagram.
const MESSAGE: usize = 24;
/// How long a side that is to read nothing does so.
const DEAF: Duration = Duration::from_millis(400);

/// How the twins differ.
pub type Difference = String;

/// What an end has received, or what has happened to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Done,
    End,
    Failed(ErrorKind),
    Wrong,
}

/// What came of a step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Done,
    /// In both twins, what was sent did not arrive, or an end has failed.
    Stopped,
}

/// Lets the same happen in both twins, and waits for it; none if nothing happens.
fn both<T: PartialEq + Debug>(
    what: &str,
    mut look: impl FnMut(usize, Duration) -> Option<T>,
) -> Result<Option<T>, Difference> {
    let mut alone = look(ALONE, PATIENCE);
    let with = look(WITH, if alone.is_some() { LONG } else { GRACE });
    if alone.is_none() && with.is_some() {
        alone = look(ALONE, LONG);
    }
    match alone == with {
        true => Ok(with),
        false => Err(format!("{what}: {alone:?} by the kernel alone, {with:?} with Tollway")),
    }
}

/// The bytes that a side of a conversation sends, from some place on.
fn payload(talk: &Talk, client: usize, side: Side, from: usize, len: usize) -> Vec<u8> {
    let first = usize::from(talk.number) * 7 + client * 3 + usize::from(side == Side::Server);
    (from..from + len).map(|at| ((at + first) % 251) as u8).collect()
}

/// One connection in both twins.
#[derive(Default)]
struct Line {
    clients: [Option<TcpStream>; 2],
    servers: [Option<TcpStream>; 2],
    /// Bytes that the client and the server have sent.
    sent: [usize; 2],
}

impl Line {
    fn end(&self, side: Side, twin: usize) -> &TcpStream {
        let ends = if side == Side::Client { &self.clients } else { &self.servers };
        ends[twin].as_ref().unwrap()
    }

    fn take(&mut self, side: Side, twin: usize) -> TcpStream {
        let ends = if side == Side::Client { &mut self.clients } else { &mut self.servers };
        ends[twin].take().unwrap()
    }
}

const fn other(side: Side) -> Side {
    match side {
        Side::Client => Side::Server,
        Side::Server => Side::Client,
    }
}

/// A conversation that goes on.
pub struct Running<'a> {
    twins: &'a [Twin; 2],
    talk: &'a Talk,
    listeners: Vec<TcpListener>,
    lines: Vec<Line>,
    /// Of UDP.
    clients: [Vec<UdpSocket>; 2],
    servers: [Option<UdpSocket>; 2],
    /// Where the server saw each client, and how many messages each has sent.
    peers: [Vec<Option<SocketAddr>>; 2],
    messages: usize,
}

impl<'a> Running<'a> {
    /// Opens the sockets.
    pub fn new(twins: &'a [Twin; 2], talk: &'a Talk) -> io::Result<Self> {
        let (place, address) = (talk.server.0, talk.version.socket(talk.server.1));
        let count = talk.clients.len();
        let mut running = Self {
            twins,
            talk,
            listeners: Vec::new(),
            lines: Vec::new(),
            clients: [Vec::new(), Vec::new()],
            servers: [None, None],
            peers: [vec![None; count], vec![None; count]],
            messages: 0,
        };
        running.lines.resize_with(count, Line::default);
        for (number, twin) in twins.iter().enumerate() {
            if talk.protocol == Protocol::Tcp {
                let listener = twin.within(place, move || sockets::listen(address))?;
                listener.set_nonblocking(true)?;
                running.listeners.push(listener);
                continue;
            }
            running.servers[number] =
                Some(twin.within(place, move || nonblocking(UdpSocket::bind(address)?))?);
            for (place, from) in talk.clients.clone() {
                let [from, target] = [from, talk.target].map(|at| talk.version.socket(at));
                let open = move || {
                    let socket = UdpSocket::bind(from)?;
                    socket.connect(target)?;
                    nonblocking(socket)
                };
                running.clients[number].push(twin.within(place, open)?);
            }
        }
        Ok(running)
    }

    /// Does one step in both twins.
    pub fn step(&mut self, step: &Step) -> Result<Outcome, Difference> {
        let event = match *step {
            Step::Pause(time) => {
                std::thread::sleep(time);
                Some(Event::Done)
            }
            Step::Open(client) => self.open(client)?,
            Step::Chat(client, rounds) => self.chat(client, rounds)?,
            Step::Say(client, side, count) if self.talk.protocol == Protocol::Udp => {
                self.datagrams(client, side, count)?
            }
            Step::Say(client, side, bytes) => self.carry(client, side, bytes, Duration::ZERO)?,
            Step::Fill(client, side, bytes) => self.carry(client, side, bytes, DEAF)?,
            Step::Shut(client, side) => {
                self.shut(client, side);
                self.hears(client, other(side))?
            }
            Step::ShutBoth(client) => {
                self.shut_both(client);
                let first = self.hears(client, Side::Server)?;
                first.and(self.hears(client, Side::Client)?)
            }
            Step::Reset(client, side) => {
                for twin in [ALONE, WITH] {
                    sockets::reset(self.lines[client].take(side, twin));
                }
                self.hears(client, other(side))?;
                // The connection has no further steps.
                Some(Event::Done)
            }
            Step::Close(client) => {
                self.lines[client] = Line::default();
                Some(Event::Done)
            }
            Step::Gone(client) => {
                self.servers = [None, None];
                self.send(client, Side::Client);
                both("a message to nobody", |twin, patience| {
                    of_datagram(&self.clients[twin][client], &[], patience).map(|(event, _)| event)
                })?;
                Some(Event::Done)
            }
        };
        Ok(match event {
            Some(Event::Done | Event::End) => Outcome::Done,
            _ => Outcome::Stopped,
        })
    }

    fn open(&mut self, client: usize) -> Result<Option<Event>, Difference> {
        let (place, from) = self.talk.clients[client];
        let [from, target] = [from, self.talk.target].map(|at| self.talk.version.socket(at));
        let mut line = Line::default();
        let mut is_possible = [true; 2];
        for (number, twin) in self.twins.iter().enumerate() {
            match twin.within(place, move || sockets::connect(from, target)) {
                Ok(stream) => line.clients[number] = Some(stream),
                Err(_) => is_possible[number] = false,
            }
        }
        if is_possible[ALONE] != is_possible[WITH] {
            return Err(format!("whether a socket is to be had: {is_possible:?}"));
        }
        if !is_possible[ALONE] {
            return Ok(None);
        }
        let event = both("connecting", |twin, patience| {
            let opened = sockets::is_connected(line.end(Side::Client, twin), patience)?;
            Some(opened.map_or_else(|error| Event::Failed(error.kind()), |()| Event::Done))
        })?;
        if event != Some(Event::Done) {
            self.lines[client] = line;
            return Ok(event);
        }
        let event = both("accepting", |twin, patience| {
            if line.servers[twin].is_none() {
                if !sockets::waited(&self.listeners[twin], libc::POLLIN, patience) {
                    return None;
                }
                let (stream, _) = self.listeners[twin].accept().ok()?;
                stream.set_nonblocking(true).unwrap();
                line.servers[twin] = Some(stream);
            }
            Some(Event::Done)
        })?;
        for stream in line.clients.iter().chain(&line.servers).flatten() {
            stream.set_nodelay(true).unwrap();
        }
        self.lines[client] = line;
        Ok(event)
    }

    fn is_open(&self, client: usize) -> bool {
        let line = &self.lines[client];
        line.clients.iter().chain(&line.servers).all(Option::is_some)
    }

    fn chat(&mut self, client: usize, rounds: usize) -> Result<Option<Event>, Difference> {
        for _ in 0..rounds {
            for side in [Side::Client, Side::Server] {
                let event = match self.talk.protocol {
                    Protocol::Tcp => self.carry(client, side, MESSAGE, Duration::ZERO)?,
                    Protocol::Udp | Protocol::Icmp => self.datagrams(client, side, 1)?,
                };
                if event != Some(Event::Done) {
                    return Ok(event);
                }
            }
        }
        Ok(Some(Event::Done))
    }

    /// Carries bytes from one side to the other one, which reads nothing for a while.
    fn carry(
        &mut self,
        client: usize,
        side: Side,
        len: usize,
        deaf: Duration,
    ) -> Result<Option<Event>, Difference> {
        if !self.is_open(client) {
            return Ok(None);
        }
        let line = &mut self.lines[client];
        let from = &mut line.sent[usize::from(side == Side::Server)];
        let bytes = payload(self.talk, client, side, *from, len);
        *from += len;
        let line = &self.lines[client];
        let (mut sent, mut received) = ([0; 2], [0; 2]);
        for twin in [ALONE, WITH] {
            write(line.end(side, twin), &bytes, &mut sent[twin]);
        }
        std::thread::sleep(deaf);
        both(&format!("{len} bytes from {side:?} {client}"), |twin, patience| {
            let (from, to) = (line.end(side, twin), line.end(other(side), twin));
            let mut since = Instant::now();
            loop {
                let had = (sent[twin], received[twin]);
                write(from, &bytes, &mut sent[twin]);
                if let Some(event) = read(to, &bytes, &mut received[twin]) {
                    return Some(event);
                }
                if had != (sent[twin], received[twin]) {
                    since = Instant::now();
                }
                let left = patience.saturating_sub(since.elapsed());
                if left.is_zero() {
                    return None;
                }
                sockets::waited(to, libc::POLLIN, left.min(Duration::from_millis(20)));
            }
        })
    }

    fn shut(&self, client: usize, side: Side) {
        for twin in [ALONE, WITH] {
            // It may have failed.
            let _ = self.lines[client].end(side, twin).shutdown(std::net::Shutdown::Write);
        }
    }

    fn shut_both(&self, client: usize) {
        let line = &self.lines[client];
        for twin in [ALONE, WITH] {
            let together = &std::sync::Barrier::new(2);
            std::thread::scope(|scope| {
                for side in [Side::Client, Side::Server] {
                    scope.spawn(move || {
                        together.wait();
                        let _ = line.end(side, twin).shutdown(std::net::Shutdown::Write);
                    });
                }
            });
        }
    }

    /// Waits for what a side hears beyond the other side's bytes: that there are no more.
    fn hears(&self, client: usize, side: Side) -> Result<Option<Event>, Difference> {
        let line = &self.lines[client];
        both(&format!("the end that {side:?} {client} hears"), |twin, patience| {
            let stream = line.end(side, twin);
            sockets::waited(stream, libc::POLLIN, patience)
                .then(|| read(stream, &[0], &mut 0))
                .flatten()
        })
    }

    fn send(&self, client: usize, side: Side) {
        let bytes = self.message(client);
        for twin in [ALONE, WITH] {
            // An ICMP error makes the next call fail, and that is what the receiver is to see.
            let _ = match side {
                Side::Client => self.clients[twin][client].send(&bytes),
                Side::Server => match (&self.servers[twin], self.peers[twin][client]) {
                    (Some(server), Some(peer)) => server.send_to(&bytes, peer),
                    _ => return,
                },
            };
        }
    }

    fn message(&self, client: usize) -> Vec<u8> {
        let mut bytes = self.messages.to_be_bytes().to_vec();
        bytes.extend([client as u8; MESSAGE - 8]);
        bytes
    }

    /// Sends datagrams, and waits for each.
    fn datagrams(
        &mut self,
        client: usize,
        side: Side,
        count: usize,
    ) -> Result<Option<Event>, Difference> {
        for _ in 0..count {
            self.messages += 1;
            self.send(client, side);
            let bytes = self.message(client);
            let (clients, servers, peers) = (&self.clients, &self.servers, &mut self.peers);
            let event = both(&format!("a datagram from {side:?} {client}"), |twin, patience| {
                let socket = match side {
                    Side::Client => servers[twin].as_ref()?,
                    Side::Server => &clients[twin][client],
                };
                let (event, from) = of_datagram(socket, &bytes, patience)?;
                if side == Side::Client {
                    peers[twin][client] = from;
                }
                Some(event)
            })?;
            if event != Some(Event::Done) {
                return Ok(event);
            }
        }
        Ok(Some(Event::Done))
    }
}

fn nonblocking(socket: UdpSocket) -> io::Result<UdpSocket> {
    socket.set_nonblocking(true).map(|()| socket)
}

/// Writes what there is room for.
fn write(mut stream: &TcpStream, bytes: &[u8], sent: &mut usize) {
    while *sent < bytes.len() {
        match stream.write(&bytes[*sent..]) {
            Ok(count) => *sent += count,
            // The other end shows what has happened.
            Err(_) => return,
        }
    }
}

/// Reads what is there, of these bytes. None: not all of them.
fn read(mut stream: &TcpStream, bytes: &[u8], received: &mut usize) -> Option<Event> {
    let mut some = vec![0; 1 << 16];
    while *received < bytes.len() {
        let most = some.len().min(bytes.len() - *received);
        match stream.read(&mut some[..most]) {
            Ok(0) => return Some(Event::End),
            Ok(len) if some[..len] != bytes[*received..*received + len] => {
                return Some(Event::Wrong);
            }
            Ok(len) => *received += len,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
            Err(error) => return Some(Event::Failed(error.kind())),
        }
    }
    Some(Event::Done)
}

/// Waits for a datagram, which may come behind others that nobody has read.
fn of_datagram(
    socket: &UdpSocket,
    bytes: &[u8],
    patience: Duration,
) -> Option<(Event, Option<SocketAddr>)> {
    let start = Instant::now();
    let mut buffer = [0; 2 * MESSAGE];
    loop {
        match socket.recv_from(&mut buffer) {
            Ok((len, from)) if buffer[..len] == *bytes => return Some((Event::Done, Some(from))),
            Ok(_) => continue,
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            Err(error) => return Some((Event::Failed(error.kind()), None)),
        }
        let left = patience.saturating_sub(start.elapsed());
        if left.is_zero() || !sockets::waited(socket, libc::POLLIN, left) {
            return None;
        }
    }
}
