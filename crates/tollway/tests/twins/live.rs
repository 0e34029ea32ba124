//! A thousand connections of TCP through masquerading, which ask and are answered all the time, whatever happens to the
//! router: none is reset, and none waits long for an answer.

use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use tollway_commands::control::{ConnectionFilter, ConnectionsPage, ShowRequest};
use tollway_linux::sys;

use crate::namespaces::{Host, sh, until};
use crate::running::{KernelRouter, Net};
use crate::socket::within;
use crate::sockets;

const COUNT: usize = 1000;
const SERVER: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::new(10, 0, 2, 2), 7003);
const CLIENT: Ipv4Addr = Ipv4Addr::new(10, 0, 1, 2);
/// The clients' first port.
const FIRST: u16 = 20_000;
/// Bytes of a question, and of its answer.
const QUESTION: usize = 48;
/// The time from an answer to the next question of a connection.
const PACE: Duration = Duration::from_millis(200);
/// How long nobody may wait for an answer.
const LONGEST: Duration = Duration::from_secs(1);
/// For so long a link is down.
const FLAP: Duration = Duration::from_millis(100);

/// A connection that asks.
struct Asking {
    stream: TcpStream,
    number: u64,
    /// When it has asked, while the answer is not there.
    since: Option<Instant>,
    next: Instant,
    answer: Vec<u8>,
}

/// What all connections have seen since somebody looked.
#[derive(Clone, Debug, Default)]
struct Seen {
    answered: u64,
    longest: Duration,
    /// Errors.
    broken: Vec<String>,
}

/// Connections that ask until this is dropped, and who answers.
struct Talkers {
    is_over: Arc<AtomicBool>,
    seen: Arc<Mutex<Seen>>,
    threads: Vec<JoinHandle<()>>,
}

impl Talkers {
    fn start(client: &Host, server: &Host) -> Self {
        let listener = within(server.0.0.id(), || sockets::listen(SERVER)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let connect = |number: usize| {
            sockets::connect(SocketAddrV4::new(CLIENT, FIRST + number as u16), SERVER)
        };
        let (is_over, seen) = (Arc::<AtomicBool>::default(), Arc::<Mutex<Seen>>::default());
        let over = Arc::clone(&is_over);
        let answering = std::thread::spawn(move || answer(&listener, &over));
        let mut streams = Vec::new();
        // Not more at once than wait for the server.
        for first in (0..COUNT).step_by(10) {
            let some = within(client.0.0.id(), move || (first..first + 10).map(connect).collect());
            let some: Vec<TcpStream> = some.unwrap();
            for stream in &some {
                sockets::is_connected(stream, LONGEST).unwrap().unwrap();
                stream.set_nodelay(true).unwrap();
            }
            streams.extend(some);
        }
        let (over, shared) = (Arc::clone(&is_over), Arc::clone(&seen));
        let asking = std::thread::spawn(move || ask(streams, &over, &shared));
        Self { is_over, seen, threads: vec![answering, asking] }
    }

    /// What they have seen since the last time.
    fn seen(&self) -> Seen {
        std::mem::take(&mut *self.seen.lock().unwrap())
    }

    /// Lets something happen, and waits until all connections have been answered twice since. Returns what they have seen.
    fn during(&self, what: &str, happens: impl FnOnce()) -> Seen {
        self.seen();
        happens();
        let begin = self.seen.lock().unwrap().answered;
        until(what, || {
            let seen = self.seen.lock().unwrap();
            !seen.broken.is_empty() || seen.answered - begin > 3 * COUNT as u64
        });
        let seen = self.seen();
        println!("{what}: {} answers, none later than {:?}", seen.answered, seen.longest);
        assert!(seen.broken.is_empty(), "{what}: {:?}", seen.broken);
        seen
    }
}

impl Drop for Talkers {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        for thread in self.threads.drain(..) {
            let joined = thread.join();
            assert!(joined.is_ok() || std::thread::panicking());
        }
    }
}

/// Asks by all connections. One that waits counts as if it had its answer now.
fn ask(streams: Vec<TcpStream>, is_over: &AtomicBool, shared: &Mutex<Seen>) {
    let start = Instant::now();
    let connect = |(number, stream): (usize, TcpStream)| {
        let next = start + PACE * number as u32 / COUNT as u32;
        Asking { stream, number: 0, since: None, next, answer: Vec::new() }
    };
    let mut all: Vec<_> = streams.into_iter().enumerate().map(connect).collect();
    let mut fds: Vec<_> = all.iter().map(|one| sys::readable(one.stream.as_raw_fd())).collect();
    while !is_over.load(Ordering::Relaxed) {
        sys::wait(&mut fds, 2).unwrap();
        let now = Instant::now();
        let mut seen = shared.lock().unwrap();
        for (one, fd) in all.iter_mut().zip(&mut fds) {
            let result = one.turn(now, fd.revents != 0, &mut seen);
            fd.revents = 0;
            if let Err(why) = result {
                seen.broken.push(why);
                // It is not looked at again.
                fd.fd = -1;
                one.next = now + Duration::from_secs(3600);
                one.since = None;
            }
        }
    }
}

impl Asking {
    fn question(&self) -> [u8; QUESTION] {
        let mut bytes = [0x51; QUESTION];
        bytes[..8].copy_from_slice(&self.number.to_be_bytes());
        bytes
    }

