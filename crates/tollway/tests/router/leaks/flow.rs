//! A flow of 20,000 packets a second that records which of its packets arrive.
//!
//! Sender and receiver have real-time priority, so packets on a cable do not wait for a processor.

use std::io::{Read as _, Write as _};
use std::net::UdpSocket;
use std::process::{Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use crate::namespaces::{Host, Process, until};

/// Packets per second.
const RATE: u64 = 20_000;
/// Time for which the sender sleeps between two bursts.
const PACE: Duration = Duration::from_micros(200);
/// The most packets that a late sender sends at once. It does not make up for more.
const MOST_AT_ONCE: u64 = 100;
/// After so long without a packet, none is on its way any more.
const QUIET: Duration = Duration::from_millis(200);
const PORT: u16 = 9;
/// The command that gives sender and receiver real-time priority.
const FIFO: &str = "chrt -f 10";

/// Returns the wall-clock time in ns, which is the same for all processes.
pub fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap();
    u64::try_from(now.as_nanos()).unwrap()
}

/// Gives real-time priority to the calling thread and to what it starts from now on.
pub fn hurry() {
    let thread = std::fs::read_link("/proc/thread-self").unwrap();
    let thread = thread.file_name().unwrap().to_str().unwrap().to_owned();
    crate::namespaces::sh(&format!("chrt -f -p 10 {thread}"));
}

/// Runs as sender or receiver, as the command line selects.
pub fn role(words: &[&str]) -> ExitCode {
    match words {
        ["--client", addresses] => send(addresses),
        ["--serve", _] => receive(),
        _ => return ExitCode::FAILURE,
    }
    ExitCode::SUCCESS
}

/// Sends from one address to the other until it is killed. Each packet carries its send time.
fn send(addresses: &str) {
    let (from, to) = addresses.split_once('>').unwrap();
    let socket = UdpSocket::bind((from, PORT)).unwrap();
    let (start, mut sent) = (Instant::now(), 0);
    loop {
        let due = start.elapsed().as_micros() as u64 * RATE / 1_000_000;
        sent = sent.max(due.saturating_sub(MOST_AT_ONCE));
        while sent < due {
            // The router may report that there is no route.
            let _ = socket.send_to(&now_ns().to_ne_bytes(), (to, PORT));
            sent += 1;
        }
        std::thread::sleep(PACE);
    }
}

/// Records the send time of each packet that arrives.
fn receive() {
    let socket = UdpSocket::bind(("0.0.0.0", PORT)).unwrap();
    let mut out = std::io::stdout().lock();
    let mut packet = [0; 8];
    while socket.recv(&mut packet).is_ok() && out.write_all(&packet).is_ok() && out.flush().is_ok()
    {
    }
}

/// Counters of the packets that have arrived.
#[derive(Default)]
struct Arrived {
    packets: AtomicU64,
    /// Send time of the last packet that has arrived.
    last_ns: AtomicU64,
}

/// A flow that runs until it is dropped.
pub struct Flow {
    arrived: Arc<Arrived>,
    _sender: Process,
    receiver: Process,
    reader: Option<JoinHandle<()>>,
}

impl Flow {
    /// Starts a flow from an address of one host to an address of another.
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
        let sender = start(from, "--client", &format!("{source}>{destination}"));
        Self { arrived, _sender: sender, receiver, reader: Some(reader) }
    }

    /// Returns the number of packets that have arrived.
    pub fn packets(&self) -> u64 {
        self.arrived.packets.load(Ordering::Relaxed)
    }

    /// Waits until no more packets arrive. Returns the send time of the last one, in ns.
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
