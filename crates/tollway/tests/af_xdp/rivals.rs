//! Tests two routers that want the same ports.

use std::fs::File;
use std::io::Read;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tollway_dataplane::id::PortId;
use tollway_net::Mac;
use tollway_xdp::{Mode, Options, XdpPort, XdpPrograms};

use super::assert_pings;
use super::namespaces::{Process, ifindex, sh, until};
use super::router::{Counts, Net, config, refused};
use super::running::{Router, command};

fn signal(router: &Router, name: &str) {
    sh(&format!("kill -{name} {}", router.process.0.id()));
}

/// Returns the line of `ip link` about the XDP program on a device.
fn program_on(device: &str) -> String {
    let output = sh(&format!("ip -details link show {device}"));
    output.lines().find(|line| line.contains("prog/xdp")).unwrap_or_default().to_owned()
}

pub fn stopped() {
    let net = Net::new(1500, 2);
    let mut first = Router::start(&config("copy", 1500, true));
    let before = ["ra", "rb"].map(program_on);
    signal(&first, "STOP");
    // A router waits for another that has been silent for a short time only.
    for pause in [0, 1200] {
        std::thread::sleep(Duration::from_millis(pause));
        let error = refused("tollway", &config("auto", 1500, true));
        assert!(
            error.contains("ra is served by another Tollway, which is stopped or hangs"),
            "{error}"
        );
        assert!(error.contains("`kill -CONT`"), "{error}");
        assert_eq!(["ra", "rb"].map(program_on), before, "nothing was taken");
    }
    let detached = Command::new(env!("CARGO_BIN_EXE_tollway")).arg("detach").output().unwrap();
    assert!(String::from_utf8_lossy(&detached.stdout).contains("no device"), "{detached:?}");
    signal(&first, "CONT");
    assert_pings(&net.a, 20, "10.0.2.2");
    let counts = Counts::of(&first.stop());
    assert!(counts.sent >= 5, "the kernel forwards it all: {counts:?}");
}

pub fn taken() {
    let net = Net::new(1500, 1);
    let mut router = Router::start(&config("copy", 1500, true));
    let times = |router: &Router, words: &str| router.read("stderr").matches(words).count();

    let mut rival = rival();
    let (ends, state) = (AtomicBool::new(false), rival.state());
    state.set_bypass(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !ends.load(Ordering::Relaxed) {
                state.beat(0);
                std::thread::sleep(Duration::from_millis(2));
            }
        });
        rival.attach(PortId(0), &[Mode::Native], false).unwrap();
        until("the rival to be noticed", || {
            times(&router, "ra passes no frames: its XDP program was detached or replaced") == 1
                && times(&router, "ra is served by another Tollway, which is alive") == 1
        });
        assert!(rival.is_attached(PortId(0)));
        ends.store(true, Ordering::Relaxed);
    });
    drop(rival);
    until("the return", || times(&router, "ra is back") == 1);
    assert_pings(&net.a, 20, "10.0.2.2");
    let counts = Counts::of(&router.stop());
    assert!(counts.sent >= 5, "the kernel forwards it all: {counts:?}");
}

/// Routers in this PID namespace and in ones of their own take over from one another while pings
/// run. Two consecutive routers have the same PID, 1.
pub fn replaced() {
    const APART: &str = "unshare -pf --kill-child tollway";
    let net = Net::new(1500, 1);
    // All routers share one BPF file system, as on a machine with containers.
    sh("mount -t bpf none /sys/fs/bpf");
    let (dir, config) = (tempfile::tempdir().unwrap(), config("copy", 1500, true));
    let mut ping = net.a.command("ping -n -q -c 100000 -i 0.005 -W 2 10.0.2.2");
    let mut ping = Process(ping.stdout(Stdio::piped()).spawn().unwrap());
    let mut predecessor: Option<Process> = None;
    for (index, program) in [APART, "tollway", APART, APART, "tollway"].into_iter().enumerate() {
        let log = dir.path().join(format!("stderr{index}"));
        let mut command = command(program, &dir, &config);
        command.arg("--replace").stdout(Stdio::null()).stderr(File::create(&log).unwrap());
        let mut router = Process(command.spawn().unwrap());
        let logged = || std::fs::read_to_string(&log).unwrap();
        until("the successor to forward", || {
            assert!(router.0.try_wait().unwrap().is_none(), "{}", logged());
            logged().contains("forwarding")
        });
        if let Some(mut before) = predecessor.replace(router) {
            assert!(logged().contains("control.sock has handed its ports over"), "{}", logged());
            assert_eq!(before.0.wait().unwrap().code(), Some(0));
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    sh(&format!("kill -INT {}", ping.0.id()));
    let mut output = String::new();
    ping.0.stdout.as_mut().unwrap().read_to_string(&mut output).unwrap();
    let count = |end: &str| -> u32 {
        let words =
            output.split(", ").flat_map(str::lines).find_map(|words| words.strip_suffix(end));
        words.and_then(|number| number.parse().ok()).unwrap_or_else(|| panic!("{output}"))
    };
    let (sent, received) = (count(" packets transmitted"), count(" received"));
    // The last reply may still be on its way.
    assert!(sent >= 100 && received + 1 >= sent, "{output}");
}

/// Returns an XDP program for `ra` that replaces any other.
fn rival() -> XdpPrograms {
    let port = XdpPort {
        port: PortId(0),
        device: "ra".to_owned(),
        ifindex: ifindex("ra"),
        mac: Mac([2, 0, 0, 0, 0, 0x0a]),
        queues: 1,
        links: Vec::new(),
        is_bridge_port: false,
    };
    XdpPrograms::load(&[port], &Options { replace: true, ..Options::default() }).unwrap()
}
