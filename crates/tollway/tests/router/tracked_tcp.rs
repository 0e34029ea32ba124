//! Connections of TCP that the kernel tracks: Tollway forwards their packets and follows their windows, and the kernel
//! gets each beginning and end.

#![allow(
    unsafe_code,
    reason = "raw sockets, and those that reset their connection, need calls of their own"
)]

use std::io::{Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::ops::ControlFlow;
use std::os::fd::AsRawFd;
use std::process::{ChildStdout, ExitCode, Stdio};
use std::time::{Duration, Instant};

use tollway_conntrack::{Connection, Conntrack, Family, get};
use tollway_linux::netlink::{QuerySocket, push};

use super::namespaces::{Host, Process, ready, sh, until};
use super::running::{KernelRouter, Net, SILENCE};

const NETLINK_NETFILTER: isize = 12;
/// The message that makes or changes a connection, and the attribute of its mark.
const CTNETLINK_NEW: u16 = 1 << 8;
const CTA_MARK: u16 = 8;
const SERVER: &str = "10.0.2.2:7002";
const SERVER6: &str = "[fd00:2::2]:7002";
/// No answer may take longer.
const PATIENCE: Duration = Duration::from_secs(1);
/// The time between two questions of a connection.
const PACE: Duration = Duration::from_millis(10);
/// Segments that belong nowhere, and how many of them are invalid.
const STRAYS: u32 = 16;
const INVALID: u64 = 12;
/// Bytes of a question, and of its answer.
const QUESTION: usize = 900;

/// Runs as server; or as client, `tcp-client:CONNECTIONS:END`, which asks until its standard input ends, and then ends its
/// connections as told, over IPv6 with a 6 (`tcp-server6`, `tcp-client6`); or sends segments that belong nowhere, `tcp-stray:SOURCE:PORT:DESTINATION:PORT`.
pub fn role(words: &str) -> ExitCode {
    let words: Vec<_> = words.split(':').collect();
    match words[..] {
        ["tcp-client", count, end] => ask(SERVER, count.parse().unwrap(), end),
        ["tcp-client6", count, end] => ask(SERVER6, count.parse().unwrap(), end),
        ["tcp-server6"] => answer(SERVER6),
        ["tcp-stray", from, sport, to, dport] => {
            stray(
                [from, to].map(|ip| ip.parse().unwrap()),
                [sport, dport].map(|port| port.parse().unwrap()),
            );
        }
        _ => answer(SERVER),
    }
    ExitCode::SUCCESS
}

/// Answers questions with themselves; resets a connection if asked to.
fn answer(address: &str) {
    let listener = TcpListener::bind(address).unwrap();
    println!("ready");
    for stream in listener.incoming() {
        let mut stream = stream.unwrap();
        std::thread::Builder::new()
            .stack_size(1 << 16)
            .spawn(move || {
                let mut question = [0; QUESTION];
                while stream.read_exact(&mut question).is_ok() {
                    if question[0] == b'R' {
                        return reset(&stream);
                    }
                    if stream.write_all(&question).is_err() {
                        return;
                    }
                }
            })
            .unwrap();
    }
}

/// Makes the end of a socket an RST.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    let len = size_of::<libc::linger>() as libc::socklen_t;
    let (fd, value) = (stream.as_raw_fd(), &raw const linger);
    // SAFETY: the option's value is of this type, and only read.
    let set = unsafe { libc::setsockopt(fd, libc::SOL_SOCKET, libc::SO_LINGER, value.cast(), len) };
    assert_eq!(set, 0);
}

/// Sends segments with numbers from all quarters of those that there are. Three in four are out of window: of each number,
/// two quarters lie beyond what the other side expects.
fn stray(hosts: [Ipv4Addr; 2], [sport, dport]: [u16; 2]) {
    // SAFETY: a call with numbers.
    let socket = unsafe { libc::socket(libc::AF_INET, libc::SOCK_RAW, libc::IPPROTO_RAW) };
    assert!(socket >= 0, "{}", std::io::Error::last_os_error());
    let [from, to] = hosts.map(|host| host.octets());
    for number in 0..STRAYS {
        let [seq, ack] = [number / 4, number % 4].map(|quarter| quarter << 30 | 0x2345_6789);
        let builder = etherparse::PacketBuilder::ipv4(from, to, 64);
        let mut bytes = Vec::new();
        builder.tcp(sport, dport, seq, 500).ack(ack).write(&mut bytes, &[b'x'; 10]).unwrap();
        // SAFETY: a structure of numbers, for which all zeros is a value.
        let mut address: libc::sockaddr_in = unsafe { std::mem::zeroed() };
        address.sin_family = libc::AF_INET as libc::sa_family_t;
        address.sin_addr.s_addr = u32::from_ne_bytes(to);
        let (data, len) = (bytes.as_ptr().cast(), size_of::<libc::sockaddr_in>());
        let address = (&raw const address).cast();
        // SAFETY: data and address have these lengths, and are only read.
        let sent = unsafe { libc::sendto(socket, data, bytes.len(), 0, address, len as u32) };
        assert_eq!(sent, bytes.len() as isize, "{}", std::io::Error::last_os_error());
        // Meanwhile, other packets come.
        std::thread::sleep(5 * PACE);
    }
}

