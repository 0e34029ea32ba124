//! Two hosts with default offloads, the router's kernel between them, and traffic.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;

use tollway_commands::control::ShowRequest;

use super::namespaces::{Host, PATIENCE, ready, sh, until};
use super::running::{KernelRouter, by_kernel};

/// Bytes of a stream.
const STREAM: usize = 10_000_000;
/// The most streams that are tried where the processor is emulated: the kernel forwards while the router is late.
const STREAMS: usize = 3;
/// Datagrams, which all fit into a socket, and bytes of each.
const DATAGRAMS: u64 = 60;
const DATAGRAM: usize = 1000;

/// Two hosts and the router's kernel, which has routes to both.
pub struct Net {
    pub a: Host,
    pub b: Host,
}

impl Net {
    /// Connects `ra` to host A (10.0.1.2, fd00:1::2) and `rb` to host B (10.0.2.2, fd00:2::2).
    pub fn new() -> Self {
        sh("ip link set lo up");
        for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
            sh(&format!("sysctl -qw net.{family}=1"));
        }
        for family in ["ipv4", "ipv6"] {
            sh(&format!("sysctl -qw net.{family}.conf.default.accept_redirects=0"));
        }
        sh("sysctl -qw net.ipv4.conf.all.accept_redirects=0");
        let net = Self { a: Host::new(), b: Host::new() };
        for (host, cable, number) in [(&net.a, "a", 1), (&net.b, "b", 2)] {
            let pid = host.0.0.id();
            sh(&format!("ip link add r{cable} type veth peer name h{cable} netns {pid}"));
            host.sh("ip link set lo up");
            sh(&format!("ip link set r{cable} up"));
            host.sh(&format!("ip link set h{cable} up"));
            configure(host, &format!("r{cable}"), &format!("h{cable}"), number);
        }
        net
    }

    /// Adds a VLAN to a cable, with addresses in another network, by which the host reaches all others.
    pub fn tag(host: &Host, cable: &str, vid: u16, number: u8) {
        for (end, on) in [("r", None), ("h", Some(host))] {
            let run = |line: String| on.map_or_else(|| sh(&line), |host| host.sh(&line));
            let below = format!("{end}{cable}");
            run(format!("ip link add link {below} name {below}.{vid} type vlan id {vid}"));
            run(format!("ip link set {below}.{vid} up"));
        }
        configure(host, &format!("r{cable}.{vid}"), &format!("h{cable}.{vid}"), number);
    }
}

/// Configures the addresses at both ends, and the host's routes.
pub fn configure(host: &Host, router: &str, device: &str, number: u8) {
    sh(&format!("ip address add 10.0.{number}.1/24 dev {router}"));
    sh(&format!("ip address add fd00:{number}::1/64 dev {router} nodad"));
    host.sh(&format!("ip address replace 10.0.{number}.2/24 dev {device}"));
    host.sh(&format!("ip address replace fd00:{number}::2/64 dev {device} nodad"));
    host.sh(&format!("ip route replace default via 10.0.{number}.1 dev {device}"));
    host.sh(&format!("ip -6 route replace default via fd00:{number}::1 dev {device}"));
}

/// Puts the router's end of a cable into a bridge, which gets the addresses.
pub fn bridge(host: &Host, cable: &str, number: u8) {
    sh(&format!("ip address flush dev r{cable}"));
    sh(&format!("ip link add br{cable} type bridge"));
    sh(&format!("ip link set r{cable} master br{cable}"));
    sh(&format!("ip link set br{cable} up"));
    configure(host, &format!("br{cable}"), &format!("h{cable}"), number);
}

/// Puts the router's end of a cable below a macvlan, which gets the addresses.
pub fn macvlan(host: &Host, cable: &str, number: u8) {
    sh(&format!("ip address flush dev r{cable}"));
    sh(&format!("ip link add link r{cable} name mv{cable} type macvlan mode private"));
    sh(&format!("ip link set mv{cable} up"));
    configure(host, &format!("mv{cable}"), &format!("h{cable}"), number);
}

/// Puts the router's end of a cable into a bond, which gets the addresses.
pub fn bond(host: &Host, cable: &str, number: u8) {
    sh(&format!("ip address flush dev r{cable}"));
    sh(&format!("ip link set r{cable} down"));
    sh(&format!("ip link add bo{cable} type bond mode active-backup miimon 100"));
    sh(&format!("ip link set r{cable} master bo{cable}"));
    sh(&format!("ip link set bo{cable} up"));
    configure(host, &format!("bo{cable}"), &format!("h{cable}"), number);
}

/// Lays a tunnel with Ethernet frames over a cable, with addresses in another network, by which the host reaches all
/// others.
pub fn tunnel(host: &Host, cable: &str, (below, number): (u8, u8)) {
    let add = |local: u8, remote: u8, device: String| {
        format!(
            "ip link add vx{cable} type vxlan id 5 dstport 4789 local 10.0.{below}.{local} remote \
             10.0.{below}.{remote} dev {device}"
        )
    };
    sh(&add(1, 2, format!("r{cable}")));
    host.sh(&add(2, 1, format!("h{cable}")));
    sh(&format!("ip link set vx{cable} up"));
    host.sh(&format!("ip link set vx{cable} up"));
    configure(host, &format!("vx{cable}"), &format!("vx{cable}"), number);
}

/// Starts a router with the tc engine.
pub fn start(devices: &str) -> KernelRouter {
    KernelRouter::start(&format!("--engine tc {devices}"))
}

