//! Devices that already carry an XDP program: a predecessor's, a dead process's, or none of ours.

use std::process::{Command, ExitCode};

use aya::Ebpf;
use aya::programs::{Xdp, XdpMode};
use tollway_xdp::{self, Mode, Options, XdpError, XdpPort, XdpPrograms};

use super::super::echo::{BOTH, pings, pings_with_heartbeats};
use super::super::namespaces::{ping, ready, sh, unanswered, until};
use super::{
    A, B, MAC_A, Worker, carries_xdp, enter_both, forwarding, load, port, start, two_hosts,
    untagged,
};

/// Returns the ID of the program on a device.
pub fn program_on(device: &str) -> u32 {
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
    assert_eq!(pings_with_heartbeats(&second, &[A, B], (&a, &BOTH[..1], 1))[0].xdp_rx_packets, 10);
    drop(second);
    assert!(!carries_xdp("ra") && !carries_xdp("rb"));
}

/// A process whose first worker hangs still serves the queues of the second.
pub fn one_of_two_workers() {
    let _hosts = two_hosts();
    let (first, worker) = start(&[Mode::Native], false);
    first.state().set_workers(2);
    drop(worker);
    let mut rival = load(false);
    let second = Worker::of(1, first.state());
    let error = rival.attach(A, &Mode::ALL, true).unwrap_err();
    assert!(matches!(error, XdpError::Served { .. }), "{error}");
    drop(second);
    let error = rival.attach(A, &Mode::ALL, true).unwrap_err();
    assert!(matches!(error, XdpError::Silent { .. }), "{error}");
}

pub fn refusal() {
    let _hosts = two_hosts();
    let mut other = Ebpf::load(&tollway_xdp::port_program()).unwrap();
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
    first.keep_attached();
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
