//! `tollway run` between real interfaces: veth pairs and TAP devices in network namespaces.
//!
//! Each test starts this program again in a namespace of its own (with `unshare`, which needs no
//! root where user namespaces are allowed), and the hosts in further ones. A test touches nothing
//! outside, and everything that it makes ends with it.

#![allow(clippy::unwrap_used)]

mod namespaces;
mod running;

use std::fs::File;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream, UdpSocket};
use std::process::ExitCode;
use std::time::Duration;

#[path = "live/control.rs"]
mod control;
#[path = "live/filter.rs"]
mod filter;
#[path = "live/logs.rs"]
mod logs;

use etherparse::PacketBuilder;
use namespaces::{Host, PATIENCE, Process, ping, ready, sh, unanswered, until};
use running::{CONFIG, Router, sleeps, two_hosts};
use tollway_capture::{CaptureReader, CaptureWriter};

/// The tests by name; each runs in a network namespace of its own.
const BESIDE: [namespaces::Test; 14] = [
    ("neighbours_are_learned_by_the_devices_own_addresses", learning),
    ("pings_cross_and_a_lost_interface_is_survived", pings),
    ("unfinished_checksums_are_finished", checksums),
    ("stripped_vlan_tags_are_put_back", vlan_tags),
    ("a_tap_device_is_a_port", tap),
    ("a_running_router_shows_its_state", control::shows),
    ("mistakes_in_rules_leave_the_active_ones", filter::refused),
    ("logged_packets_are_written_once", filter::logs),
    ("a_reload_resets_sets_to_the_file", filter::sets),
    ("answers_and_errors_of_connections_pass", filter::connections),
    ("the_control_socket_is_its_owners_and_one_routers", control::sockets),
    ("a_lack_of_descriptors_is_logged_once", control::shortage),
    ("too_little_address_space_is_reported", control::address_space),
    ("a_log_that_nobody_takes_ends_nothing", logs::untaken),
];

/// Tests that measure times, rates or losses.
const ALONE: [namespaces::Test; 1] = [("rules_change_while_packets_flow", filter::drops)];

fn main() -> ExitCode {
    let tests = namespaces::Tests { beside: &BESIDE, alone: &ALONE };
    namespaces::main(&tests, "-n", missing, |role| match role {
        ["--serve", address] => serve(address.parse().unwrap()),
        ["--client", address] => run_client(address.parse().unwrap()),
        _ => ExitCode::FAILURE,
    })
}

/// Returns what a test needs and this user may not do, if anything.
fn missing(name: &str) -> Option<&'static str> {
    if let Some(lack) = namespaces::lacks_namespaces() {
        return Some(lack);
    }
    let driver = File::options().read(true).write(true).open("/dev/net/tun");
    let wants_driver = ["a_tap", "a_running"].iter().any(|w| name.starts_with(w));
    (wants_driver && driver.is_err())
        .then_some("/dev/net/tun is not there, or not open to this user")
}

fn pings() {
    let (a, b) = two_hosts();
    let mut router = Router::start(CONFIG);
    for (host, target) in [(&a, "10.0.2.2"), (&a, "fd00:2::2"), (&b, "10.0.1.2"), (&b, "fd00:1::2")]
    {
        let output = host.pings(5, target);
        assert!(output.contains("ttl=63"), "{output}");
    }
    sleeps(&router);

    sh("ip link set ra down");
    until("the loss to be noticed", || router.read("stderr").contains("the interface is down"));
    sh("ip link set ra up");
    until("the return to be noticed", || router.read("stderr").contains("ra is back"));
    a.pings(3, "10.0.2.2");

    sh("ip link delete ra");
    until("the loss to be noticed", || router.read("stderr").contains("the interface is gone"));
    std::thread::sleep(Duration::from_millis(2500));
    assert!(router.lives(), "{}", router.read("stderr"));
    assert_eq!(router.read("stderr").matches("the interface is gone").count(), 1);
    a.plug("a", "02:00:00:00:01:02", ["10.0.1.2/24", "fd00:1::2/64"]);
    a.route("ha", "10.0.1.1", "02:00:00:00:00:0a");
    until("the return to be noticed", || router.read("stderr").matches("ra is back").count() == 2);
    a.pings(3, "10.0.2.2");

    let summary = router.stop();
    assert!(summary.contains("received") && summary.contains("sent on"), "{summary}");
}

