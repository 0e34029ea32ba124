//! Tests the XDP program on devices: two hosts on veth pairs, and a router between them.

pub mod owners;
pub mod punts;
pub mod refusals;
pub mod tables;

use std::net::Ipv4Addr;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use tollway_dataplane::id::{LinkId, PortId, Vid};
use tollway_net::{KernelPath, Mac, VlanProtocol};
use tollway_xdp::counts::PassReason;
use tollway_xdp::flows::{Flow, Flow4Key, Flow6Key};
use tollway_xdp::{Mode, Options, State, XdpError, XdpLink, XdpPort, XdpPrograms};

use super::echo::{BOTH, counts, pings, pings_with_heartbeats};
use super::frames::{ICMP, ICMP6};
use super::namespaces::{Host, ifindex, sh};

const A: PortId = PortId(0);
const B: PortId = PortId(1);
const MAC_A: [u8; 6] = [2, 0, 0, 0, 0, 0x0a];
const MAC_B: [u8; 6] = [2, 0, 0, 0, 0, 0x0b];
const HOST_A: [u8; 6] = [2, 0, 0, 0, 1, 2];
const HOST_B: [u8; 6] = [2, 0, 0, 0, 2, 2];

/// Makes two hosts, with the kernel between them as a router that does not forward.
fn two_hosts() -> (Host, Host) {
    sh("ip link set lo up");
    let (a, b) = (Host::new(), Host::new());
    a.plug("a", "02:00:00:00:01:02", ["10.0.1.2/24", "fd00:1::2/64"]);
    b.plug("b", "02:00:00:00:02:02", ["10.0.2.2/24", "fd00:2::2/64"]);
    for (host, name, number) in [(&a, "a", 1), (&b, "b", 2)] {
        sh(&format!("ip link set r{name} address 02:00:00:00:00:0{name}"));
        sh(&format!("ip address add 10.0.{number}.1/24 dev r{name}"));
        sh(&format!("ip address add fd00:{number}::1/64 dev r{name} nodad"));
        // Without GRO, a veth drops redirected frames.
        host.sh(&format!("ethtool -K h{name} gro on"));
        for gateway in [format!("10.0.{number}.1"), format!("fd00:{number}::1")] {
            host.route(&format!("h{name}"), &gateway, &format!("02:00:00:00:00:0{name}"));
        }
        for neigh in [format!("10.0.{number}.2"), format!("fd00:{number}::2")] {
            let mac = format!("02:00:00:00:0{number}:02");
            sh(&format!("ip neigh replace {neigh} lladdr {mac} dev r{name} nud permanent"));
        }
    }
    forwarding(false);
    (a, b)
}

/// Turns the kernel's forwarding on or off.
fn forwarding(on: bool) {
    for file in ["ipv4/ip_forward", "ipv6/conf/all/forwarding"] {
        std::fs::write(Path::new("/proc/sys/net").join(file), u8::from(on).to_string()).unwrap();
    }
}

fn port(port: PortId, device: &str, mac: [u8; 6], links: &[XdpLink]) -> XdpPort {
    XdpPort {
        port,
        device: device.to_owned(),
        ifindex: ifindex(device),
        mac: Mac(mac),
        queues: 1,
        links: links.to_vec(),
        is_bridge_port: false,
    }
}

fn untagged(link: u16) -> XdpLink {
    XdpLink { tag: None, outer: None, link: LinkId(link), kernel_path: KernelPath::default() }
}

fn ports() -> Vec<XdpPort> {
    vec![port(A, "ra", MAC_A, &[untagged(0)]), port(B, "rb", MAC_B, &[untagged(1)])]
}

/// Writes the heartbeat of an XDP program, as a worker does.
struct Worker {
    ends: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    fn start(state: State) -> Self {
        Self::of(0, state)
    }

