//! `tollway run` as a process between hosts in namespaces.

// Not every test program uses all of this module.
#![allow(dead_code)]

use std::fs::File;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use tempfile::TempDir;

use crate::namespaces::{Host, Process, sh, until, workers};

const CONFIG_FILE: &str = "router.toml";

/// Returns the command for `tollway run` with a configuration, in a directory. `program` may start
/// Tollway with another program, such as `prlimit`.
pub fn command(program: &str, dir: &TempDir, config: &str) -> Command {
    command_of(workers(), program, dir, config)
}

/// Returns the same command for a router with so many workers.
fn command_of(workers: u32, program: &str, dir: &TempDir, config: &str) -> Command {
    std::fs::write(dir.path().join(CONFIG_FILE), config).unwrap();
    let program = program.replace("tollway", env!("CARGO_BIN_EXE_tollway"));
    let mut words = program.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    command.args(words).args(["run", "--config", CONFIG_FILE, "--socket", "control.sock"]);
    command.args(["--workers", &workers.to_string()]);
    command.current_dir(dir.path()).stdin(Stdio::null());
    command
}

/// A running `tollway run`.
pub struct Router {
    pub process: Process,
    pub dir: TempDir,
}

impl Router {
    /// Starts a router with a configuration, in a directory of its own.
    pub fn start(config: &str) -> Self {
        Self::start_in(tempfile::tempdir().unwrap(), config)
    }

    /// Starts a router with so many workers, in a directory of its own.
    pub fn start_of(workers: u32, config: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let command = command_of(workers, "tollway", &dir, config);
        Self::spawn(dir, command)
    }

    /// Starts a router in a directory.
    pub fn start_in(dir: TempDir, config: &str) -> Self {
        Self::start_with(dir, config, &[])
    }

    /// Starts a successor with the same configuration, which takes the ports over. The old router
    /// ends.
    pub fn replace(self) -> Self {
        let config = self.read(CONFIG_FILE);
        let Self { process: mut before, dir } = self;
        // The old process still writes to this file.
        std::fs::rename(dir.path().join("stderr"), dir.path().join("stderr.before")).unwrap();
        let router = Self::start_with(dir, &config, &["--replace"]);
        assert_eq!(before.0.wait().unwrap().code(), Some(0), "{}", router.read("stderr.before"));
        router
    }

    fn start_with(dir: TempDir, config: &str, options: &[&str]) -> Self {
        let mut command = command("tollway", &dir, config);
        command.args(options);
        Self::spawn(dir, command)
    }

    fn spawn(dir: TempDir, mut command: Command) -> Self {
        let file = |name: &str| File::create(dir.path().join(name)).unwrap();
        let child = command.stdout(file("stdout")).stderr(file("stderr")).spawn().unwrap();
        let mut router = Self { process: Process(child), dir };
        until("the router to start", || {
            let log = router.read("stderr");
            assert!(router.lives(), "{log}");
            log.contains("forwarding")
        });
        router
    }

    /// Returns the path of a file in the router's directory.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Returns the content of a file in the router's directory.
    pub fn read(&self, name: &str) -> String {
        std::fs::read_to_string(self.path(name)).unwrap()
    }

    /// Writes another configuration and requests a reload. Returns what the router logged about it.
    pub fn reload(&self, config: &str) -> String {
        std::fs::write(self.path(CONFIG_FILE), config).unwrap();
        let before = self.read("stderr").len();
        sh(&format!("kill -HUP {}", self.process.0.id()));
        let log = || self.read("stderr")[before..].to_owned();
        let ends = ["the configuration is active", "has not changed", "stays active"];
        until("a reload", || ends.iter().any(|end| log().contains(end)));
        log()
    }

    /// Says whether the router runs.
    pub fn lives(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_none()
    }

    /// Stops the router as an init system would. Returns what it printed.
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

    /// Returns the processor time that the router has used, in clock ticks of 1/100 s.
    pub fn cpu_clocks(&self) -> u64 {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", self.process.0.id())).unwrap();
        let fields: Vec<&str> = stat.split_whitespace().collect();
        fields[13].parse::<u64>().unwrap() + fields[14].parse::<u64>().unwrap()
    }

    /// Returns how often its threads have waited.
    fn wakes(&self) -> u64 {
        let threads = std::fs::read_dir(format!("/proc/{}/task", self.process.0.id())).unwrap();
        let of = |thread: std::io::Result<std::fs::DirEntry>| {
            let status = std::fs::read_to_string(thread.unwrap().path().join("status")).unwrap();
            let line =
                status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
            line.unwrap().trim().parse::<u64>().unwrap()
        };
        threads.map(of).sum()
    }
}

/// Asserts that an idle router sleeps: its threads wake less than 100 times a second, and 60 times for each worker, and
/// take less than 2% of a processor, plus one clock tick for the measurement. It is half of that where waking up costs
/// 20 us, not 50, and the compiler optimizes. One of many tries is enough, since other work makes each turn cost more.
pub fn sleeps(router: &Router) {
    const TRIES: usize = 12;
    const SECONDS: u64 = 3;
    const MOST_CLOCKS: u64 = 2 * SECONDS + 1;
    let most_wakes = (100 + 60 * u64::from(workers())) * SECONDS;
    let used = || {
        let before = (router.cpu_clocks(), router.wakes());
        std::thread::sleep(Duration::from_secs(SECONDS));
        (router.cpu_clocks() - before.0, router.wakes() - before.1)
    };
    let is_too_much = |(clocks, wakes): &(u64, u64)| *clocks > MOST_CLOCKS || *wakes > most_wakes;
    let looks: Vec<_> = (0..TRIES).map(|_| used()).take_while(is_too_much).collect();
    println!(
        "idle for {SECONDS} s at a time, it used too many clock ticks, or woke too often: {looks:?}"
    );
    assert!(looks.len() < TRIES, "{looks:?}");
}

/// The configuration of a router between two hosts, whose neighbours are all known.
pub const CONFIG: &str = r#"
[ports.a]
kind = "af_packet"
device = "ra"
mac = "02:00:00:00:00:0a"
addresses = ["10.0.1.1/24", "fd00:1::1/64"]

[ports.b]
kind = "af_packet"
device = "rb"
mac = "02:00:00:00:00:0b"
addresses = ["10.0.2.1/24", "fd00:2::1/64"]

[[neighbours]]
dev = "a"
address = "10.0.1.2"
mac = "02:00:00:00:01:02"

[[neighbours]]
dev = "a"
address = "fd00:1::2"
mac = "02:00:00:00:01:02"

[[neighbours]]
dev = "b"
address = "10.0.2.2"
mac = "02:00:00:00:02:02"

[[neighbours]]
dev = "b"
address = "fd00:2::2"
mac = "02:00:00:00:02:02"
"#;

/// Makes the two hosts of [`CONFIG`], with default routes and their router's Ethernet address.
pub fn two_hosts() -> (Host, Host) {
    sh("ip link set lo up");
    let (a, b) = (Host::new(), Host::new());
    a.plug("a", "02:00:00:00:01:02", ["10.0.1.2/24", "fd00:1::2/64"]);
    b.plug("b", "02:00:00:00:02:02", ["10.0.2.2/24", "fd00:2::2/64"]);
    for (host, device, gateways, mac) in [
        (&a, "ha", ["10.0.1.1", "fd00:1::1"], "02:00:00:00:00:0a"),
        (&b, "hb", ["10.0.2.1", "fd00:2::1"], "02:00:00:00:00:0b"),
    ] {
        for gateway in gateways {
            host.route(device, gateway, mac);
        }
    }
    (a, b)
}