/// Asks by all connections in turn. Prints how many questions were answered, and the longest time in milliseconds.
fn ask(server: &str, count: usize, end: &str) {
    let connect = |_| {
        let stream = TcpStream::connect(server).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        stream
    };
    let mut streams: Vec<_> = (0..count).map(connect).collect();
    println!("ready");
    let stopped = std::thread::spawn(|| std::io::stdin().read_to_end(&mut Vec::new()));
    let (mut answered, mut longest) = (0_u64, Duration::ZERO);
    while !stopped.is_finished() {
        let start = Instant::now();
        for stream in &mut streams {
            let start = Instant::now();
            let mut bytes = [b'Q'; QUESTION];
            stream.write_all(&bytes).unwrap();
            stream.read_exact(&mut bytes).unwrap();
            longest = longest.max(start.elapsed());
            answered += 1;
        }
        std::thread::sleep(PACE.saturating_sub(start.elapsed()));
    }
    for stream in &mut streams {
        match end {
            "reset" => reset(stream),
            "be-reset" => {
                stream.write_all(&[b'R'; QUESTION]).unwrap();
                assert!(stream.read(&mut [0]).is_err(), "the server resets it");
            }
            _ => {}
        }
    }
    drop(streams);
    println!("{answered} {}", longest.as_millis());
}

/// A client that asks, until it is told to end.
pub(super) struct Asking(Process);

impl Asking {
    pub(super) fn start(host: &Host, count: usize, end: &str) -> Self {
        Self::start_as("tcp-client", host, count, end)
    }

    fn start_as(role: &str, host: &Host, count: usize, end: &str) -> Self {
        let mut command = host.role("--role", &format!("{role}:{count}:{end}"));
        Self(ready(command.stdin(Stdio::piped())))
    }

    /// Ends the client; returns the questions that were answered, all of them in time.
    pub(super) fn end(mut self) -> u64 {
        drop(self.0.0.stdin.take());
        let mut output = String::new();
        let out: &mut ChildStdout = self.0.0.stdout.as_mut().unwrap();
        out.read_to_string(&mut output).unwrap();
        assert!(self.0.0.wait().unwrap().success(), "{output}");
        let words: Vec<u64> =
            output.split_whitespace().filter_map(|word| word.parse().ok()).collect();
        let &[answered, longest_ms] = &words[..] else { panic!("{output}") };
        assert!(longest_ms < PATIENCE.as_millis() as u64, "{longest_ms} ms");
        answered
    }
}

/// A firewall whose rules drop what is invalid, and a translated source.
fn gateway() {
    gateway_of("ip", "rb");
}

/// The same, with the translation in a table of this family, of what leaves by a device.
pub(super) fn gateway_of(family: &str, device: &str) {
    for line in [
        "table inet fw",
        "chain inet fw input { type filter hook input priority 0 ; policy drop ; }",
        "rule inet fw input ct state established accept",
        "chain inet fw forward { type filter hook forward priority 0 ; policy drop ; }",
        "rule inet fw forward ct state invalid counter drop",
        "rule inet fw forward ct state established,related accept",
        "rule inet fw forward oifname DEVICE accept",
        "table FAMILY nat",
        "chain FAMILY nat post { type nat hook postrouting priority 100 ; }",
        "rule FAMILY nat post oifname DEVICE masquerade",
    ] {
        sh(&format!("nft add {}", line.replace("FAMILY", family).replace("DEVICE", device)));
    }
}

/// What the kernel's list says of each connection of TCP: its state, and the seconds that it has to live.
fn kernels() -> Vec<(String, u64)> {
    let list = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
    let lines = list.lines().filter(|line| line.contains(" tcp "));
    lines
        .map(|line| {
            let words: Vec<_> = line.split_whitespace().collect();
            (words[5].to_owned(), words[4].parse().unwrap())
        })
        .collect()
}

pub(super) fn assert_nothing_invalid() {
    let rules = sh("nft list chain inet fw forward");
    assert!(rules.contains("invalid counter packets 0 bytes 0"), "{rules}");
}

/// Waits until Tollway forwards so many packets more.
pub(super) fn until_forwarded(router: &KernelRouter, packets: u64) {
    let before = router.counts().sent;
    until("packets of the connections by Tollway", || router.counts().sent - before > packets);
}

