//! Clients and servers: transactions of one byte, and a stream.

use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use hdrhistogram::Histogram;

use super::host::Host;
use crate::generate::track::latencies;

/// The services' port.
const PORT: u16 = 7777;
/// Time after which an answer counts as lost.
const LOST: Duration = Duration::from_millis(250);
/// Time limit of a connection.
const PATIENCE: Duration = Duration::from_secs(5);
/// Bytes per write of a stream.
const CHUNK: usize = 64 << 10;
/// Time after the first transaction that does not count.
const WARM_UP: Duration = Duration::from_millis(50);

/// A kind of traffic, with netperf's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Transactions over one connection.
    TcpRr,
    /// Transactions, each over a new connection.
    TcpCrr,
    /// Transactions of datagrams.
    UdpRr,
    /// Bytes in one direction.
    TcpStream,
}

impl Kind {
    /// All of them, by name.
    pub(super) const ALL: [(&'static str, Self); 4] = [
        ("tcp-rr", Self::TcpRr),
        ("tcp-crr", Self::TcpCrr),
        ("udp-rr", Self::UdpRr),
        ("tcp-stream", Self::TcpStream),
    ];
}

/// The result of a measurement.
pub(super) struct Measured {
    /// Transactions per second, or million bits per second of a stream.
    pub(super) rate: f64,
    /// Duration of transactions, ns; empty for a stream.
    pub(super) latency: Histogram<u64>,
    /// Datagrams without an answer.
    pub(super) lost: u64,
}

/// A server on a host. Dropping this makes it refuse further clients.
pub(super) struct Server {
    stop: Arc<AtomicBool>,
    received_bytes: Arc<AtomicU64>,
}

impl Server {
    /// Serves all kinds on a host, over both families.
    pub(super) fn start(host: &Host) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let received_bytes = Arc::new(AtomicU64::new(0));
        let server = Self { stop: Arc::clone(&stop), received_bytes: Arc::clone(&received_bytes) };
        // Threads that a host starts are in its namespaces.
        host.run(move || serve(&stop, &received_bytes))??;
        Ok(server)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn serve(stop: &Arc<AtomicBool>, received_bytes: &Arc<AtomicU64>) -> Result<(), String> {
    let failed = |what: &str| {
        let what = what.to_owned();
        move |error| format!("cannot get the server's {what}: {error}")
    };
    // Serves both families: IPv4 arrives as mapped addresses.
    let any = SocketAddr::new(IpAddr::from([0_u16; 8]), PORT);
    let listener = TcpListener::bind(any).map_err(failed("TCP port"))?;
    listener.set_nonblocking(true).map_err(failed("TCP port"))?;
    let datagrams = UdpSocket::bind(any).map_err(failed("UDP port"))?;
    datagrams.set_read_timeout(Some(LOST)).map_err(failed("UDP port"))?;
    let spawn = |name: &str, work: Box<dyn FnOnce() + Send>| {
        let thread = std::thread::Builder::new().name(name.to_owned()).spawn(work);
        thread.map(|_| ()).map_err(failed("thread"))
    };
    let (end, count) = (Arc::clone(stop), Arc::clone(received_bytes));
    spawn("rr tcp", Box::new(move || accept(&listener, &end, &count)))?;
    let end = Arc::clone(stop);
    spawn(
        "rr udp",
        Box::new(move || {
            let mut byte = [0; 64];
            while !end.load(Ordering::Relaxed) {
                if let Ok((len, from)) = datagrams.recv_from(&mut byte) {
                    let _ = datagrams.send_to(&byte[..len], from);
                }
            }
        }),
    )
}

/// Serves clients one after the other, since there is only one at a time.
fn accept(listener: &TcpListener, stop: &AtomicBool, received_bytes: &AtomicU64) {
    while !stop.load(Ordering::Relaxed) {
        match listener.accept() {
            Ok((stream, _)) => {
                // A client that disconnects is done.
                let _ = serve_client(stream, received_bytes);
            }
            Err(error) if error.kind() == ErrorKind::WouldBlock => std::thread::yield_now(),
            Err(_) => std::thread::sleep(Duration::from_millis(1)),
        }
    }
}

/// The first byte selects the service: with `r` each byte is answered, with `s` all bytes are
/// counted.
fn serve_client(mut stream: TcpStream, received_bytes: &AtomicU64) -> std::io::Result<()> {
    stream.set_nonblocking(false)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    let mut first = [0];
    stream.read_exact(&mut first)?;
    let mut bytes = vec![0; CHUNK];
    if first == *b"s" {
        loop {
            match stream.read(&mut bytes)? {
                0 => return Ok(()),
                read => received_bytes.fetch_add(read as u64, Ordering::Relaxed),
            };
        }
    }
    stream.write_all(&first)?;
    loop {
        match stream.read(&mut bytes[..1])? {
            0 => return Ok(()),
            read => stream.write_all(&bytes[..read])?,
        }
    }
}

/// Makes a host's client exchange traffic with the server at an address for `time`.
pub(super) fn measure(
    host: &Host,
    server: &Server,
    to: IpAddr,
    kind: Kind,
    time: Duration,
) -> Result<Measured, String> {
    let (to, received_bytes) = (SocketAddr::new(to, PORT), Arc::clone(&server.received_bytes));
    let done = host.run(move || match kind {
        Kind::TcpRr => tcp_rr(to, time),
        Kind::TcpCrr => transactions(time, || {
            let mut stream = connect(to)?;
            exchange(&mut stream)?;
            Ok(true)
        }),
        Kind::UdpRr => udp_rr(to, time),
        Kind::TcpStream => stream(to, time, &received_bytes),
    })?;
    done.map_err(|error| format!("{kind:?} to {to}: {error}"))
}

fn connect(to: SocketAddr) -> std::io::Result<TcpStream> {
    let stream = TcpStream::connect_timeout(&to, PATIENCE)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(PATIENCE))?;
    stream.set_write_timeout(Some(PATIENCE))?;
    Ok(stream)
}

fn exchange(stream: &mut TcpStream) -> std::io::Result<()> {
    stream.write_all(b"r")?;
    stream.read_exact(&mut [0])
}

fn tcp_rr(to: SocketAddr, time: Duration) -> std::io::Result<Measured> {
    let mut stream = connect(to)?;
    transactions(time, || exchange(&mut stream).map(|()| true))
}

fn udp_rr(to: SocketAddr, time: Duration) -> std::io::Result<Measured> {
    let any: IpAddr = if to.is_ipv4() { IpAddr::from([0; 4]) } else { IpAddr::from([0_u16; 8]) };
    let socket = UdpSocket::bind(SocketAddr::new(any, 0))?;
    socket.connect(to)?;
    socket.set_read_timeout(Some(LOST))?;
    let mut number = 0_u64;
    transactions(time, || {
        number += 1;
        socket.send(&number.to_be_bytes())?;
        loop {
            let mut answer = [0; 8];
            match socket.recv(&mut answer) {
                // An answer may still arrive after its time limit.
                Ok(_) if answer != number.to_be_bytes() => {}
                Ok(_) => return Ok(true),
                Err(error)
                    if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) =>
                {
                    return Ok(false);
                }
                Err(error) => return Err(error),
            }
        }
    })
}