/// Nothing is known beforehand, and the router has the Ethernet addresses of its devices.
fn learning() {
    sh("ip link set lo up");
    let (a, b) = (Host::new(), Host::new());
    a.plug("a", "02:00:00:00:01:02", ["10.0.1.2/24", "fd00:1::2/64"]);
    b.plug("b", "02:00:00:00:02:02", ["10.0.2.2/24", "fd00:2::2/64"]);
    for (host, gateways) in [(&a, ["10.0.1.1", "fd00:1::1"]), (&b, ["10.0.2.1", "fd00:2::1"])] {
        for gateway in gateways {
            host.sh(&format!("ip route add default via {gateway}"));
        }
    }
    let config = CONFIG.split("[[neighbours]]").next().unwrap();
    let config: String = config
        .lines()
        .filter(|line| !line.starts_with("mac"))
        .fold(String::new(), |config, line| config + line + "\n");
    let mut router = Router::start(&config);
    for (host, target) in [(&a, "10.0.2.2"), (&b, "fd00:1::2")] {
        let output = host.pings(5, target);
        assert!(output.contains("ttl=63"), "{output}");
    }
    let device = sh("ip -br link show ra");
    let address = device.split_whitespace().nth(2).unwrap();
    let known = a.sh("ip neigh show 10.0.1.1");
    assert!(known.contains(address), "{known} is not {device}");
    let summary = router.stop();
    assert!(summary.contains("arp_requests_sent"), "{summary}");
}

/// Sends back what comes, by UDP and then by one TCP connection.
fn serve(address: SocketAddr) -> ExitCode {
    let udp = UdpSocket::bind(address).unwrap();
    let tcp = TcpListener::bind(address).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    println!("ready");
    let mut bytes = [0; 2048];
    let (len, from) = udp.recv_from(&mut bytes).unwrap();
    udp.send_to(&bytes[..len], from).unwrap();
    let (mut stream, _) = tcp.accept().unwrap();
    let len = stream.read(&mut bytes).unwrap();
    stream.write_all(&bytes[..len]).unwrap();
    ExitCode::SUCCESS
}

/// Sends data by UDP and by TCP, and expects an answer.
fn run_client(address: SocketAddr) -> ExitCode {
    let any = if address.is_ipv4() { "0.0.0.0:0" } else { "[::]:0" };
    let udp = UdpSocket::bind(any).unwrap();
    udp.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut bytes = [0; 2048];
    udp.send_to(b"an odd number of bytes!", address).unwrap();
    let (len, _) = udp.recv_from(&mut bytes).unwrap();
    assert_eq!(&bytes[..len], b"an odd number of bytes!");
    let mut stream = TcpStream::connect_timeout(&address, PATIENCE).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(&[7; 1000]).unwrap();
    stream.read_exact(&mut bytes[..1000]).unwrap();
    assert_eq!(bytes[..1000], [7; 1000]);
    ExitCode::SUCCESS
}

/// A veth leaves checksums to a network card that does not exist. Without the router's help, the
/// receiver's kernel would drop every UDP datagram and TCP segment.
fn checksums() {
    let (a, b) = two_hosts();
    let mut router = Router::start(CONFIG);
    for address in ["10.0.2.2:7000", "[fd00:2::2]:7000"] {
        let mut server = ready(&mut b.role("--serve", address));
        assert!(
            a.role("--client", address).status().unwrap().success(),
            "{}",
            router.read("stderr")
        );
        assert!(server.0.wait().unwrap().success());
    }
    router.stop();
}

