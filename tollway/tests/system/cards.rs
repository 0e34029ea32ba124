//! Network cards whose sockets have no copies, in a virtual machine: all of what two hosts send arrives.

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};

use crate::namespaces::{Host, is_root, sh, until};
use crate::router::{Net, config};
use crate::transfer::Transfer;
use crate::ways::{self, Way};

/// What starts the machine, and what fetches what it is made of.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/qemu/run.sh");
const FETCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/qemu/fetch.sh");
/// Zero-copy wants Linux 6.14 of both drivers.
const SUITE: &str = "trixie-backports";
/// Cards by model, with the cables that A and B have.
const KINDS: [(&str, u8); 1] = [("igb", 1)];
const SERVER: &str = "10.0.2.2:7000";

/// Why there can be no machine.
pub fn missing() -> Option<&'static str> {
    let has = |what: &[&str]| {
        Command::new(FETCH).args(what).output().is_ok_and(|out| out.status.success())
    };
    let is_there = has(&["emulator"]) && has(&["kernel", SUITE]);
    (!is_there || !is_root()).then_some("no emulator with igb, or no kernel (scripts/setup.sh)")
}

/// The cards of all kinds in a machine.
pub fn judged() {
    let models = KINDS.map(|(model, _)| [model; 4].join(" ")).join(" ");
    let mut command = Command::new(RUN);
    command.arg(std::env::current_exe().unwrap()).args(["--ask", "cards"]);
    command.env("TOLLWAY_QEMU_SUITE", SUITE).env("TOLLWAY_QEMU_CARDS", models);
    let status = command.env("CI", "1").status().unwrap();
    assert!(status.success(), "the cards in the virtual machine: {status}");
}

/// In the machine.
pub fn inside() -> ExitCode {
    let mut faults = Vec::new();
    for (model, cable) in KINDS {
        let net = plug(cable);
        ways::prepare(&net);
        until("the cables", || ways::told(&net.a, "ping -n -c 1 -W 1 10.0.2.2").contains(" 0%"));
        forwards(&net, &mut |fault| faults.push(format!("{model}: {fault}")));
        unplug(&net, cable);
    }
    faults.iter().for_each(|fault| println!("FAULT {fault}"));
    ExitCode::from(u8::from(!faults.is_empty()))
}

/// The device with an address.
fn device(mac: &str) -> String {
    let devices = fs::read_dir("/sys/class/net").unwrap().map(|device| device.unwrap().path());
    let has = |device: &Path| {
        fs::read_to_string(device.join("address")).is_ok_and(|address| address.trim() == mac)
    };
    let found = devices.into_iter().find(|device| has(device));
    found
        .unwrap_or_else(|| panic!("no card {mac}"))
        .file_name()
        .unwrap()
        .to_string_lossy()
        .into_owned()
}

/// The hosts at the far ends of two cables.
fn plug(cable: u8) -> Net {
    for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        sh(&format!("sysctl -qw net.{family}=1"));
    }
    let net = Net::of(Host::new(), Host::new());
    for (host, name, cable, number) in [(&net.a, "a", cable, 1), (&net.b, "b", cable + 1, 2)] {
        let [near, far] = [1, 2].map(|end| device(&format!("02:00:00:00:0{cable}:0{end}")));
        sh(&format!("ip link set {near} name r{name} address 02:00:00:00:00:0{name}"));
        sh(&format!("ip link set {far} name h{name} address 02:00:00:00:0{number}:02"));
        sh(&format!("ip link set h{name} netns {}", host.0.0.id()));
        host.sh("ip link set lo up");
        for (end, last) in [("r", 1), ("h", 2)] {
            let own = |line: String| if end == "r" { sh(&line) } else { host.sh(&line) };
            own(format!("ip address add 10.0.{number}.{last}/24 dev {end}{name}"));
            own(format!("ip address add fd00:{number}::{last}/64 dev {end}{name} nodad"));
            own(format!("ip link set {end}{name} up"));
        }
        host.sh(&format!("ip route add default via 10.0.{number}.1"));
        host.sh(&format!("ip route add default via fd00:{number}::1"));
    }
    net
}

/// Takes the cards away, under other names and addresses.
fn unplug(net: &Net, cable: u8) {
    for (host, name, cable) in [(&net.a, "a", cable), (&net.b, "b", cable + 1)] {
        for (end, number) in [("r", 1), ("h", 2)] {
            let line = format!(
                "ip link set {end}{name} down name done{cable}{number} address 02:00:00:01:0{cable}:0{number}"
            );
            if end == "r" {
                sh(&line)
            } else {
                host.sh(&line)
            };
        }
    }
}

/// Pings of all sizes, and a stream; what did not arrive.
fn forwards(net: &Net, fault: &mut impl FnMut(String)) {
    let mut router = Way::Path.start(&config("zero-copy", 1500, true));
    let told = router.read("stderr");
    assert_eq!(told.matches("AF_XDP zero-copy").count(), 2, "{told}");
    for size in [0, 1, 56, 500, 1000, 1472, 4000] {
        for target in ["10.0.2.2", "fd00:2::2"] {
            let line = format!("ping -n -q -c 3 -i 0.02 -W 3 -s {size} {target}");
            let told = ways::told(&net.a, &line);
            if !told.contains(" 0% packet loss") {
                fault(format!("{size} bytes to {target}: {told}"));
            }
        }
    }
    Transfer::start(net, SERVER, 1).finish();
    print!("{}", router.read("stderr"));
    println!("{}", router.stop());
}