    fn turn(&mut self, now: Instant, is_ready: bool, seen: &mut Seen) -> Result<(), String> {
        if is_ready {
            let mut bytes = [0; QUESTION];
            match self.stream.read(&mut bytes[self.answer.len()..]) {
                Ok(0) => return Err("the server has ended it".to_owned()),
                Ok(len) => {
                    let from = self.answer.len();
                    self.answer.extend_from_slice(&bytes[from..from + len]);
                }
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                Err(error) => return Err(format!("after {} questions: {error}", self.number)),
            }
        }
        if let Some(since) = self.since {
            seen.longest = seen.longest.max(now.saturating_duration_since(since));
            if self.answer.len() < QUESTION {
                return Ok(());
            }
            if self.answer != self.question() {
                return Err("another answer".to_owned());
            }
            self.answer.clear();
            (self.since, self.next) = (None, now + PACE);
            seen.answered += 1;
        } else if now >= self.next {
            self.number += 1;
            self.since = Some(now);
            self.stream.write_all(&self.question()).map_err(|error| error.to_string())?;
        }
        Ok(())
    }
}

/// Answers questions with themselves.
fn answer(listener: &TcpListener, is_over: &AtomicBool) {
    let mut streams: Vec<TcpStream> = Vec::new();
    let mut fds = vec![sys::readable(listener.as_raw_fd())];
    while !is_over.load(Ordering::Relaxed) {
        sys::wait(&mut fds, 50).unwrap();
        for (stream, fd) in streams.iter_mut().zip(&mut fds[1..]) {
            if fd.revents == 0 {
                continue;
            }
            let mut bytes = [0; QUESTION];
            match stream.read(&mut bytes) {
                // Fewer bytes than the room for what was sent wait here: they fit.
                Ok(len @ 1..) => stream.write_all(&bytes[..len]).unwrap(),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                // The client notices it.
                _ => fd.fd = -1,
            }
        }
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            stream.set_nodelay(true).unwrap();
            fds.push(sys::readable(stream.as_raw_fd()));
            streams.push(stream);
        }
    }
}

/// A firewall that drops what is invalid, and translated sources.
const GATEWAY: &str = "flush ruleset
table inet fw {
 chain local { type filter hook input priority 0; policy drop; ct state established accept; }
 chain passing {
  type filter hook forward priority 0; policy drop;
  ct state invalid drop
  ct state established,related accept
  oifname rb accept
 }
}
table ip nat {
 chain sources { type nat hook postrouting priority 100; oifname rb masquerade; }
}
";

/// Waits until Tollway forwards nearly all connections.
fn until_fast(router: &KernelRouter) {
    let filter = ConnectionFilter { port: Some(SERVER.port()), ..Default::default() };
    until("connections by Tollway", || {
        let mut client = router.client();
        client.send_show(&ShowRequest::Connections(filter.clone())).unwrap();
        let mut fast = 0;
        loop {
            let page: ConnectionsPage = client.answer().unwrap();
            fast += page.connections.iter().filter(|one| one.path == "fast").count();
            if !page.more {
                break;
            }
        }
        fast > COUNT * 95 / 100
    });
}

/// Down and up again, as a cable that somebody pulls out.
fn flap() {
    sh("ip link set ra down");
    std::thread::sleep(FLAP);
    sh("ip link set ra up");
}

/// By either engine.
pub fn go_on() {
    sockets::allow_many();
    let net = Net::new();
    // When a link comes back, the answer about a neighbour may be lost, and the next question comes a second later.
    sh("ip link set ra address 02:00:00:00:00:0a");
    net.a.sh("ip neigh replace 10.0.1.1 lladdr 02:00:00:00:00:0a dev ha nud permanent");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), GATEWAY).unwrap();
    let load = || sh(&format!("nft -f {}", file.path().display()));
    load();
    // The kernel looks for neighbours when the first packets come.
    net.a.pings(1, "10.0.2.2");
    let talkers = Talkers::start(&net.a, &net.b);
    let flaps = (0..3).map(|_| talkers.during("the kernel alone, and a link that goes down", flap));
    let alone = flaps.map(|seen| seen.longest).max().unwrap();
    for engine in ["xdp", "tc"] {
        let words = format!("ra rb --engine {engine}");
        let router = KernelRouter::start(&words);
        until_fast(&router);
        through(&talkers, router, &words, &load, alone);
    }
}

/// All that happens to a router.
fn through(
    talkers: &Talkers,
    router: KernelRouter,
    words: &str,
    load: &impl Fn() -> String,
    alone: Duration,
) {
    let quick = |what: &str, happens: &mut dyn FnMut()| {
        let seen = talkers.during(&format!("{words}, {what}"), happens);
        assert!(seen.longest < LONGEST, "{what}: {:?}", seen.longest);
    };
    quick("nothing", &mut || {});
    quick("rules again and again", &mut || {
        for _ in 0..20 {
            load();
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    until_fast(&router);
    quick("a stop", &mut || {
        let process = router.process.0.id();
        sh(&format!("kill -STOP {process}"));
        std::thread::sleep(Duration::from_secs(3));
        sh(&format!("kill -CONT {process}"));
    });
    until_fast(&router);
    let mut before = Some(router);
    quick("a successor", &mut || before = before.take().map(|router| router.replace(words)));
    let mut router = before.unwrap();
    until_fast(&router);
    quick("a kill", &mut || {
        router.process.0.kill().unwrap();
        router.process.0.wait().unwrap();
    });
    quick("a start", &mut || router = KernelRouter::start(words));
    until_fast(&router);
    let seen = talkers.during(&format!("{words}, a link that goes down"), flap);
    assert!(seen.longest < alone + LONGEST, "{:?}, the kernel alone {alone:?}", seen.longest);
    until_fast(&router);
    router.stop();
}
