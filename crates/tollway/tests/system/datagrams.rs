//! Numbered UDP datagrams, from A to B and back.

use std::collections::HashSet;
use std::net::{SocketAddr, UdpSocket};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::namespaces::{PATIENCE, Process, ready};
use crate::router::Net;

/// At this interval no queue overflows, even if a process waits half a second for a processor.
const INTERVAL: Duration = Duration::from_millis(2);
/// A datagram that comes later counts as lost.
const LATEST: Duration = Duration::from_secs(4);

/// Sends datagrams back until no more come.
pub fn serve(address: SocketAddr) -> ExitCode {
    let socket = UdpSocket::bind(address).unwrap();
    socket.set_read_timeout(Some(PATIENCE)).unwrap();
    println!("ready");
    let mut bytes = [0; 8];
    while let Ok((len, from)) = socket.recv_from(&mut bytes) {
        socket.send_to(&bytes[..len], from).unwrap();
    }
    ExitCode::SUCCESS
}

/// Sends for a number of seconds. Prints how many datagrams came back.
pub fn run_client(address: SocketAddr, seconds: u64) -> ExitCode {
    let socket = UdpSocket::bind(if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" }).unwrap();
    socket.connect(address).unwrap();
    let count = Duration::from_secs(seconds).div_duration_f64(INTERVAL) as u64;
    let (mut back, mut twice) = (HashSet::new(), 0);
    let mut due = Instant::now();
    for number in 0..count {
        socket.send(&number.to_be_bytes()).unwrap();
        due += INTERVAL;
        while let Some(number) = receive(&socket, due) {
            twice += u64::from(!back.insert(number));
        }
    }
    let end = Instant::now() + LATEST;
    while (back.len() as u64) < count
        && let Some(number) = receive(&socket, end)
    {
        twice += u64::from(!back.insert(number));
    }
    println!("{} of {count} came back, {twice} twice", back.len());
    ExitCode::SUCCESS
}

/// Returns the next datagram's number, if one comes before `until`.
fn receive(socket: &UdpSocket, until: Instant) -> Option<u64> {
    let time = until.checked_duration_since(Instant::now()).filter(|time| !time.is_zero())?;
    socket.set_read_timeout(Some(time)).unwrap();
    let mut bytes = [0; 8];
    let len = socket.recv(&mut bytes).ok()?;
    assert_eq!(len, bytes.len());
    Some(u64::from_be_bytes(bytes))
}

/// A running exchange of datagrams.
pub struct Datagrams {
    client: Process,
    _server: Process,
}

impl Datagrams {
    /// Starts a server on B, and a client on A.
    pub fn start(net: &Net, address: &str, seconds: u64) -> Self {
        let server = ready(net.b.role("--serve", address).arg("datagrams"));
        let mut client = net.a.role("--client", address);
        client.args([&seconds.to_string(), "datagrams"]).stdout(Stdio::piped());
        Self { client: Process(client.spawn().unwrap()), _server: server }
    }

    /// Waits for the end. Returns what the client printed: how many datagrams came back.
    pub fn finish(mut self) -> String {
        assert!(self.client.0.wait().unwrap().success());
        let output = std::io::read_to_string(self.client.0.stdout.take().unwrap()).unwrap();
        output.trim().to_owned()
    }
}