/// Runs one transaction after the other; each says whether it received its answer.
fn transactions(
    time: Duration,
    mut one: impl FnMut() -> std::io::Result<bool>,
) -> std::io::Result<Measured> {
    let warm = Instant::now();
    while warm.elapsed() < WARM_UP {
        one()?;
    }
    let (mut latency, mut lost) = (latencies(), 0);
    let start = Instant::now();
    let mut last = start;
    while last - start < time {
        let answered = one()?;
        let now = Instant::now();
        match answered {
            true => latency.saturating_record((now - last).as_nanos() as u64),
            false => lost += 1,
        }
        last = now;
    }
    let rate = latency.len() as f64 / (last - start).as_secs_f64();
    Ok(Measured { rate, latency, lost })
}

fn stream(to: SocketAddr, time: Duration, received_bytes: &AtomicU64) -> std::io::Result<Measured> {
    let mut stream = connect(to)?;
    let bytes = vec![b's'; CHUNK];
    let mut send = |time: Duration| {
        let start = Instant::now();
        while start.elapsed() < time {
            stream.write_all(&bytes)?;
        }
        Ok::<_, std::io::Error>(start.elapsed())
    };
    send(WARM_UP)?;
    let before = received_bytes.load(Ordering::Relaxed);
    let took = send(time)?;
    let received = received_bytes.load(Ordering::Relaxed) - before;
    let rate = received as f64 * 8.0 / took.as_secs_f64() / 1e6;
    Ok(Measured { rate, latency: latencies(), lost: 0 })
}
