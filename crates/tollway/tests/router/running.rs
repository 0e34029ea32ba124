//! Two hosts, the router's kernel between them, and a Tollway that follows this kernel's
//! configuration.

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tempfile::TempDir;
use tollway_commands::control::{Client, Command as Do, Request, ShowRequest};
use tollway_controller::handle::{Status, Synced};

use super::namespaces::{Host, Process, queues, sh, until, workers};

/// After so long without Tollway, its programs leave everything to the kernel: more than `UNCONFIRMED_NS` of
/// `xdp/bpf/maps.h`.
pub const SILENCE: Duration = Duration::from_millis(150);

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
        let net = Self { a: Host::new(), b: Host::new() };
        plug(&net.a, "a", 1);
        plug(&net.b, "b", 2);
        net
    }
}

/// Connects a host to the router with a cable, a veth pair.
pub fn plug(host: &Host, cable: &str, net: u8) {
    let pid = host.0.0.id();
    let queues = queues(1);
    sh(&format!("ip link add r{cable} {queues} type veth peer name h{cable} {queues} netns {pid}"));
    configure(host, cable, net);
}

/// Configures the addresses at both ends of a cable.
pub fn configure(host: &Host, cable: &str, net: u8) {
    host.sh("ip link set lo up");
    // The host finishes its own checksums. With GRO it takes frames that the XDP path redirects.
    host.sh(&format!("ethtool -K h{cable} tx off gro on"));
    sh(&format!("ethtool -K r{cable} rx off"));
    tags_in_frames(host, cable);
    for (end, last) in [("r", 1), ("h", 2)] {
        let own = |line: String| if end == "r" { sh(&line) } else { host.sh(&line) };
        own(format!("ip address add 10.0.{net}.{last}/24 dev {end}{cable}"));
        own(format!("ip address add fd00:{net}::{last}/64 dev {end}{cable} nodad"));
        own(format!("ip link set {end}{cable} up"));
    }
    host.sh(&format!("ip route replace default via 10.0.{net}.1"));
    host.sh(&format!("ip route replace default via fd00:{net}::1"));
}

/// Has a host put VLAN tags into its frames, and declares that to the router with `rxvlan off`.
pub fn tags_in_frames(host: &Host, cable: &str) {
    host.sh(&format!("ethtool -K h{cable} txvlan off tx-vlan-stag-hw-insert off"));
    sh(&format!("ethtool -K r{cable} rxvlan off"));
}

/// Returns how many of five pings are answered soon. Hosts repeat a neighbour request after a
/// second.
pub fn answered(host: &Host, address: &str) -> usize {
    // Sends all at once: for the last reply, ping waits no longer than one interval.
    let line = format!("ping -n -c 5 -l 5 -i 1 -W 1.5 {address}");
    let output = host.command(&line).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().filter(|line| line.contains("bytes from")).count()
}

/// A Tollway process that follows the kernel's configuration.
pub struct KernelRouter {
    pub process: Process,
    pub dir: TempDir,
}

impl KernelRouter {
    /// Starts Tollway with these devices as ports, and the engine `xdp` if these words select none: the tests' cables
    /// stand in for network cards.
    pub fn start(devices: &str) -> Self {
        Self::start_by(Command::new(env!("CARGO_BIN_EXE_tollway")), devices)
    }