/// The kernel removes the tag of a received frame, whichever device put it there.
fn vlan_tags() {
    sh("ip link set lo up");
    sh("ip link add ra type veth peer name ga");
    sh("ip link set ra up");
    sh("ip link set ga up");
    let receiver = r#"
        [ports.a]
        kind = "af_packet"
        device = "ra"
        mac = "02:00:00:00:00:0a"
        [vlans."a.s"]
        parent = "a"
        vid = 7
        protocol = "802.1ad"
        [vlans."a.s.c"]
        parent = "a.s"
        vid = 10
        addresses = ["10.0.1.1/24"]
        [ports.b]
        kind = "capture"
        output = "sent.pcapng"
        addresses = ["10.0.2.1/24"]
        [[neighbours]]
        dev = "b"
        address = "10.0.2.2"
        mac = "02:00:00:00:02:02"
    "#;
    let generator = r#"
        [ports.in]
        kind = "capture"
        input = "in.pcap"
        mac = "02:00:00:00:00:01"
        addresses = ["10.0.3.1/24"]
        [ports.out]
        kind = "af_packet"
        device = "ga"
        [vlans."out.s"]
        parent = "out"
        vid = 7
        protocol = "802.1ad"
        [vlans."out.s.c"]
        parent = "out.s"
        vid = 10
        addresses = ["10.0.1.2/24"]
        [[neighbours]]
        dev = "out.s.c"
        address = "10.0.1.1"
        mac = "02:00:00:00:00:0a"
        [[routes]]
        to = "10.0.2.0/24"
        via = "10.0.1.1"
    "#;
    let dir = tempfile::tempdir().unwrap();
    let mut writer = CaptureWriter::create(&dir.path().join("in.pcap")).unwrap();
    for port in 0..201 {
        // The last payload fills the device's MTU, which leaves no room for two tags.
        let payload = if port < 200 { 6 } else { 1472 };
        let mut frame = Vec::new();
        PacketBuilder::ethernet2([2, 0, 0, 0, 0, 9], [2, 0, 0, 0, 0, 1])
            .ipv4([10, 0, 3, 2], [10, 0, 2, 2], 64)
            .udp(port, 7)
            .write(&mut frame, &vec![0; payload])
            .unwrap();
        writer.write(1, &frame).unwrap();
    }
    writer.finish().unwrap();

    let mut receiver = Router::start(receiver);
    let mut generator = Router::start_in(dir, generator);
    std::thread::sleep(Duration::from_millis(500));
    let summary = generator.stop();
    let printed = receiver.stop();
    let mut sent = CaptureReader::open(&receiver.path("sent.pcapng")).unwrap();
    for port in 0..200_u16 {
        let frame = sent.next_frame().unwrap();
        let frame = frame.unwrap_or_else(|| panic!("{port} frames only: {summary}{printed}"));
        assert_eq!(frame.bytes[12..14], [8, 0], "no tag behind the router");
        assert_eq!(frame.bytes[22], 62, "two routers on the way");
        assert_eq!(frame.bytes[34..36], port.to_be_bytes(), "in order");
    }
    // Its sender gets an error; the kernel would refuse it, and all that is sent with it.
    assert!(summary.contains("mtu_exceeded") && !summary.contains("dev_tx_failed"), "{summary}");
}

/// The kernel of this namespace is a host behind a TAP device, another is behind a veth.
fn tap() {
    let driver = File::options().read(true).write(true).open("/dev/net/tun");
    driver.expect("/dev/net/tun must be there and open to this user: run the test as root");
    sh("ip link set lo up");
    let b = Host::new();
    b.plug("b", "02:00:00:00:02:02", ["10.0.2.2/24", "fd00:2::2/64"]);
    b.route("hb", "10.0.2.1", "02:00:00:00:00:0b");
    sh("ip tuntap add ta mode tap");
    sh("ip link set ta address 02:00:00:00:01:02");
    let config = CONFIG.replace(
        "kind = \"af_packet\"\ndevice = \"ra\"",
        "kind = \"tap\"\ndevice = \"ta\"\nmtu = 1400",
    );
    let mut router = Router::start(&config);
    let output = sh("ip link show ta");
    assert!(output.contains("mtu 1400") && output.contains(",UP"), "{output}");
    sh("ip address add 10.0.1.2/24 dev ta");
    sh("ip neigh replace 10.0.1.1 lladdr 02:00:00:00:00:0a dev ta nud permanent");
    sh("ip route add 10.0.2.0/24 via 10.0.1.1 dev ta");
    let output = sh(&ping(5, "10.0.2.2"));
    assert!(unanswered(&output, 5).is_empty() && output.contains("ttl=63"), "{output}");
    sh("ip link delete ta");
    until("the loss to be noticed", || router.read("stderr").contains("the TAP device ta is gone"));
    until("a new one", || router.read("stderr").contains("ta is back"));
    assert!(router.lives());
    let summary = router.stop();
    assert!(summary.contains("received"), "{summary}");
}
