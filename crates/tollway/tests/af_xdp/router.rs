//! Two hosts, the router's kernel between them, and Tollway.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;

use super::namespaces::{Host, PATIENCE, queues as queues_of, ready, sh};
use super::running;

const MAC_A: &str = "02:00:00:00:01:02";
const MAC_B: &str = "02:00:00:00:02:02";

/// Two hosts and the router's kernel, which has routes to both.
pub struct Net {
    pub a: Host,
    pub b: Host,
    mtu: u16,
    queues: u32,
}

impl Net {
    pub fn new(mtu: u16, queues: u32) -> Self {
        sh("ip link set lo up");
        for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            sh(&format!("sysctl -qw net.{family}=1"));
        }
        let net = Self { a: Host::new(), b: Host::new(), mtu, queues };
        net.plug_a();
        net.plug_b();
        net
    }

    /// Makes a network of hosts whose cables are already there.
    #[allow(dead_code, reason = "of the programs that share this, one has such hosts")]
    pub fn of(a: Host, b: Host) -> Self {
        Self { a, b, mtu: 1500, queues: 1 }
    }

    pub fn plug_a(&self) {
        self.plug(&self.a, "a", MAC_A, 1);
    }

    pub fn plug_b(&self) {
        self.plug(&self.b, "b", MAC_B, 2);
    }

    pub fn plug(&self, host: &Host, cable: &str, mac: &str, net: u8) {
        let Self { mtu, queues, .. } = self;
        let pid = host.0.0.id();
        let end = format!("mtu {mtu} {}", queues_of(*queues));
        sh(&format!("ip link add r{cable} {end} type veth peer name h{cable} {end} netns {pid}"));
        host.sh(&format!("ip link set h{cable} address {mac}"));
        // A new device gets the address of the old one, as a network card would have.
        sh(&format!("ip link set r{cable} address 02:00:00:00:00:0{cable}"));
        // The host finishes its own checksums, since nothing else does.
        host.sh(&format!("ethtool -K h{cable} tx off"));
        for (end, last) in [("r", 1), ("h", 2)] {
            let own = |line: String| if end == "r" { sh(&line) } else { host.sh(&line) };
            own(format!("ip address add 10.0.{net}.{last}/24 dev {end}{cable}"));
            own(format!("ip address add fd00:{net}::{last}/64 dev {end}{cable} nodad"));
            own(format!("ip link set {end}{cable} up"));
        }
        host.sh(&format!("ip route replace default via 10.0.{net}.1"));
        host.sh(&format!("ip route replace default via fd00:{net}::1"));
    }

    /// Asserts that A can talk to servers on B.
    pub fn talk(&self, addresses: [&str; 2]) {
        for address in addresses {
            let mut server = ready(&mut self.b.role("--serve", address));
            assert!(self.a.role("--client", address).status().unwrap().success(), "{address}");
            assert!(server.0.wait().unwrap().success());
        }
    }
}

/// Returns the router's configuration. With `neighbours` it contains all of them.
pub fn config(mode: &str, mtu: u16, neighbours: bool) -> String {
    let mut text = String::new();
    for (port, net) in [("a", 1), ("b", 2)] {
        text += &format!(
            "[ports.{port}]\nkind = \"af_xdp\"\nmode = \"{mode}\"\ndevice = \"r{port}\"\nmtu = {mtu}\n\
             addresses = [\"10.0.{net}.1/24\", \"fd00:{net}::1/64\"]\n"
        );
    }
    for (port, net, mac) in [("a", 1, MAC_A), ("b", 2, MAC_B)] {
        for address in [format!("10.0.{net}.2"), format!("fd00:{net}::2")] {
            if neighbours {
                text += &format!(
                    "[[neighbours]]\ndev = \"{port}\"\naddress = \"{address}\"\nmac = \"{mac}\"\n"
                );
            }
        }
    }
    text
}

/// A router's packet counts.
#[derive(Debug)]
pub struct Counts {
    pub received: u64,
    pub sent: u64,
    pub punted: u64,
}

impl Counts {
    /// Reads the counts from what a router prints at its end.
    pub fn of(summary: &str) -> Self {
        let count = |name: &str| {
            let line = summary.lines().find_map(|line| line.strip_prefix(name));
            let line = line.unwrap_or_else(|| panic!("{name}: {summary}"));
            line.trim().replace(',', "").parse().unwrap()
        };
        Self { received: count("received "), sent: count("sent on "), punted: count("punted ") }
    }
}

/// Starts a router that must fail to start. Returns its log.
pub fn refused(program: &str, config: &str) -> String {
    let dir = tempfile::tempdir().unwrap();
    let output = running::command(program, &dir, config).output().unwrap();
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!(output.status.code(), Some(1), "{error}");
    error
}

/// Number of bytes of a TCP conversation, in each direction.
const LONG: usize = 300_000;

/// Sends back what comes, first with UDP and then on one TCP connection.
pub fn serve(address: SocketAddr) -> ExitCode {
    let udp = UdpSocket::bind(address).unwrap();
    let tcp = TcpListener::bind(address).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    println!("ready");
    let mut bytes = vec![0; LONG];
    let (len, from) = udp.recv_from(&mut bytes).unwrap();
    udp.send_to(&bytes[..len], from).unwrap();
    let (mut stream, _) = tcp.accept().unwrap();
    stream.read_exact(&mut bytes).unwrap();
    stream.write_all(&bytes).unwrap();
    ExitCode::SUCCESS
}

/// Sends data with UDP and with TCP, and asserts that the server sends them back.
pub fn run_client(address: SocketAddr) -> ExitCode {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let udp = UdpSocket::bind(any).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let pattern: Vec<u8> = (0..LONG).map(|index| (index % 251) as u8).collect();
    let mut bytes = vec![0; LONG];
    udp.send_to(b"an odd number of bytes!", address).unwrap();
    let (len, _) = udp.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"an odd number of bytes!");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&pattern).unwrap();
    stream.read_exact(&mut bytes).unwrap();
    assert_eq!(bytes, pattern);
    ExitCode::SUCCESS
}
