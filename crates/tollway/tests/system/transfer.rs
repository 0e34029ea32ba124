//! TCP streams, from A to B unless stated otherwise.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::ExitCode;
use std::time::{Duration, Instant};

use crate::namespaces::{Host, PATIENCE, Process, ready};
use crate::router::Net;

const MEGABYTE: usize = 1 << 20;
/// Bytes per write of a paced stream, at 3 MB a second. The smallest queue on the way has room for
/// one write's frames.
const PIECE: usize = 16 << 10;
const INTERVAL: Duration = Duration::from_millis(5);

/// Returns the byte at a position.
fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

/// Reads one stream to its end and replies with its length.
pub fn serve(address: SocketAddr) -> ExitCode {
    let listener = TcpListener::bind(address).unwrap();
    println!("ready");
    let (mut stream, _) = listener.accept().unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let (mut bytes, mut len) = (vec![0; MEGABYTE], 0_usize);
    loop {
        let more = stream.read(&mut bytes).unwrap();
        if more == 0 {
            break;
        }
        assert!((len..).zip(&bytes[..more]).all(|(at, byte)| *byte == pattern(at % MEGABYTE)));
        len += more;
    }
    stream.write_all(&(len as u64).to_be_bytes()).unwrap();
    ExitCode::SUCCESS
}

/// Sends megabytes and asserts that all arrive. `amount` is their number if `kind` is `whole`; else
/// it is the duration in seconds, in which at least one megabyte is sent.
pub fn run_client(address: SocketAddr, amount: u64, kind: &str) -> ExitCode {
    let (seconds, megabytes) = if kind == "whole" { (0, amount) } else { (amount, 1) };
    let paced = kind == "paced";
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let bytes: Vec<u8> = (0..MEGABYTE).map(pattern).collect();
    let (start, mut len) = (Instant::now(), 0);
    while len < megabytes * MEGABYTE as u64 || start.elapsed() < Duration::from_secs(seconds) {
        for piece in bytes.chunks(if paced { PIECE } else { MEGABYTE }) {
            stream.write_all(piece).unwrap();
            if paced {
                std::thread::sleep(INTERVAL);
            }
        }
        len += bytes.len() as u64;
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(u64::from_be_bytes(answer), len);
    ExitCode::SUCCESS
}

/// A running stream.
pub struct Transfer {
    client: Process,
    server: Process,
}

impl Transfer {
    /// Starts a server on B and a stream from A, at full speed.
    pub fn start(net: &Net, address: &str, seconds: u64) -> Self {
        Self::between([&net.a, &net.b], address, seconds, "fast")
    }

    /// Does the same at a slow pace, so that no queue on the way overflows.
    pub fn start_paced(net: &Net, address: &str, seconds: u64) -> Self {
        Self::between([&net.a, &net.b], address, seconds, "paced")
    }

    /// Starts a stream of `megabytes` from one host to a server on the other.
    pub fn start_whole(hosts: [&Host; 2], address: &str, megabytes: u64) -> Self {
        Self::between(hosts, address, megabytes, "whole")
    }

    fn between([from, to]: [&Host; 2], address: &str, amount: u64, kind: &str) -> Self {
        let server = ready(&mut to.role("--serve", address));
        let mut client = from.role("--client", address);
        let client = Process(client.args([&amount.to_string(), kind]).spawn().unwrap());
        Self { client, server }
    }

    /// Waits for the end, and asserts that all bytes arrived.
    pub fn finish(self) {
        assert!(self.ends_whole());
    }

    /// Waits for the end. Says whether all bytes arrived unchanged.
    pub fn ends_whole(mut self) -> bool {
        let is_sent = self.client.0.wait().unwrap().success();
        // A server without a client would wait forever.
        is_sent && self.server.0.wait().unwrap().success()
    }
}
