//! A flow of 20,000 packets a second that tells which of its packets arrived.
//!
//! Sender and receiver are processes of real-time priority: packets of a cable do not wait for a processor.

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::namespaces::{Host, Process, until};

/// Packets in a second.
const RATE: u64 = 20_000;
/// The sender sleeps for so long.
const PACE: Duration = Duration::from_micros(200);
/// What could not be sent in time is not made up for beyond this.
const MOST_AT_ONCE: u64 = 100;
/// Nothing is on its way any more when nothing has come for so long.
const QUIET: Duration = Duration::from_millis(200);
const PORT: u16 = 9;
/// The priority of whoever measures.
const FIFO: &str = "chrt -f 10";

/// The time by the clock on the wall, ns: the same for all processes.
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

/// Gives the calling thread, and what it starts from now on, real-time priority.
pub fn hurry() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap().to_str().unwrap().to_owned();
    crate::namespaces::sh(&format!("chrt -f -p 10 {thread}"));
}

/// Sends or receives, as the command line says.
pub fn role(words: &[&str]) -> ExitCode {
    match words {
        ["--ask", addresses] => send(addresses),
        ["--serve", _] => receive(),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// Sends from one address to the other until it is killed; each packet says when it was sent.
fn send(addresses: &str) {
    let (from, to) = addresses.split_once('>').unwrap();
    let socket = UdpSocket::bind((from, PORT)).unwrap();
    let (start, mut sent) = (Instant::now(), 0);
    loop {
        let due = start.elapsed().as_micros() as u64 * RATE / 1_000_000;
        sent = sent.max(due.saturating_sub(MOST_AT_ONCE));
        while sent < due {
            // The router may say that there is no way.
            let _ = socket.send_to(&now_ns().to_ne_bytes(), (to, PORT));
            sent += 1;
        }
        std::thread::sleep(PACE);
    }
}

/// Writes down when each packet was sent that arrives.
fn receive() {
    let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    let mut out = std::io::stdout().lock();
    let mut packet = [0; 8];
    while socket.recv(&mut packet).is_ok() && out.write_all(&packet).is_ok() && out.flush().is_ok()
    {
    }
}

/// What has arrived.
#[derive(Default)]
struct Arrived {
    packets: AtomicU64,
    /// When the last of them was sent.
    last_ns: AtomicU64,
}

/// A flow that goes on until it is dropped.
pub struct Flow {
    arrived: Arc<Arrived>,
    _sender: Process,
    receiver: Process,
    reader: Option<JoinHandle<()>>,
}

impl Flow {
    /// From an address of one host to one of another.
    pub fn start((from, source): (&Host, &str), (to, destination): (&Host, &str)) -> Self {
        let start = |host: &Host, role: &str, word: &str| {
            let inner = host.role(role, word);
            let mut command = Command::new("chrt");
            command.args(FIFO.split_whitespace().skip(1)).arg(inner.get_program());
            command.args(inner.get_args()).stdin(Stdio::null()).stdout(Stdio::piped());
            Process(command.spawn().unwrap())
        };
        let mut receiver = start(to, "--serve", "leaks");
        let mut stamps = receiver.0.stdout.take().unwrap();
        let arrived = Arc::<Arrived>::default();
        let of_reader = Arc::clone(&arrived);
        let reader = std::thread::spawn(move || {
            let mut stamp = [0; 8];
            while stamps.read_exact(&mut stamp).is_ok() {
                of_reader.last_ns.fetch_max(u64::from_ne_bytes(stamp), Ordering::Relaxed);
                of_reader.packets.fetch_add(1, Ordering::Relaxed);
            }
        });
        let sender = start(from, "--ask", &format!("{source}>{destination}"));
        Self { arrived, _sender: sender, receiver, reader: Some(reader) }
    }

    /// Packets that have arrived.
    pub fn packets(&self) -> u64 {
        self.arrived.packets.load(Ordering::Relaxed)
    }

    /// Waits until nothing arrives any more; when the last packet was sent that did.
    pub fn last_ns(&self) -> u64 {
        let mut before = (self.packets(), Instant::now());
        until("the flow to stop", || {
            let now = self.packets();
            if now != before.0 {
                before = (now, Instant::now());
            }
            before.1.elapsed() >= QUIET
        });
        self.arrived.last_ns.load(Ordering::Relaxed)
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        let _ = self.receiver.0.kill();
        let _ = self.reader.take().map(JoinHandle::join);
    }
}