/// All of a connection but its beginning and its end is forwarded, and the kernel knows how it ended.
pub fn translated() {
    let net = Net::new();
    let _server = ready(&mut net.b.role("--role", "tcp-server"));
    gateway();
    for engine in ["xdp", "tc"] {
        let mut router = KernelRouter::start(&format!("ra rb --engine {engine}"));
        for (end, state) in [("fin", "TIME_WAIT"), ("reset", "CLOSE"), ("be-reset", "CLOSE")] {
            sh("conntrack -F");
            let asking = Asking::start(&net.a, 1, end);
            until_forwarded(&router, 200);
            // It was in use within the last second.
            let (established, timeout) = kernels().remove(0);
            assert_eq!(established, "ESTABLISHED");
            assert!(timeout >= 431_997 || (298..=300).contains(&timeout), "{timeout}");
            let before = router.counts().sent;
            let answered = asking.end();
            assert!(answered > 50 && router.counts().sent >= before);
            until(state, || kernels().iter().all(|(now, _)| now == state));
            let limit = if state == "CLOSE" { 10 } else { 120 };
            assert!(kernels().iter().all(|(_, timeout)| *timeout <= limit), "{:?}", kernels());
        }
        assert_nothing_invalid();
        router.stop();
    }
}

/// The same over IPv6, of which the router itself needs neighbour discovery: each end by one engine.
pub fn translated6() {
    let net = Net::new();
    let _server = ready(&mut net.b.role("--role", "tcp-server6"));
    gateway_of("ip6", "rb");
    sh(
        "nft insert rule inet fw input icmpv6 type { nd-neighbor-solicit, nd-neighbor-advert } accept",
    );
    for (engine, ends) in [
        ("xdp", &[("fin", "TIME_WAIT"), ("be-reset", "CLOSE")][..]),
        ("tc", &[("reset", "CLOSE"), ("fin", "TIME_WAIT")]),
    ] {
        let mut router = KernelRouter::start(&format!("ra rb --engine {engine}"));
        for (end, state) in ends {
            sh("conntrack -F");
            let asking = Asking::start_as("tcp-client6", &net.a, 1, end);
            until_forwarded(&router, 200);
            let list = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
            assert!(list.contains("dst=fd00:0002:0000:0000:0000:0000:0000:0001 "), "{list}");
            assert_eq!(kernels().remove(0).0, "ESTABLISHED");
            assert!(asking.end() > 50);
            until(state, || kernels().iter().all(|(now, _)| now == state));
        }
        assert_nothing_invalid();
        router.stop();
    }
}

/// Gives all connections of a protocol a mark (linux/netfilter/nfnetlink_conntrack.h): `conntrack -U` cannot change those that are
/// translated.
pub fn set_mark(protocol: i32, mark: u32) {
    let mut tuples = Vec::new();
    let mut each = |connection: Connection| {
        if i32::from(connection.original.protocol) == protocol {
            tuples.push(connection.original);
        }
        ControlFlow::Continue(())
    };
    Conntrack::open().unwrap().each(Some(Family::Ip), &mut each).unwrap();
    assert!(!tuples.is_empty());
    for tuple in tuples {
        let mut body = get(&tuple, 0).unwrap();
        push(&mut body, CTA_MARK, &mark.to_be_bytes());
        let mut socket = QuerySocket::open(NETLINK_NETFILTER).unwrap();
        socket.change(CTNETLINK_NEW, 0, &body).unwrap();
    }
}

