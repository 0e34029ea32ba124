//! Network cards in a virtual machine, whose sockets have no copies where their drivers have that: all of what two
//! hosts send arrives, whatever happens to the router and its devices.
//!
//! `TOLLWAY_CARDS`: the models that are tried (default: `igb virtio-net-pci`).

use std::fs;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Instant;

use crate::namespaces::{Host, PATIENCE, is_root, sh, until};
use crate::router::{Net, config};
use crate::running::Router;
use crate::transfer::Transfer;
use crate::ways::{self, Way};

/// What starts the machine, and what fetches what it is made of.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/qemu/run.sh");
const FETCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/qemu/fetch.sh");
/// Zero-copy wants Linux 6.14 of both drivers.
const SUITE: &str = "trixie-backports";
/// Models, and how Tollway gets their frames.
const KINDS: [(&str, &str, &str); 3] = [
    ("igb", "zero-copy", "AF_XDP zero-copy"),
    ("virtio-net-pci", "zero-copy", "AF_XDP zero-copy"),
    ("e1000e", "auto", "AF_XDP"),
];
/// The models that every change is tried with.
const USUAL: &str = "igb virtio-net-pci";
const SERVER: &str = "10.0.2.2:7000";

/// Why there can be no machine.
pub fn missing() -> Option<&'static str> {
    let has = |what: &[&str]| {
        Command::new(FETCH).args(what).output().is_ok_and(|out| out.status.success())
    };
    let is_there = has(&["emulator"]) && has(&["kernel", SUITE]);
    (!is_there || !is_root()).then_some("no emulator with igb, or no kernel (scripts/setup.sh)")
}

/// The models that are asked for.
fn wanted() -> Vec<(&'static str, &'static str, &'static str)> {
    let wanted = std::env::var("TOLLWAY_CARDS").unwrap_or_default();
    let wanted = if wanted.is_empty() { USUAL.to_owned() } else { wanted };
    let is_wanted = |model: &str| wanted.split(' ').any(|word| word == model);
    KINDS.into_iter().filter(|(model, ..)| is_wanted(model)).collect()
}

/// Two pairs of cards of each model, in a machine for each.
pub fn judged() {
    let faults: Vec<_> = wanted().into_iter().filter(|(model, ..)| !is_whole(model)).collect();
    assert!(faults.is_empty(), "the cards in the virtual machine: {faults:?}");
}

fn is_whole(model: &str) -> bool {
    let mut command = Command::new(RUN);
    command.arg(std::env::current_exe().unwrap()).args(["--ask", "cards"]);
    command.env("TOLLWAY_QEMU_SUITE", SUITE).env("TOLLWAY_CARDS", model);
    command.env("TOLLWAY_QEMU_CARDS", [model; 4].join(" ")).env("CI", "1");
    command.status().unwrap().success()
}

/// In the machine.
pub fn inside() -> ExitCode {
    let (mut faults, net) = (0, plug());
    ways::prepare(&net);
    until("the cables", || is_answered(&net, "10.0.2.2"));
    for (model, mode, road) in wanted() {
        let mut fault = |fault: String| {
            println!("FAULT {model}: {fault}");
            faults += 1;
        };
        for way in ways::TOLLWAY {
            let router = way.start(&config(mode, 1500, true));
            let told = router.read("stderr");
            if told.matches(road).count() != 2 {
                fault(format!("not by {road}: {told}"));
            }
            forwards(&net, way, &mut fault);
            disturbed(&net, router, &mut fault);
        }
    }
    ExitCode::from(u8::from(faults > 0))
}

fn is_answered(net: &Net, target: &str) -> bool {
    ways::told(&net.a, &format!("ping -n -q -c 1 -W 2 {target}")).contains(" 0% packet loss")
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
fn plug() -> Net {
    for family in ["ipv4.ip_forward", "ipv6.conf.all.forwarding"] {
        sh(&format!("sysctl -qw net.{family}=1"));
    }
    let net = Net::of(Host::new(), Host::new());
    for (host, name, cable, number) in [(&net.a, "a", 1, 1), (&net.b, "b", 2, 2)] {
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

/// Pings of all sizes, and a stream; what did not arrive.
fn forwards(net: &Net, way: Way, fault: &mut impl FnMut(String)) {
    for size in [0, 1, 56, 500, 1000, 1472, 4000] {
        for target in ["10.0.2.2", "fd00:2::2"] {
            let line = format!("ping -n -q -c 3 -i 0.02 -W 3 -s {size} {target}");
            let told = ways::told(&net.a, &line);
            if !told.contains(" 0% packet loss") {
                fault(format!("{way:?}, {size} bytes to {target}: {told}"));
            }
        }
    }
    Transfer::start(net, SERVER, 1).finish();
}

/// What happens to routers and their devices: a ping is answered soon after each.
fn disturbed(net: &Net, mut router: Router, fault: &mut impl FnMut(String)) {
    let id = router.process.0.id();
    let happens: [(&str, Vec<String>); 5] = [
        ("a stop", vec![format!("kill -STOP {id}")]),
        ("that it goes on", vec![format!("kill -CONT {id}")]),
        ("a link that was down", ["down", "up"].map(|to| format!("ip link set rb {to}")).into()),
        ("another MTU", [1400, 1500].map(|mtu| format!("ip link set rb mtu {mtu}")).into()),
        ("its end", vec![format!("kill -KILL {id}")]),
    ];
    for (what, lines) in happens {
        lines.iter().for_each(|line| drop(sh(line)));
        // The kernel forgets what it had of a link that was down.
        if what == "a link that was down" {
            sh("ip -6 address replace fd00:2::1/64 dev rb nodad");
        }
        for target in ["10.0.2.2", "fd00:2::2"] {
            let start = Instant::now();
            while !is_answered(net, target) {
                if start.elapsed() > PATIENCE {
                    fault(format!(
                        "{target} is not answered after {what}: {}",
                        router.read("stderr")
                    ));
                    return;
                }
            }
            println!("{target} is answered {:?} after {what}", start.elapsed());
        }
    }
    let _ = router.process.0.wait();
}