    /// Writes the heartbeat of this worker.
    fn of(worker: usize, state: State) -> Self {
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                state.beat(worker);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        Self { ends, thread: Some(thread) }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.ends.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

/// Attaches the XDP program to both ports, with a fresh heartbeat.
fn start(modes: &[Mode], replace: bool) -> (XdpPrograms, Worker) {
    let mut programs = load(replace);
    let worker = Worker::start(programs.state());
    for port in [A, B] {
        programs.attach(port, modes, true).unwrap();
    }
    programs.state().set_bypass(false);
    (programs, worker)
}

fn load(replace: bool) -> XdpPrograms {
    let options = Options { flows4: 1024, flows6: 1024, replace, ..Options::default() };
    XdpPrograms::load(&ports(), &options).unwrap()
}

/// A route through the XDP path: echo packets between the hosts that come in on a link.
struct XdpRoute<'a> {
    link: u16,
    to: &'a XdpPort,
    header: Vec<u8>,
}

/// Enters the echo flows of one direction, IPv4 and IPv6.
fn enter(programs: &XdpPrograms, way: &XdpRoute<'_>, from: u8, to: u8) {
    let mut flow = Flow {
        generation: programs.state().generation(),
        mtu: 1500,
        egress_port: way.to.port.0 as u8,
        l2_len: (way.header.len() + 2) as u8,
        ..Flow::default()
    };
    for ethertype in [[0x08, 0x00], [0x86, 0xdd]] {
        let l2 = [&way.header[..], &ethertype].concat();
        flow.l2[..l2.len()].copy_from_slice(&l2);
        let link = LinkId(way.link);
        let v4 = |host| (Ipv4Addr::new(10, 0, host, 2), 0);
        let v6 = |host: u8| (format!("fd00:{host}::2").parse().unwrap(), 0);
        if ethertype == [0x08, 0x00] {
            let key = Flow4Key::new(link, ICMP, v4(from), v4(to));
            programs.flows().insert4(&[key], &[flow]);
        } else {
            let key = Flow6Key::new(link, ICMP6, v6(from), v6(to));
            programs.flows().insert6(&[key], &[flow]);
        }
    }
}

/// Enters the echo flows of both directions, between the two ports.
fn enter_both(programs: &XdpPrograms) {
    let ports = ports();
    let header = |dst: [u8; 6], src: [u8; 6]| [dst, src].concat();
    enter(programs, &XdpRoute { link: 0, to: &ports[1], header: header(HOST_B, MAC_B) }, 1, 2);
    enter(programs, &XdpRoute { link: 1, to: &ports[0], header: header(HOST_A, MAC_A) }, 2, 1);
}

fn carries_xdp(device: &str) -> bool {
    sh(&format!("ip -details link show {device}")).contains("xdp")
}

pub fn xdp_path() {
    let (a, _b) = two_hosts();
    let (programs, _worker) = start(&[Mode::Native], false);
    enter_both(&programs);
    // Neither the kernel nor a socket forwards.
    let grown = pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH, 1));
    let (at_a, at_b) = (grown[0], grown[1]);
    assert_eq!((at_a.xdp_rx_packets, at_a.xdp_tx_packets), (20, 20));
    assert_eq!((at_b.xdp_rx_packets, at_b.xdp_tx_packets), (20, 20));
    assert_eq!(at_a.xdp_rx_bytes, at_b.xdp_tx_bytes);
    // The kernel answers for the router's own addresses all the while.
    a.pings(3, "10.0.1.1");

    // After the generation changes, all flows are void, and the XDP path takes nothing.
    programs.state().bump_generation();
    forwarding(true);
    let grown = pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH[..1], 1));
    assert_eq!(grown[0].xdp_rx_packets, 0);
}