/// Whoever deletes the kernel's entry makes the kernel see the packets again, which picks the connection up. Another mark
/// makes the rules look at it again.
pub fn deleted() {
    let net = Net::new();
    let _server = ready(&mut net.b.role("--role", "tcp-server"));
    gateway();
    // The kernel has no numbers of a connection that it picks up, and finds none of its packets invalid.
    sh("nft insert rule inet fw forward ct mark 7 counter accept");
    let marked = || {
        let rules = sh("nft list chain inet fw forward");
        let (_, count) = rules.split_once("ct mark 0x00000007 counter packets ").unwrap();
        count.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    for engine in ["xdp", "tc"] {
        sh("conntrack -F");
        let mut router = KernelRouter::start(&format!("ra rb --engine {engine}"));
        let asking = Asking::start(&net.a, 1, "fin");
        until_forwarded(&router, 100);
        for delete in ["conntrack -D -p tcp", "conntrack -F"] {
            sh(delete);
            until("the kernel has the connection again", || kernels().len() == 1);
            until_forwarded(&router, 100);
        }
        let before = marked();
        set_mark(libc::IPPROTO_TCP, 7);
        until("the kernel's rule for the mark sees packets", || marked() > before);
        until_forwarded(&router, 100);
        assert!(asking.end() > 100);
        router.stop();
    }
}

/// Connections go on, whatever happens to Tollway and to the rules, and end as they should.
pub fn survive() {
    const COUNT: usize = 200;
    let net = Net::new();
    let _server = ready(&mut net.b.role("--role", "tcp-server"));
    gateway();
    for engine in ["xdp", "tc"] {
        sh("conntrack -F");
        let words = format!("ra rb --engine {engine}");
        let mut router = KernelRouter::start(&words);
        let asking = Asking::start(&net.a, COUNT, "fin");
        until_forwarded(&router, 20 * COUNT as u64);
        // The rules change, and stay the same.
        for _ in 0..5 {
            let handle = sh("nft -a list chain inet fw forward");
            let line = handle.lines().find(|line| line.contains("oifname")).unwrap();
            let (_, number) = line.rsplit_once(' ').unwrap();
            sh(&format!("nft replace rule inet fw forward handle {number} oifname rb accept"));
            router.sync();
            until_forwarded(&router, COUNT as u64);
        }
        router = router.replace(&words);
        until_forwarded(&router, COUNT as u64);
        router.process.0.kill().unwrap();
        router.process.0.wait().unwrap();
        std::thread::sleep(2 * SILENCE);
        let mut router = KernelRouter::start(&words);
        until_forwarded(&router, COUNT as u64);
        assert_eq!(kernels().len(), COUNT);
        asking.end();
        until("the end of all connections", || {
            kernels().iter().all(|(state, _)| state == "TIME_WAIT")
        });
        assert_nothing_invalid();
        router.stop();
    }
}

/// The packets of a named counter.
fn counted(host: Option<&Host>, name: &str) -> u64 {
    let line = format!("nft list counter ip count {name}");
    let text = host.map_or_else(|| sh(&line), |host| host.sh(&line));
    let mut words = text.split_whitespace().skip_while(|word| *word != "packets");
    words.nth(1).unwrap().parse().unwrap()
}

/// Counts what packets match at a hook.
fn count(host: Option<&Host>, name: &str, hook: &str, matches: &str) {
    for line in [
        "table ip count".to_owned(),
        format!("counter ip count {name}"),
        format!("chain ip count {name} {{ type filter hook {hook} priority 0 ; }}"),
        format!("rule ip count {name} {matches} counter name {name}"),
    ] {
        let line = format!("nft add {line}");
        host.map_or_else(|| sh(&line), |host| host.sh(&line));
    }
}

/// Segments out of window become what they become by the kernel alone, where no rule drops them: nobody translates them,
/// and the router resets what is for itself then. While Tollway is late, the kernel's liberal entry takes them, so this test
/// runs alone.
pub fn invalid() {
    let net = Net::new();
    let _server = ready(&mut net.b.role("--role", "tcp-server"));
    for line in [
        "table ip nat",
        "chain ip nat post { type nat hook postrouting priority 100 ; }",
        "rule ip nat post oifname rb masquerade",
    ] {
        sh(&format!("nft add {line}"));
    }
    count(None, "local", "input", "tcp sport 7002 ct state invalid");
    count(Some(&net.b), "plain", "prerouting", "ip saddr 10.0.1.2");
    count(Some(&net.b), "resets", "prerouting", "tcp flags rst");
    for engine in [None, Some("xdp"), Some("tc")] {
        sh("conntrack -F");
        let router = engine.map(|engine| KernelRouter::start(&format!("ra rb --engine {engine}")));
        let asking = Asking::start(&net.a, 1, "fin");
        if let Some(router) = &router {
            until_forwarded(router, 100);
        }
        let list = std::fs::read_to_string("/proc/thread-self/net/nf_conntrack").unwrap();
        let (_, port) = list.split_once("sport=").unwrap();
        let (port, _) = port.split_once(' ').unwrap();
        let counts = || {
            let of_b = ["plain", "resets"].map(|name| counted(Some(&net.b), name));
            [counted(None, "local"), of_b[0], of_b[1]]
        };
        let before = counts();
        for (host, words) in [
            (&net.b, format!("tcp-stray:10.0.2.2:7002:10.0.2.1:{port}")),
            (&net.a, format!("tcp-stray:10.0.1.2:{port}:10.0.2.2:7002")),
        ] {
            assert!(host.role("--role", &words).status().unwrap().success(), "{words}");
        }
        let after = counts();
        let grown: Vec<_> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        assert_eq!(grown[..2], [INVALID; 2], "{engine:?}: {grown:?}");
        assert!(grown[2] >= INVALID, "{engine:?}: {grown:?}");
        asking.end();
        drop(router);
    }
}
