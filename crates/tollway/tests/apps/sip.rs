//! Telephony: a call by SIP, whose messages say where sound is to go.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, UdpSocket};
use std::process::{ChildStdout, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use super::helpers::{FIREWALL, MASQUERADE};
use super::namespaces::{Host, Process, ready, until};
use super::running::{KernelRouter, Net};
use super::scene::{ENGINES, compared, entries, load, paths};

/// The time between two packets with sound, and their bytes: those of G.711.
const PACE: Duration = Duration::from_millis(20);
const SOUND: usize = 172;
const CALLER: &str = "10.0.1.2";
const CALLEE: &str = "10.0.2.2";
/// The ports for sound.
const PORTS: [u16; 2] = [4000, 6000];

/// Runs as caller (`sip-caller`) or callee (`sip-callee`).
pub fn role(words: &str) -> ExitCode {
    match words {
        "sip-caller" => call(),
        _ => take_calls(),
    }
    ExitCode::SUCCESS
}

/// What one says about where its sound is to go.
fn description(address: &str, port: u16) -> String {
    format!(
        "v=0\r\no=- 1 1 IN IP4 {address}\r\ns=-\r\nc=IN IP4 {address}\r\nt=0 0\r\nm=audio {port} RTP/AVP 0\r\n\
         a=rtpmap:0 PCMU/8000\r\n"
    )
}

/// A request of the caller, and its place in the dialogue.
fn request(method: &str, number: u32, body: &str) -> String {
    let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
    format!(
        "{method} sip:callee@{CALLEE}:5060 SIP/2.0\r\nVia: SIP/2.0/UDP {CALLER}:5060;branch=z9hG4bK{number}\r\n\
         Max-Forwards: 70\r\nFrom: <sip:caller@{CALLER}>;tag=1\r\nTo: <sip:callee@{CALLEE}>\r\n\
         Call-ID: 1@{CALLER}\r\nCSeq: {number} {method}\r\nContact: <sip:caller@{CALLER}:5060>\r\n{kind}\
         Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// The callee's answer to a request.
fn response(status: &str, request: &str, body: &str) -> String {
    let kept = ["Via:", "From:", "To:", "Call-ID:", "CSeq:"];
    let lines = request.split("\r\n").filter(|line| kept.iter().any(|name| line.starts_with(name)));
    let lines: String = lines.map(|line| format!("{line}\r\n")).collect();
    let kind = if body.is_empty() { "" } else { "Content-Type: application/sdp\r\n" };
    format!(
        "SIP/2.0 {status}\r\n{lines}Contact: <sip:callee@{CALLEE}:5060>\r\n{kind}Content-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

/// Where a message says that sound is to go.
fn media(message: &str) -> SocketAddr {
    let after = |name: &str| message.lines().find_map(|line| line.strip_prefix(name)).unwrap();
    let port = after("m=audio ").split(' ').next().unwrap();
    format!("{}:{port}", after("c=IN IP4 ")).parse().unwrap()
}

fn receive(socket: &UdpSocket) -> (String, SocketAddr) {
    let mut bytes = [0; 4096];
    let (len, from) = socket.recv_from(&mut bytes).unwrap();
    (String::from_utf8(bytes[..len].to_vec()).unwrap(), from)
}

/// Sends sound to an address, and counts what comes, without an end. A `polite` side listens first.
fn talk(socket: UdpSocket, to: SocketAddr, is_polite: bool) -> Arc<AtomicU64> {
    let heard = Arc::new(AtomicU64::new(0));
    let (ears, count) = (socket.try_clone().unwrap(), Arc::clone(&heard));
    std::thread::spawn(move || {
        let mut bytes = [0; SOUND];
        loop {
            if ears.recv(&mut bytes).is_ok() {
                count.fetch_add(1, Ordering::Relaxed);
            }
        }
    });
    let polite = is_polite.then(|| Arc::clone(&heard));
    std::thread::spawn(move || {
        while polite.as_ref().is_some_and(|heard| heard.load(Ordering::Relaxed) == 0) {
            std::thread::sleep(PACE);
        }
        loop {
            let _ = socket.send_to(&[0x80; SOUND], to);
            std::thread::sleep(PACE);
        }
    });
    heard
}

/// Calls, talks until standard input ends, and hangs up.
fn call() {
    let signals = UdpSocket::bind((CALLER, 5060)).unwrap();
    signals.connect((CALLEE, 5060)).unwrap();
    let sound = UdpSocket::bind((CALLER, PORTS[0])).unwrap();
    let invite = request("INVITE", 1, &description(CALLER, PORTS[0]));
    signals.send(invite.as_bytes()).unwrap();
    let answer = loop {
        let (message, _) = receive(&signals);
        if message.starts_with("SIP/2.0 200 ") {
            break message;
        }
    };
    signals.send(request("ACK", 1, "").as_bytes()).unwrap();
    let heard = talk(sound, media(&answer), false);
    println!("ready");
    println!("{}", media(&answer));
    report_until_end(&heard);
    signals.send(request("BYE", 2, "").as_bytes()).unwrap();
    assert!(receive(&signals).0.starts_with("SIP/2.0 200 "));
}

/// Prints the count at each line of standard input.
fn report_until_end(heard: &AtomicU64) {
    for _line in std::io::stdin().lines() {
        println!("{}", heard.load(Ordering::Relaxed));
    }
}

/// Takes one call, and prints where its sound goes, and from where the messages came.
fn take_calls() {
    let signals = UdpSocket::bind((CALLEE, 5060)).unwrap();
    let sound = UdpSocket::bind((CALLEE, PORTS[1])).unwrap();
    println!("ready");
    let (invite, from) = receive(&signals);
    signals.send_to(response("180 Ringing", &invite, "").as_bytes(), from).unwrap();
    let body = description(CALLEE, PORTS[1]);
    signals.send_to(response("200 OK", &invite, &body).as_bytes(), from).unwrap();
    assert!(receive(&signals).0.starts_with("ACK "));
    println!("{} {}", media(&invite), from.ip());
    let heard = talk(sound, media(&invite), true);
    std::thread::spawn(move || report_until_end(&heard));
    let (bye, from) = receive(&signals);
    assert!(bye.starts_with("BYE "));
    signals.send_to(response("200 OK", &bye, "").as_bytes(), from).unwrap();
}

/// One side of a call.
struct Side {
    process: Process,
    lines: BufReader<ChildStdout>,
}

impl Side {
    fn start(host: &Host, role: &str) -> Self {
        let mut process = ready(host.role("--role", role).stdin(Stdio::piped()));
        let lines = BufReader::new(process.0.stdout.take().unwrap());
        Self { process, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        while line.trim().is_empty() {
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "this side has ended");
        }
        line.trim().to_owned()
    }

    fn heard(&mut self) -> u64 {
        self.process.0.stdin.as_mut().unwrap().write_all(b"\n").unwrap();
        self.line().parse().unwrap()
    }
}

/// Sound goes where the messages say, as the kernel has translated them. These stay on the kernel path.
pub fn calls() {
    let net = Net::new();
    compared("ra rb", &ENGINES, |router| {
        load("nft -f -", FIREWALL);
        load("nft -f -", MASQUERADE);
        router.map(KernelRouter::sync);
        let mut callee = Side::start(&net.b, "sip-callee");
        let mut caller = Side::start(&net.a, "sip-caller");
        let told = (caller.line(), callee.line());
        until("sound in both directions", || caller.heard() > 10 && callee.heard() > 10);
        if let Some(router) = router {
            until("most sound by Tollway", || {
                let sent = router.counts().sent;
                let before = caller.heard() + callee.heard();
                std::thread::sleep(Duration::from_millis(500));
                let heard = caller.heard() + callee.heard() - before;
                std::thread::sleep(Duration::from_millis(20));
                heard > 20 && router.counts().sent - sent >= heard * 9 / 10
            });
            let signals = paths(router, "--port 5060");
            assert_eq!(signals, [("kernel".into(), "helper".into())].into());
        } else {
            until("the kernel to assure it", || {
                entries(&PORTS).iter().any(|line| line.contains("4000") && line.contains("ASSURED"))
            });
        }
        let listed = entries(&[5060, PORTS[0], PORTS[1]]);
        drop(caller.process.0.stdin.take());
        assert!(caller.process.0.wait().unwrap().success(), "the caller hangs up");
        assert!(callee.process.0.wait().unwrap().success());
        let mut rest = String::new();
        caller.lines.read_to_string(&mut rest).unwrap();
        (told, listed)
    });
}