    /// Starts Tollway by a command that takes its arguments.
    pub fn start_by(command: Command, devices: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), command, devices)
    }

    /// Starts a successor, which takes the ports over. The old router ends.
    pub fn replace(self, devices: &str) -> Self {
        let Self { process: mut before, dir } = self;
        // The old process still writes to this file.
        std::fs::rename(dir.path().join("stderr"), dir.path().join("stderr.before")).unwrap();
        let command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        let router = Self::start_in(dir, command, &format!("--replace {devices}"));
        assert_eq!(before.0.wait().unwrap().code(), Some(0), "{}", router.read("stderr.before"));
        router
    }

    /// Replaces the router three times, and asserts that no ping to an address is lost meanwhile. Returns the last
    /// successor; `check` sees each.
    pub fn replaced_beside_pings(
        mut self,
        (host, address): (&Host, &str),
        devices: &str,
        check: impl Fn(&Self),
    ) -> Self {
        let mut ping = host.command(&format!("ping -n -i 0.002 -c 2000 {address}"));
        let ping = ping.stdout(Stdio::piped()).spawn().unwrap();
        for _ in 0..3 {
            self = self.replace(devices);
            check(&self);
        }
        let output = ping.wait_with_output().unwrap();
        let output = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.contains("2000 packets transmitted, 2000 received"), "{output}");
        self
    }

    fn start_in(dir: TempDir, mut command: Command, devices: &str) -> Self {
        let file = |name: &str| File::create(dir.path().join(name)).unwrap();
        command.arg("run").args(devices.split_whitespace()).args(["--socket", "control.sock"]);
        if !devices.contains("--engine") && !devices.contains("--xdp") {
            command.args(["--engine", "xdp"]);
        }
        command.args(["--workers", &workers().to_string()]);
        command.current_dir(dir.path()).stdin(Stdio::null());
        let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        let mut router = Self { process: Process(child), dir };
        until("the router to forward", || {
            let log = router.read("stderr");
            assert!(router.lives(), "{log}");
            log.contains("forwarding")
        });
        router.sync();
        router
    }

    /// Returns the path of a file in the process's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the content of a file in the process's directory.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Says whether the process runs.
    pub fn lives(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_none()
    }

    /// Connects to the control socket.
    pub fn client(&self) -> Client {
        let mut client = Client::connect(Some(&self.path("control.sock"))).unwrap();
        client.wait_for(Duration::from_secs(90)).unwrap();
        client
    }

    /// Waits until all changes are active that the kernel has made so far.
    pub fn sync(&self) -> Synced {
        self.client().request(&Request::Do(Do::Sync)).unwrap()
    }

    /// Returns the controller's status, with all of the kernel's changes active.
    pub fn status(&self) -> Status {
        self.sync();
        self.client().show(&ShowRequest::Controller).unwrap()
    }

    /// Returns the same after an audit, when its findings are certain.
    pub fn audited(&self) -> Status {
        let before = self.status().audits;
        sh(&format!("kill -HUP {}", self.process.0.id()));
        until("an audit", || self.status().audits > before);
        std::thread::sleep(Duration::from_secs(2));
        self.status()
    }

    /// Returns an answer, unchanged.
    pub fn show(&self, request: &ShowRequest) -> Value {
        self.client().show(request).unwrap()
    }

    /// Returns the packet counts so far.
    pub fn counts(&self) -> Counts {
        let answer = self.show(&ShowRequest::Ports);
        let count = |name: &str| answer["totals"][name].as_u64().unwrap();
        assert_eq!(answer["totals"]["defect"], Value::Null);
        Counts {
            received: count("received"),
            sent: count("sent"),
            dropped: count("dropped"),
            punted: count("punted"),
        }
    }

    /// Returns the number of packets that the XDP path has forwarded so far.
    pub fn by_xdp_path(&self) -> u64 {
        self.show(&ShowRequest::Xdp)["counts"]["packets"].as_u64().unwrap_or(0)
    }

    /// Sends five pings from a host. Returns how many are answered, and how Tollway's counts
    /// changed.
    pub fn ping(&self, host: &Host, address: &str) -> (usize, Counts) {
        self.sync();
        let before = self.counts();
        let answered = answered(host, address);
        // Tollway counts packets of the XDP path with a delay.
        std::thread::sleep(Duration::from_millis(20));
        (answered, self.counts().since(before))
    }

    /// Asserts that Tollway forwards pings.
    #[track_caller]
    pub fn forwards(&self, host: &Host, address: &str) {
        /// A port that has come up is looked at every second.
        const PATIENCE: Duration = Duration::from_secs(3);
        let (mut tried, start) = (Vec::new(), Instant::now());
        // The first packet may make the kernel look for a neighbour. On a busy machine the worker
        // may be late, and the kernel then forwards.
        while tried.len() < 10 || start.elapsed() < PATIENCE {
            let (answered, counts) = self.ping(host, address);
            tried.push((answered, counts));
            if answered == 5 && counts.sent >= 10 && counts.punted == 0 {
                return;
            }
        }
        let counts = self.show(&ShowRequest::Offload)["counts"].clone();
        panic!("{address} is not forwarded: {tried:?}\n{}\n{counts}", self.read("stderr"));
    }

    /// Asserts that the kernel forwards pings.
    #[track_caller]
    pub fn passes_to_kernel(&self, host: &Host, address: &str) {
        let (answered, counts) = self.ping(host, address);
        assert_eq!(answered, 5, "{address}: {counts:?}");
        assert!(counts.sent <= 5, "{address}: those there are the kernel's, {counts:?}");
    }

    /// Asserts that no ping is answered, and that Tollway sends none of them.
    #[track_caller]
    pub fn stops(&self, host: &Host, address: &str) {
        let (answered, counts) = self.ping(host, address);
        assert_eq!((answered, counts.sent), (0, 0), "{address}: {counts:?}");
    }

    /// Asserts that no ping is answered, whatever Tollway sends.
    #[track_caller]
    pub fn stops_there(&self, host: &Host, address: &str) {
        let (answered, counts) = self.ping(host, address);
        assert_eq!(answered, 0, "{address}: {counts:?}");
    }

    /// Stops the process as an init system would. Returns what it printed.
    pub fn stop(&mut self) -> String {
        sh(&format!("kill -TERM {}", self.process.0.id()));
        let mut status = None;
        until("the router to stop", || {
            status = self.process.0.try_wait().unwrap();
            status.is_some()
        });
        assert_eq!(status.unwrap().code(), Some(0), "{}", self.read("stderr"));
        self.read("stdout")
    }
}

/// Packet counts of the router.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts {
    pub received: u64,
    pub sent: u64,
    pub dropped: u64,
    pub punted: u64,
}

impl Counts {
    fn since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            sent: self.sent - before.sent,
            dropped: self.dropped - before.dropped,
            punted: self.punted - before.punted,
        }
    }
}

/// The number of packets that the kernel has forwarded, of both families.
pub fn by_kernel() -> u64 {
    let snmp = std::fs::read_to_string("/proc/thread-self/net/snmp").unwrap();
    let mut ip = snmp.lines().filter(|line| line.starts_with("Ip:"));
    let mut words = ip.next().unwrap().split(' ').zip(ip.next().unwrap().split(' '));
    let v4 = words.find(|(name, _)| *name == "ForwDatagrams").unwrap().1;
    let snmp6 = std::fs::read_to_string("/proc/thread-self/net/snmp6").unwrap();
    let v6 = snmp6.lines().find_map(|line| line.strip_prefix("Ip6OutForwDatagrams")).unwrap();
    v4.parse::<u64>().unwrap() + v6.trim().parse::<u64>().unwrap()
}
