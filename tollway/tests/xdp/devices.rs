//! Tests the XDP program on devices: two hosts on veth pairs, and a router between them.

use std::fs::File;
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use aya::Ebpf;
use aya::programs::{Xdp, XdpMode};
use tollway_dataplane::id::{LinkId, PortId, Vid};
use tollway_net::{Left, Mac, VlanProtocol};
use tollway_xdp::counts::PassReason;
use tollway_xdp::flows::{Flow, Flow4Key, Flow6Key};
use tollway_xdp::refusals::Cause;
use tollway_xdp::{
    self, Mode, Options, ProbeTarget, State, XdpError, XdpLink, XdpPort, XdpPrograms,
};

use super::echo::{BOTH, beating, counts, pings};
use super::frames::{ICMP, ICMP6, Packet, sign};
use super::namespaces::{Host, ifindex, ping, ready, sh, unanswered, until};
use super::socket::Wire;

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
    }
}

fn untagged(link: u16) -> XdpLink {
    XdpLink { tag: None, link: LinkId(link), left: Left::default() }
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
        let ends = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&ends);
        let thread = std::thread::spawn(move || {
            while !seen.load(Ordering::Relaxed) {
                state.beat();
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
    let options = Options { flows4: 1024, flows6: 1024, replace };
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
    let grown = beating(&programs, &[A, B], (&a, &BOTH, 1));
    let (at_a, at_b) = (grown[0], grown[1]);
    assert_eq!((at_a.xdp_rx_packets, at_a.xdp_tx_packets), (20, 20));
    assert_eq!((at_b.xdp_rx_packets, at_b.xdp_tx_packets), (20, 20));
    assert_eq!(at_a.xdp_rx_bytes, at_b.xdp_tx_bytes);
    // The kernel answers for the router's own addresses all the while.
    a.pings(3, "10.0.1.1");

    // After the generation changes, all flows are void, and the XDP path takes nothing.
    programs.state().bump_generation();
    forwarding(true);
    let grown = beating(&programs, &[A, B], (&a, &BOTH[..1], 1));
    assert_eq!(grown[0].xdp_rx_packets, 0);
}

/// Returns port B as a device to probe.
fn probe_target(programs: &XdpPrograms) -> ProbeTarget {
    let port = programs.port(B).unwrap();
    ProbeTarget { port: B, ifindex: port.ifindex, mac: port.mac }
}

/// A device that accepts no frames any more, although the kernel reports that it does.
pub fn refusals() {
    let (a, b) = two_hosts();
    let (programs, _worker) = start(&[Mode::Native], false);
    let refusals = programs.refusals().unwrap();
    enter_both(&programs);
    beating(&programs, &[A, B], (&a, &BOTH, 1));
    assert_eq!((refusals.packets(A), refusals.packets(B)), (0, 0));
    assert_eq!((refusals.cause(A), refusals.cause(B)), (None, None));
    let generation = programs.state().generation();

    b.sh("ip link set hb down");
    let sent = counts(&programs, B).xdp_tx_packets;
    // One burst may be on its way when the first frame is refused.
    let _ = a.command("ping -n -q -c 20 -l 20 -i 0.01 -W 1 10.0.2.2").output().unwrap();
    let refused = counts(&programs, B).xdp_tx_packets - sent;
    assert!((1..=20).contains(&refused), "{refused}");
    assert_eq!((refusals.packets(A), refusals.packets(B)), (0, refused));
    assert_eq!((refusals.cause(A), refusals.cause(B)), (None, Some(Cause::Error(libc::ENXIO))));
    assert_eq!(programs.state().generation(), generation + 1);
    let _ = a.command("ping -n -q -c 5 -i 0.01 -W 1 10.0.2.2").output().unwrap();
    assert_eq!(refusals.packets(B), refused, "nothing is sent there any more");

    // The router probes with a frame of its own, which is no host's packet.
    refusals.forgive(B);
    assert_eq!(refusals.cause(B), Some(Cause::Unprobed), "nothing is sent before");
    assert_eq!(refusals.probe(&probe_target(&programs)), Some(Cause::Error(libc::ENXIO)));
    assert_eq!(refusals.packets(B), refused);

    b.sh("ip link set hb up");
    b.route("hb", "10.0.2.1", "02:00:00:00:00:0b");
    refusals.forgive(B);
    assert_eq!(refusals.probe(&probe_target(&programs)), None);
    assert!(refusals.takes(B));
    enter_both(&programs);
    beating(&programs, &[A, B], (&a, &BOTH[..1], 1));
    assert_eq!((refusals.packets(B), refusals.cause(B)), (refused, None));
}

/// Runs the same test on a kernel without BTF, with the tracepoint's record.
pub fn refusals_by_record() {
    hide_btf();
    sh("mount -t tracefs tracefs /sys/kernel/tracing");
    refusals();
}

/// Without BTF and the record, nothing reports refusals. A router works all the same.
pub fn refusals_unnoticed() {
    hide_btf();
    for tracing in ["/sys/kernel/tracing", "/sys/kernel/debug"] {
        if Path::new(tracing).exists() {
            sh(&format!("mount -t tmpfs none {tracing}"));
        }
    }
    let (a, _b) = two_hosts();
    let (programs, _worker) = start(&[Mode::Native], false);
    assert!(programs.refusals().is_none());
    enter_both(&programs);
    beating(&programs, &[A, B], (&a, &BOTH, 1));
}

/// Hides the kernel's BTF.
fn hide_btf() {
    sh("mount -t tmpfs none /sys/kernel/btf");
    assert!(!Path::new("/sys/kernel/btf/vmlinux").exists());
}

/// A device accepts small frames and refuses large ones. It counts as refusing only when nothing
/// else has come for a while.
pub fn partial_refusals() {
    let (a, b) = two_hosts();
    let (mut programs, _worker) = start(&[Mode::Native], false);
    let refusals = programs.refusals().unwrap();
    enter_both(&programs);
    // The device has proven that it accepts frames.
    beating(&programs, &[A, B], (&a, &BOTH, 1));
    assert!(refusals.takes(B));
    b.sh("ip link set hb mtu 600");
    let refused = |size: u16, count: u8| {
        let before = refusals.packets(B);
        let line = format!("ping -n -q -c {count} -s {size} -i 0.02 -W 1 10.0.2.2");
        let _ = a.command(&line).output().unwrap();
        refusals.packets(B) - before
    };
    // A late worker leaves packets to the kernel.
    until("a frame to be refused", || refused(1000, 1) == 1);
    for _ in 0..3 {
        assert!(refused(100, 1) == 0 && refused(1000, 1) <= 1);
        assert_eq!(refusals.cause(B), None);
    }
    until("it to refuse", || {
        refused(1000, 3);
        refusals.cause(B).is_some()
    });
    assert_eq!(refusals.cause(B), Some(Cause::Silent));
    assert_eq!(refused(1000, 3), 0, "nothing is sent there any more");

    // The probe is a small frame, which the device accepts.
    refusals.forgive(B);
    assert_eq!(refusals.probe(&probe_target(&programs)), None);
    assert!(refusals.takes(B));

    // Without a probe, the device has to accept the first bulk, which it refuses.
    let port = programs.port(B).unwrap().clone();
    programs.set_port(port).unwrap();
    enter_both(&programs);
    until("one frame to be enough", || {
        refused(1000, 1);
        refusals.cause(B) == Some(Cause::Silent)
    });
    assert!(!refusals.takes(B));
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
    let tagged = |link| XdpLink { tag: ten, link: LinkId(link), left: Left::default() };
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
    let grown = beating(&programs, &[A, B, PortId(2), PortId(3)], (&a, &BOTH, 2));
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
    let alive = || beating(&programs, &[A, B], (&a, &BOTH[..1], 1))[0];
    assert_eq!(alive().xdp_rx_packets, 10, "while the heart beats");
    drop(worker);
    std::thread::sleep(Duration::from_millis(30));
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
    let grown = beating(&programs, &[A, B], (&a, &BOTH, 1));
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

/// Returns the ID of the program on a device.
fn program_on(device: &str) -> u32 {
    let output = sh(&format!("ip -details link show {device}"));
    let id = output.split("prog/xdp id ").nth(1).unwrap().split_whitespace().next().unwrap();
    id.parse().unwrap()
}

pub fn takeover() {
    let (a, _b) = two_hosts();
    forwarding(true);
    let (mut first, _first) = start(&[Mode::Native], false);
    let before = program_on("ra");
    // A process may replace its own program, here with one without the XDP path.
    let again = first.attach(A, &[Mode::Native], false).unwrap();
    assert!(again.replaced && again.mode == Mode::Native);
    assert_ne!(program_on("ra"), before);

    let mut rival = load(false);
    let error = rival.attach(A, &Mode::ALL, true).unwrap_err();
    assert!(matches!(error, XdpError::Served { .. }), "{error}");
    assert!(error.remedy().contains("--replace"), "{}", error.remedy());
    drop(rival);
    assert!(carries_xdp("ra"), "a rival that was refused leaves no trace");

    let before = program_on("ra");
    let target = std::thread::spawn(move || {
        let output = a.sh(&ping(400, "-i 0.002 10.0.2.2"));
        (a, output)
    });
    let (second, _second) = start(&[Mode::Native], true);
    assert_ne!(program_on("ra"), before);
    drop(first);
    assert!(carries_xdp("ra") && carries_xdp("rb"), "they are the successor's");
    let (a, output) = target.join().unwrap();
    assert!(unanswered(&output, 400).is_empty(), "{output}");
    assert!(second.is_attached(A) && second.is_attached(B));
    enter_both(&second);
    assert_eq!(beating(&second, &[A, B], (&a, &BOTH[..1], 1))[0].xdp_rx_packets, 10);
    drop(second);
    assert!(!carries_xdp("ra") && !carries_xdp("rb"));
}

pub fn refusal() {
    let _hosts = two_hosts();
    let mut other = Ebpf::load(tollway_xdp::PORT).unwrap();
    let program: &mut Xdp = other.program_mut("dispatch").unwrap().try_into().unwrap();
    program.load().unwrap();
    let mut programs = load(true);
    for (theirs, ours) in [
        (XdpMode::Driver, &Mode::ALL[..]),
        (XdpMode::Skb, &Mode::ALL[..]),
        (XdpMode::Driver, &[Mode::Generic]),
        (XdpMode::Skb, &[Mode::Generic]),
    ] {
        let link = program.attach("ra", theirs).unwrap();
        let before = sh("ip -details link show ra");
        let error = programs.attach(A, ours, true).unwrap_err();
        assert_eq!(error.to_string(), "ra already carries another XDP program");
        assert!(error.remedy().contains("`ip link set dev ra xdp off`"), "{}", error.remedy());
        assert_eq!(sh("ip -details link show ra"), before, "it is left alone");
        assert!(!programs.is_attached(A));
        program.detach(link).unwrap();
    }
    programs.attach(A, &Mode::ALL, true).unwrap();
}

/// Attaches the programs in another process and kills it, so that none of its code runs any more.
fn live_and_die(way: &str) {
    let mut command = Command::new(std::env::current_exe().unwrap());
    drop(ready(command.args(["--serve", way])));
}

/// The other process: writes heartbeats until it is killed.
pub fn serve(way: &str) -> ExitCode {
    let mut programs = load(false);
    let _worker = Worker::start(programs.state());
    if way == "generic" {
        // It replaces another process's program, in another mode too.
        assert!(programs.attach(A, &Mode::ALL, true).unwrap().replaced);
        let attached = programs.attach(B, &[Mode::Generic], true).unwrap();
        assert!(!attached.replaced && attached.mode == Mode::Generic);
    } else {
        for port in [A, B] {
            programs.attach(port, &[Mode::Native], true).unwrap();
        }
    }
    programs.state().set_bypass(false);
    println!("ready");
    loop {
        std::thread::park();
    }
}

pub fn the_dead() {
    let (a, _b) = two_hosts();
    forwarding(true);
    let names = || std::fs::read_dir("/sys/fs/bpf/tollway").unwrap().count();
    // A process that leaves its programs on purpose.
    let (mut first, worker) = start(&[Mode::Native], false);
    drop(worker);
    first.leave();
    drop(first);
    assert!(carries_xdp("ra"));
    pings(&a, "10.0.2.2");
    live_and_die("native");
    pings(&a, "10.0.2.2");
    // A successor needs no permission to replace the programs of a dead process.
    live_and_die("generic");
    assert_eq!((names(), tollway_xdp::clean().unwrap()), (2, 2));
    assert!(!carries_xdp("ra") && !carries_xdp("rb"));
    assert_eq!((names(), tollway_xdp::clean().unwrap()), (0, 0));

    // A process whose device disappears, before or after the process itself.
    let (fourth, worker) = start(&[Mode::Native], false);
    sh("ip link delete rb");
    until("the device to lose its program", || !fourth.is_attached(B));
    assert!(fourth.is_attached(A));
    drop(worker);
    assert_eq!(tollway_xdp::clean().unwrap(), 0, "it is silent, but lives");
    drop(fourth);
    assert_eq!(names(), 0);
    sh("ip link delete ra");
    let _hosts = two_hosts();
    live_and_die("native");
    sh("ip link delete rb");
    assert_eq!(names(), 2);
    let last = XdpPrograms::load(&ports_of_a(), &Options::default()).unwrap();
    assert_eq!(names(), 1, "what no device has any more is swept away");
    drop(last);
    assert_eq!(tollway_xdp::clean().unwrap(), 1);
}

fn ports_of_a() -> Vec<XdpPort> {
    vec![port(A, "ra", MAC_A, &[untagged(0)])]
}

pub fn punts() {
    // Both modes use the same kernel, which would send only six time-exceeded errors at once.
    std::fs::write("/proc/sys/net/ipv4/icmp_ratelimit", "0").unwrap();
    for mode in Mode::ALL {
        let hosts = two_hosts();
        forwarding(true);
        let (mut programs, _worker) = start(&[mode], false);
        let mut tap = File::from(programs.punt_tap(A, 1500).unwrap());
        let echo = |dst: &str, ttl: u8, number: u16| {
            let mut packet = Packet::new("10.0.1.2", dst);
            (packet.protocol, packet.ttl, packet.ident) = (ICMP, ttl, number);
            let mut frame = packet.frame();
            // The type is echo request. The bytes of ports and length have no meaning in ICMP.
            frame[34..36].copy_from_slice(&[8, 0]);
            frame[36..38].fill(0);
            let sum = !tollway_dataplane::wire::checksum::sum(&frame[34..]);
            frame[36..38].copy_from_slice(&sum.to_be_bytes());
            sign(&mut frame[14..34]);
            frame
        };
        let answers = || icmp(&hosts.0, "InEchoReps");
        for number in 0..20 {
            tap.write_all(&echo("10.0.1.1", 64, number)).unwrap();
        }
        until("the kernel to answer", || answers() == 20);
        // In transit: the kernel routes the request, and the host behind it answers.
        for number in 0..20 {
            tap.write_all(&echo("10.0.2.2", 64, number)).unwrap();
        }
        until("the other host to answer", || answers() == 40);
        for number in 0..5 {
            tap.write_all(&echo("10.0.2.2", 1, number)).unwrap();
        }
        until("the kernel to say that time is exceeded", || icmp(&hosts.0, "InTimeExcds") == 5);
        // Generic XDP sees these frames again and recognises them. Native XDP never sees them.
        let again = if mode == Mode::Generic { 45 } else { 0 };
        assert_eq!(counts(&programs, A).passed(PassReason::Punted), again, "{mode:?}");
        assert_eq!(counts(&programs, A).to_user, 0);
        let second = programs.punt_tap(A, 1500).unwrap();
        drop((tap, second));
        assert!(!sh("ip link").contains("toll"), "a TAP device goes with its descriptor");
        for device in ["ra", "rb"] {
            sh(&format!("ip link delete {device}"));
        }
    }
}

/// In generic mode, XDP recognises the router's own frames by what no frame from outside can
/// contain. A frame with the same first bytes does not pass as one, nor an identical frame, nor one
/// with a guessed mark.
pub fn lookalikes() {
    let hosts = two_hosts();
    forwarding(true);
    let (mut programs, _worker) = start(&[Mode::Generic], false);
    let mut tap = File::from(programs.punt_tap(A, 1500).unwrap());
    let mut packet = Packet::new("10.0.1.2", "10.0.2.2");
    packet.payload = 86;
    let frame = packet.frame();
    let mut other = frame.clone();
    *other.last_mut().unwrap() ^= 1;
    let guessed = |mark: u8| {
        let mark = [[2; 12].as_slice(), &[0x88, 0xb5], &[mark; 2]].concat();
        [mark, frame.clone()].concat()
    };
    let mut wire = Wire::at(&hosts.0, "ha");
    let passed = |reason| counts(&programs, A).passed(reason);
    let before = passed(PassReason::Punted);
    // Even with the bypass set, the kernel gets the router's own frames unchanged.
    let arrived = || hosts.1.received("hb");
    let forwarded = arrived();
    programs.state().set_bypass(true);
    tap.write_all(&frame).unwrap();
    until("the frame to be forwarded by the kernel", || arrived() > forwarded);
    programs.state().set_bypass(false);
    // A late worker leaves some frames to the kernel.
    until("what comes from outside to be seen", || {
        for lookalike in [&other, &frame, &guessed(0), &guessed(0xff)] {
            wire.send(lookalike).unwrap();
        }
        passed(PassReason::NoSocket) + counts(&programs, A).to_user >= 2
            && passed(PassReason::NotOursMac) >= 2
    });
    assert_eq!(passed(PassReason::Punted) - before, 1, "the one that was handed back");
}

/// Returns an ICMP counter of a host's kernel.
fn icmp(host: &Host, name: &str) -> u64 {
    let output = host.sh("cat /proc/net/snmp");
    let mut lines = output.lines().filter(|line| line.starts_with("Icmp:"));
    let (names, values) = (lines.next().unwrap(), lines.next().unwrap());
    let at = names.split_whitespace().position(|found| found == name).unwrap();
    values.split_whitespace().nth(at).unwrap().parse().unwrap()
}
