//! TCP between real sockets.

use std::cell::Cell;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::host::Host;
use super::super::topology::{DIRECT, RIGHT, Topology};
use super::pairs::Side;
use super::processor;

/// The server's port.
const PORT: u16 = 5001;
/// Bytes per call of read and write.
const CHUNK: usize = 128 << 10;
/// Time to connect.
const PATIENCE: Duration = Duration::from_secs(2);
/// Time after which a thread that waits for its peer sees whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Time after the connections' start that does not count.
const WARM_UP: Duration = Duration::from_millis(300);
/// Duration of a measurement.
const WINDOW: Duration = Duration::from_millis(500);

/// Connections from A through a router to B.
pub(super) struct Streams<'a> {
    topology: &'a Topology,
    count: usize,
    server: Server,
    processor_ns: Cell<Option<[f64; 2]>>,
}

/// What went through a path in a window.
struct Carried {
    gbit_per_s: f64,
    /// Processor time of the whole machine, for a byte.
    busy_ns: f64,
}

impl<'a> Streams<'a> {
    /// So many connections at once.
    pub(super) fn new(topology: &'a Topology, count: usize) -> Result<Self, String> {
        for host in [&topology.a, &topology.b] {
            // The path metrics of one connection must not affect the next measurement.
            host.sysctl("ipv4/tcp_no_metrics_save", "1")?;
        }
        let server = Server::start(&topology.b)?;
        Ok(Self { topology, count, server, processor_ns: Cell::new(None) })
    }

    /// Measures connections to one of B's addresses; nothing is carried if they cannot be made.
    fn carry(&self, address: &str) -> Result<Carried, String> {
        let clients = Clients::start(&self.topology.a, address, self.count)?;
        std::thread::sleep(WARM_UP);
        let (start, busy, before) = (Instant::now(), processor::busy_ns()?, self.server.received());
        std::thread::sleep(WINDOW);
        let (taken, spent, after) =
            (start.elapsed(), processor::busy_ns()? - busy, self.server.received());
        clients.stop();
        let bytes = (after - before) as f64;
        let gbit_per_s = bytes * 8.0 / taken.as_secs_f64() / 1e9;
        Ok(Carried { gbit_per_s, busy_ns: spent as f64 / bytes.max(1.0) })
    }
}

impl Side for Streams<'_> {
    /// The goodput, Gbit/s; 0 if connections cannot be made.
    fn rate(&self) -> Result<f64, String> {
        let routed = self.carry(RIGHT[0])?;
        let direct = self.carry(DIRECT[1])?;
        self.processor_ns.set(Some([routed.busy_ns, direct.busy_ns]));
        Ok(routed.gbit_per_s)
    }

    fn processor_ns(&self) -> Option<[f64; 2]> {
        self.processor_ns.get()
    }
}

/// Receives what clients send. Dropping this ends it.
struct Server {
    stop: Arc<AtomicBool>,
    received_bytes: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(host: &Host) -> Result<Self, String> {
        let (stop, received_bytes) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (end, received) = (Arc::clone(&stop), Arc::clone(&received_bytes));
        // A thread that a host starts is in its namespaces.
        let start = move || {
            let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
            listener.set_nonblocking(true)?;
            std::thread::Builder::new().spawn(move || accept(&listener, &end, &received))
        };
        let failed = |error| format!("cannot start the TCP server: {error}");
        let thread = Some(host.run(start)?.map_err(failed)?);
        Ok(Self { stop, received_bytes, thread })
    }

    fn received(&self) -> u64 {
        self.received_bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The next server needs the port.
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

/// Accepts clients until the end, and gives each a thread.
fn accept(listener: &TcpListener, stop: &Arc<AtomicBool>, received: &Arc<AtomicU64>) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                let (stop, received) = (Arc::clone(stop), Arc::clone(received));
                std::thread::spawn(move || count(stream, &stop, &received));
            }
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// Counts what a client sends until it ends.
fn count(mut stream: TcpStream, stop: &AtomicBool, received: &AtomicU64) {
    let prepared = stream.set_nonblocking(false).and(stream.set_read_timeout(Some(LOOK)));
    let mut bytes = vec![0; CHUNK];
    while prepared.is_ok() && !stop.load(Ordering::Relaxed) {
        match stream.read(&mut bytes) {
            Ok(0) => return,
            Ok(read) => {
                received.fetch_add(read as u64, Ordering::Relaxed);
            }
            Err(error) if is_time_limit(error.kind()) => {}
            Err(_) => return,
        }
    }
}

/// Threads that send.
struct Clients {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Clients {
    fn start(host: &Host, address: &str, count: usize) -> Result<Self, String> {
        let address: Ipv4Addr =
            address.parse().map_err(|error| format!("{address} is no address: {error}"))?;
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..count {
            let stop = Arc::clone(&stop);
            let start = move || std::thread::Builder::new().spawn(move || send(address, &stop));
            let failed = |error| format!("no thread can be started: {error}");
            threads.push(host.run(start)?.map_err(failed)?);
        }
        Ok(Self { stop, threads })
    }

    fn stop(self) {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let _ = thread.join();
        }
    }
}

/// Sends until the end. A client that cannot connect sends nothing, which is what it measures.
fn send(address: Ipv4Addr, stop: &AtomicBool) {
    let connected = TcpStream::connect_timeout(&SocketAddr::new(address.into(), PORT), PATIENCE);
    let Ok(mut stream) = connected else { return };
    let prepared = stream.set_write_timeout(Some(LOOK));
    let bytes = vec![0; CHUNK];
    while prepared.is_ok() && !stop.load(Ordering::Relaxed) {
        match stream.write(&bytes) {
            Ok(_) => {}
            Err(error) if is_time_limit(error.kind()) => {}
            Err(_) => return,
        }
    }
}

fn is_time_limit(kind: ErrorKind) -> bool {
    matches!(kind, ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}