/// Waits until the router forwards most of a host's pings itself.
pub fn until_forwarded(router: &KernelRouter, host: &Host, address: &str) {
    until("packets by Tollway", || {
        let before = router.counts().sent;
        host.pings(10, address);
        router.counts().sent >= before + 16
    });
}

/// Asserts that a stream and datagrams from one host to an address of the other arrive whole, and that Tollway
/// forwards nearly all of the packets.
///
/// In a virtual machine with one emulated processor, the router itself may wait for it for so long that the kernel
/// forwards, which the programs count. Then the stream is sent again, there only.
#[track_caller]
pub fn arrives(router: &KernelRouter, ends: (&Host, &Host), address: &str) {
    let most_streams = if is_in_machine() { STREAMS } else { 1 };
    let mut seen = Vec::new();
    for _ in 0..most_streams {
        let before = while_late(router);
        let (sent, kernel) = carried(router, ends, address);
        let late = while_late(router) - before;
        seen.push((sent, kernel, late));
        if sent > 200 && sent > 2 * kernel {
            return;
        }
        assert!(kernel <= late + sent / 2, "not because the router was late: {address}: {seen:?}");
    }
    let counts = router.show(&ShowRequest::Offload)["counts"].clone();
    panic!("{address}: {seen:?}: {counts}");
}

/// Whether this process runs in the virtual machine (`machine.rs`).
fn is_in_machine() -> bool {
    std::env::args().any(|argument| argument == "machine")
}

/// The number of packets that the programs have passed to the kernel because the router was late.
fn while_late(router: &KernelRouter) -> u64 {
    let offload = router.show(&ShowRequest::Offload);
    let ports = offload["counts"]["ports"].as_array().unwrap();
    let late = ports.iter().flat_map(|port| ["bypass", "stale"].map(|why| &port["kernel"][why]));
    // A reason without packets is left out.
    late.filter_map(|packets| packets.as_u64()).sum()
}

/// Asserts that a stream and datagrams from one host to an address of the other arrive whole. Returns how many packets
/// Tollway has forwarded meanwhile, and how many the kernel.
#[track_caller]
pub fn carried(router: &KernelRouter, (from, to): (&Host, &Host), address: &str) -> (u64, u64) {
    let server = ready(&mut to.role("--serve", address));
    let (sent, kernel) = (router.counts().sent, by_kernel());
    let output = from.role("--client", address).output().unwrap();
    assert!(output.status.success(), "{address}: {}", String::from_utf8_lossy(&output.stderr));
    drop(server);
    (router.counts().sent - sent, by_kernel() - kernel)
}

/// Asserts that streams arrive whole, and that one of them `suffices` by the packets that Tollway and the kernel have
/// forwarded of it.
#[track_caller]
pub fn carries_one(
    router: &KernelRouter,
    ends: (&Host, &Host),
    address: &str,
    suffices: fn((u64, u64)) -> bool,
) {
    let mut seen = Vec::new();
    for _ in 0..STREAMS {
        let counts = carried(router, ends, address);
        seen.push(counts);
        if suffices(counts) {
            return;
        }
    }
    panic!("{address}: {seen:?}");
}

fn pattern(len: usize, first: usize) -> Vec<u8> {
    (first..first + len).map(|at| (at * 7 % 251) as u8).collect()
}

/// Receives a stream and datagrams, and answers with the stream's length and the number of datagrams.
pub fn serve(address: &str) -> ExitCode {
    let (streams, datagrams) =
        (TcpListener::bind(address).unwrap(), UdpSocket::bind(address).unwrap());
    datagrams.set_nonblocking(true).unwrap();
    println!("ready");
    let (mut stream, _) = streams.accept().unwrap();
    let (mut all, mut bytes) = (Vec::new(), vec![0; 1 << 16]);
    let mut right = 0_u64;
    while let Ok(more @ 1..) = stream.read(&mut bytes) {
        all.extend_from_slice(&bytes[..more]);
    }
    assert!(all == pattern(all.len(), 0), "the stream differs");
    while let Ok(len) = datagrams.recv(&mut bytes) {
        let first = usize::from(bytes[0]);
        assert!(bytes[1..len] == pattern(DATAGRAM - 1, first), "a datagram differs");
        right += 1;
    }
    stream.write_all(&(all.len() as u64).to_be_bytes()).unwrap();
    stream.write_all(&right.to_be_bytes()).unwrap();
    ExitCode::SUCCESS
}

/// Sends datagrams and a stream, and asserts that all arrive.
pub fn send(address: &str) -> ExitCode {
    let mut stream = TcpStream::connect_timeout(&address.parse().unwrap(), PATIENCE).unwrap();
    // In a virtual machine that is emulated, a stream takes half a minute.
    stream.set_write_timeout(Some(4 * PATIENCE)).unwrap();
    stream.set_read_timeout(Some(4 * PATIENCE)).unwrap();
    let any = if address.starts_with('[') { "[::]:0" } else { "0.0.0.0:0" };
    let datagrams = UdpSocket::bind(any).unwrap();
    for number in 0..DATAGRAMS as usize {
        let first = number % 256;
        let datagram = [vec![first as u8], pattern(DATAGRAM - 1, first)].concat();
        datagrams.send_to(&datagram, address).unwrap();
    }
    stream.write_all(&pattern(STREAM, 0)).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut answer = [0; 16];
    stream.read_exact(&mut answer).unwrap();
    let [len, right] =
        [0, 8].map(|at| *answer[at..].first_chunk().unwrap()).map(u64::from_be_bytes);
    assert_eq!((len, right), (STREAM as u64, DATAGRAMS));
    ExitCode::SUCCESS
}
