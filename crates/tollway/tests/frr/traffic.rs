//! Packets that a host sends at a fixed pace, and what became of each.
//!
//! Sender and sink are this program in other roles (`--client`, `--serve`), on hosts. Each packet
//! contains its number and the time when it was sent.

use std::fs::File;
use std::io::{Read, Write};
use std::net::UdpSocket;
use std::path::PathBuf;
use std::process::{ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use crate::namespaces::{Host, Process, until};

/// The UDP port of the packets to count.
pub const PORT: u16 = 9000;

/// The time, in seconds since 1970.
pub fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs_f64()
}

/// Runs a role of this program.
pub fn role(words: &[&str]) -> ExitCode {
    match words {
        ["--client", plan] => send(plan),
        ["--serve", file] => count(file),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// Becomes true once no process can write to this process's stdin any more.
fn abandoned() -> Arc<AtomicBool> {
    let ended = Arc::new(AtomicBool::new(false));
    let end = Arc::clone(&ended);
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        end.store(true, Ordering::Release);
    });
    ended
}

/// Sends to `ADDRESS/MICROSECONDS`, one packet in that many microseconds, until stdin closes.
fn send(plan: &str) {
    let (to, pace) = plan.split_once('/').unwrap();
    let pace = Duration::from_micros(pace.parse().unwrap());
    let socket = UdpSocket::bind("0.0.0.0:0").unwrap();
    socket.set_nonblocking(true).unwrap();
    socket.connect((to, PORT)).unwrap();
    let (start, ended) = (Instant::now(), abandoned());
    let mut number = 0_u32;
    while !ended.load(Ordering::Acquire) {
        while start.elapsed() >= pace * number {
            let packet = [u64::from(number).to_be_bytes(), now().to_bits().to_be_bytes()];
            // A packet that cannot be sent is lost; a host may also refuse it.
            let _ = socket.send(&packet.concat());
            number += 1;
        }
        std::thread::sleep((pace * number).saturating_sub(start.elapsed()));
    }
}

/// Records what arrives and, once stdin closes, writes it to a file.
fn count(file: &str) {
    let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    socket.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut file = File::create(file).unwrap();
    let (ended, mut seen, mut packet) = (abandoned(), Vec::new(), [0; 16]);
    while !ended.load(Ordering::Acquire) {
        if let Ok(16) = socket.recv(&mut packet) {
            seen.extend(packet);
        }
    }
    file.write_all(&seen).unwrap();
}

/// A stream of packets from one host to another.
pub struct Stream {
    sender: Process,
    sink: Process,
    file: PathBuf,
}

impl Stream {
    /// Starts to send; the sink writes to `file`.
    pub fn start(from: &Host, to: (&Host, &str), pace: Duration, file: PathBuf) -> Self {
        let path = file.display().to_string();
        let sink = start(to.0, "--serve", &path);
        until("the sink to listen", || file.exists());
        let sender = start(from, "--client", &format!("{}/{}", to.1, pace.as_micros()));
        Self { sender, sink, file }
    }

    /// Stops sending. Returns what arrived.
    pub fn stop(mut self) -> Arrivals {
        end(&mut self.sender);
        // Wait for packets that are still on their way.
        std::thread::sleep(Duration::from_millis(100));
        end(&mut self.sink);
        let bytes = std::fs::read(&self.file).unwrap();
        std::fs::remove_file(&self.file).unwrap();
        let word = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().unwrap());
        let packets = bytes.chunks(16).map(|packet| {
            let (number, sent) = packet.split_at(8);
            (word(number), f64::from_bits(word(sent)))
        });
        let mut packets: Vec<_> = packets.collect();
        packets.sort_unstable_by_key(|(number, _)| *number);
        Arrivals(packets)
    }
}

/// A sender alone; nothing counts the arriving packets.
pub fn sender(from: &Host, to: &str, pace: Duration) -> Process {
    start(from, "--client", &format!("{to}/{}", pace.as_micros()))
}

fn start(host: &Host, role: &str, what: &str) -> Process {
    Process(host.role(role, what).stdin(Stdio::piped()).spawn().unwrap())
}

fn end(process: &mut Process) {
    drop(process.0.stdin.take());
    assert!(process.0.wait().unwrap().success());
}

/// Numbers of the packets that arrived, and when they were sent.
pub struct Arrivals(Vec<(u64, f64)>);

/// A period in which all packets that were sent were lost.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Hole {
    /// When the last packet before it was sent, in seconds since 1970.
    pub from: f64,
    /// When the first packet after it was sent.
    pub to: f64,
    /// Packets lost.
    pub packets: u64,
}

impl Arrivals {
    /// How many packets arrived.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// The periods in which no packet got through.
    pub fn holes(&self) -> Vec<Hole> {
        let holes = self.0.windows(2).filter_map(|pair| {
            let [(before, from), (after, to)] = [pair[0], pair[1]];
            let packets = (after - before).saturating_sub(1);
            (packets > 0).then_some(Hole { from, to, packets })
        });
        holes.collect()
    }
}
