//! Streams of bytes by TCP, from A to B.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::process::{ExitCode, Stdio};
use std::time::{Duration, Instant};

use crate::namespaces::{PATIENCE, Process};
use crate::router::Net;

const MEGABYTE: usize = 1 << 20;

/// The byte at a place.
fn pattern(at: usize) -> u8 {
    (at % 251) as u8
}

/// Reads one stream to its end and answers with its length.
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

/// Sends megabytes for so long, one at least, and sees that all came.
pub fn ask(address: SocketAddr, seconds: u64) -> ExitCode {
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.set_write_timeout(Some(PATIENCE)).unwrap();
    let bytes: Vec<u8> = (0..MEGABYTE).map(pattern).collect();
    let (start, mut len) = (Instant::now(), 0);
    let mut longest = Duration::ZERO;
    while len == 0 || start.elapsed() < Duration::from_secs(seconds) {
        let before = Instant::now();
        stream.write_all(&bytes).unwrap();
        len += bytes.len() as u64;
        longest = longest.max(before.elapsed());
    }
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = [0; 8];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(u64::from_be_bytes(answer), len);
    println!("{len} bytes, a megabyte in {longest:?} at most");
    ExitCode::SUCCESS
}

/// A stream under way.
pub struct Transfer {
    client: Process,
    server: Process,
}

impl Transfer {
    /// From A to a server of B that it starts.
    pub fn start(net: &Net, address: &str, seconds: u64) -> Self {
        let mut server = net.b.role("--serve", address);
        let mut server = Process(server.stdout(Stdio::piped()).spawn().unwrap());
        server.0.stdout.as_mut().unwrap().read_exact(&mut [0; 5]).unwrap();
        let mut client = net.a.role("--ask", address);
        let client = Process(client.arg(seconds.to_string()).spawn().unwrap());
        Self { client, server }
    }

    /// Its end, with all bytes.
    pub fn finish(mut self) {
        assert!(self.client.0.wait().unwrap().success());
        assert!(self.server.0.wait().unwrap().success());
    }
}