/// Adds and removes tags: between the hosts' ports is a cable, both ends of which are ports.
pub fn vlans() {
    let (a, _b) = two_hosts();
    sh("ip link add rc type veth peer name rd");
    let macs = [[2, 0, 0, 0, 0, 0x0c], [2, 0, 0, 0, 0, 0x0d]];
    for (device, mac) in [("rc", "02:00:00:00:00:0c"), ("rd", "02:00:00:00:00:0d")] {
        sh(&format!("ip link set {device} address {mac} up"));
    }
    let ten = Some((VlanProtocol::Dot1q, Vid::new(10).unwrap()));
    let tagged = |link| XdpLink {
        tag: ten,
        outer: None,
        link: LinkId(link),
        kernel_path: KernelPath::default(),
    };
    let mut all = ports();
    all.push(port(PortId(2), "rc", macs[0], &[untagged(2), tagged(4)]));
    all.push(port(PortId(3), "rd", macs[1], &[untagged(3), tagged(5)]));
    let mut programs = XdpPrograms::load(&all, &Options::default()).unwrap();
    let _worker = Worker::start(programs.state());
    for port in &all {
        let attached = programs.attach(port.port, &[Mode::Native], true).unwrap();
        assert_eq!(attached.note.is_some(), port.links.len() > 1, "{:?}", attached.note);
    }
    programs.state().set_bypass(false);
    let with_tag = |dst: [u8; 6], src: [u8; 6]| [&dst[..], &src[..], &[0x81, 0, 0, 10]].concat();
    let plain = |dst: [u8; 6], src: [u8; 6]| [dst, src].concat();
    for (link, to, header, from, dst) in [
        (0, 2, with_tag(macs[1], macs[0]), 1, 2),
        (5, 1, plain(HOST_B, MAC_B), 1, 2),
        (1, 3, with_tag(macs[0], macs[1]), 2, 1),
        (4, 0, plain(HOST_A, MAC_A), 2, 1),
    ] {
        enter(&programs, &XdpRoute { link, to: &all[to], header }, from, dst);
    }
    // The packets pass two routers.
    let grown = pings_with_heartbeats(&programs, &[A, B, PortId(2), PortId(3)], (&a, &BOTH, 2));
    let (at_c, at_d) = (grown[2], grown[3]);
    assert_eq!((at_c.xdp_rx_packets, at_d.xdp_rx_packets), (20, 20));
    assert_eq!(at_c.xdp_tx_bytes, at_d.xdp_rx_bytes, "as sent, so received");
}

pub fn fail_open() {
    let (a, _b) = two_hosts();
    forwarding(true);
    let (programs, worker) = start(&Mode::ALL, false);
    enter_both(&programs);
    let passed = |reason| counts(&programs, A).passed(reason);
    let forwarded = || counts(&programs, A).xdp_rx_packets;
    let alive = || pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH[..1], 1))[0];
    assert_eq!(alive().xdp_rx_packets, 10, "while the heart beats");
    drop(worker);
    // Longer than the programs wait for a confirmation of their tables.
    std::thread::sleep(Duration::from_millis(150));
    let (fast, stale) = (forwarded(), passed(PassReason::Stale));
    pings(&a, "10.0.2.2");
    pings(&a, "fd00:2::2");
    assert_eq!(forwarded(), fast, "nobody is there");
    assert!(passed(PassReason::Stale) >= stale + 20);

    let _worker = Worker::start(programs.state());
    programs.state().set_bypass(true);
    let aside = alive();
    assert_eq!(aside.xdp_rx_packets, 0, "it is to step aside");
    assert!(aside.passed(PassReason::Bypass) >= 10);
    programs.state().set_bypass(false);
    assert_eq!(alive().xdp_rx_packets, 10, "back again");

    assert!(carries_xdp("ra") && carries_xdp("rb"));
    drop(programs);
    assert!(!carries_xdp("ra") && !carries_xdp("rb"));
    assert_eq!(std::fs::read_dir("/sys/fs/bpf/tollway").unwrap().count(), 0, "no name is left");
    pings(&a, "10.0.2.2");
}

pub fn generic() {
    let (a, _b) = two_hosts();
    let (programs, _worker) = start(&[Mode::Generic], false);
    assert!(sh("ip link show ra").contains("xdpgeneric"));
    enter_both(&programs);
    let grown = pings_with_heartbeats(&programs, &[A, B], (&a, &BOTH, 1));
    assert_eq!(grown[0].xdp_rx_packets, 20);
    drop(programs);

    // The loopback device supports only generic XDP.
    let lo = port(A, "lo", [0; 6], &[untagged(0)]);
    let mut programs = XdpPrograms::load(&[lo], &Options::default()).unwrap();
    let error = programs.attach(A, &[Mode::Native], true).unwrap_err();
    assert!(matches!(error, XdpError::NotNative { .. }), "{error}");
    let attached = programs.attach(A, &Mode::ALL, true).unwrap();
    assert_eq!(attached.mode, Mode::Generic);
    let reason = attached.step_down.unwrap().to_string();
    assert!(
        reason.starts_with("lo takes no XDP program in its driver: it has no support"),
        "{reason}"
    );
    assert!(programs.is_attached(A));
}
