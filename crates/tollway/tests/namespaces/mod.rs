//! Shared parts of the tests in network namespaces. Each test starts its program again in a
//! namespace of its own (with `unshare`, which needs no root where user namespaces are allowed),
//! and the hosts in further ones. A test touches nothing outside, and everything that it makes ends
//! with it.

// Not every test program uses all of this module.
#![allow(dead_code)]

#[allow(dead_code, reason = "some test programs need no TUN device")]
pub mod tun;

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// The longest time of a single wait.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// Returns the longest wait for this machine: an emulated machine takes more time.
pub fn patience() -> Duration {
    if std::env::var_os("TOLLWAY_OUT").is_some() { 4 * PATIENCE } else { PATIENCE }
}

/// Tests whose names end like this run beside all others of their program: a virtual machine takes
/// minutes, and one processor.
const MACHINE: &str = "_in_a_virtual_machine";
/// Number of tests that run side by side: they mostly wait.
const SIDE_BY_SIDE: usize = 4;
/// The output names tests that take longer.
const LONG: Duration = Duration::from_secs(5);
/// Time between two checks whether a test has ended.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const UNSHARE: &str = "unshare (util-linux) is needed for this test";

/// A test's name and function. Each test runs in a network namespace of its own.
pub type Test = (&'static str, fn());

/// Names the tests to run: `beside` or `alone`; without it, all run. `scripts/test.sh` runs those of all
/// programs that mostly wait beside other work, and then those that measure.
const PART: &str = "TOLLWAY_TESTS";

/// The tests of a program.
pub struct Tests<'a> {
    /// Tests that mostly wait for conditions: several of them run side by side.
    pub beside: &'a [Test],
    /// Tests that measure times and rates, or take all processors: they run one after the other.
    pub alone: &'a [Test],
}

impl Tests<'_> {
    fn all(&self) -> impl Iterator<Item = &Test> {
        self.beside.iter().chain(self.alone)
    }
}

/// Runs the tests that the command line selects, or one of them inside its namespace, or another
/// role.
///
/// `namespaces` are the options that root passes to `unshare`; `missing` returns what a test lacks
/// here.
pub fn main(
    tests: &Tests,
    namespaces: &str,
    missing: fn(&str) -> Option<&'static str>,
    role: impl Fn(&[&str]) -> ExitCode,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--inside", name] => {
            tests.all().find(|(test, _)| *test == name).unwrap().1();
            ExitCode::SUCCESS
        }
        ["--list", ..] => {
            tests.all().for_each(|(name, _)| println!("{name}: test"));
            ExitCode::SUCCESS
        }
        ["--serve" | "--client" | "--role", ..] => role(&words),
        _ => run_all(tests, namespaces, missing, &words),
    }
}

fn run_all(
    tests: &Tests,
    namespaces: &str,
    missing: fn(&str) -> Option<&'static str>,
    words: &[&str],
) -> ExitCode {
    let (skipped, words): (Vec<_>, Vec<_>) = words.iter().enumerate().partition(|(at, _)| {
        // As in libtest: `--skip WORD`.
        at.checked_sub(1).is_some_and(|before| words[before] == "--skip")
    });
    let wanted: Vec<_> = words.iter().filter(|(_, word)| !word.starts_with('-')).collect();
    // An ordinary user may skip tests that need root; the machine that tests every change may not.
    let can_run = |name: &str| {
        let missing = missing(name).filter(|_| std::env::var_os("CI").is_none());
        missing.inspect(|missing| println!("test {name} ... left out: {missing}")).is_none()
    };
    let is_wanted = |name: &str| {
        (wanted.is_empty() || wanted.iter().any(|(_, word)| name.contains(**word)))
            && !skipped.iter().any(|(_, word)| name.contains(**word))
    };
    let part = std::env::var(PART).ok();
    let names = |tests: &[Test], own: &str| -> Vec<&'static str> {
        let is_part = part.as_ref().is_none_or(|part| part == own);
        let names = tests.iter().filter(|_| is_part).map(|(name, _)| *name);
        names.filter(|name| is_wanted(name) && can_run(name)).collect()
    };
    // `unshare -Ur` works for root too, but gives fewer rights. Users run Tollway as a real root.
    let unshared = if is_root() { namespaces } else { "-Urn" };
    let start = |name| Running::start(name, unshared);
    let (machines, beside): (Vec<_>, Vec<_>) =
        names(tests.beside, "beside").into_iter().partition(|name| name.ends_with(MACHINE));
    let machines: Vec<Running> = machines.into_iter().map(start).collect();
    let mut tally = Tally::default();
    run_side_by_side(beside, start, &mut tally);
    for name in names(tests.alone, "alone") {
        let start = Instant::now();
        let status = inside(unshared, name).status().expect(UNSHARE);
        tally.count_status(name, status, start);
    }
    machines.into_iter().for_each(|machine| tally.count(machine));
    tally.report()
}

fn run_side_by_side(
    names: Vec<&'static str>,
    start: impl Fn(&'static str) -> Running,
    tally: &mut Tally,
) {
    let mut waiting = names.into_iter();
    let mut running: Vec<Running> = Vec::new();
    loop {
        let free = SIDE_BY_SIDE - running.len();
        running.extend(waiting.by_ref().take(free).map(&start));
        if running.is_empty() {
            return;
        }
        match running.iter_mut().position(Running::has_ended) {
            Some(ended) => tally.count(running.remove(ended)),
            None => std::thread::sleep(POLL_INTERVAL),
        }
    }
}

/// How many tests passed and failed.
#[derive(Default)]
struct Tally {
    passed: u32,
    failed: u8,
}

impl Tally {
    /// Waits for a test, and prints its output and result.
    fn count(&mut self, test: Running) {
        let (name, start) = (test.name, test.start);
        let status = test.wait();
        self.count_status(name, status, start);
    }

    fn count_status(&mut self, name: &str, status: ExitStatus, start: Instant) {
        let is_passed = status.success();
        let took = start.elapsed();
        if took > LONG {
            println!("{name} took {} s", took.as_secs());
        }
        println!("test {name} ... {}", if is_passed { "ok" } else { "FAILED" });
        self.passed += u32::from(is_passed);
        self.failed += u8::from(!is_passed);
    }

    fn report(&self) -> ExitCode {
        let Self { passed, failed } = self;
        if *failed > 0 {
            println!("If unshare printed an error: this test needs network namespaces.");
        }
        let result = if *failed == 0 { "ok" } else { "FAILED" };
        println!("test result: {result}. {passed} passed; {failed} failed");
        ExitCode::from(*failed)
    }
}

/// Runs a command without the BPF file system of the machine, which has the names of routers that run there.
const WITHOUT_BPFFS: &str = "while umount /sys/fs/bpf 2>/dev/null; do :; done; exec \"$@\"";

/// Returns the command that runs a test of this program in namespaces, which are options of
/// `unshare`.
pub fn inside(namespaces: &str, test: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args([namespaces, "--"]);
    if namespaces.contains('m') {
        command.args(["sh", "-c", WITHOUT_BPFFS, "sh"]);
    }
    command.arg(std::env::current_exe().unwrap());
    command.args(["--inside", test]);
    command
}

/// A test whose output is kept until it has ended.
struct Running {
    name: &'static str,
    start: Instant,
    process: Process,
    output: File,
}

impl Running {
    fn start(name: &'static str, namespaces: &str) -> Self {
        let (start, output) = (Instant::now(), tempfile::tempfile().unwrap());
        let [one, other] = [(); 2].map(|()| output.try_clone().unwrap());
        let mut command = inside(namespaces, name);
        let process = Process(command.stdout(one).stderr(other).spawn().expect(UNSHARE));
        Self { name, start, process, output }
    }

    fn has_ended(&mut self) -> bool {
        self.process.0.try_wait().unwrap().is_some()
    }

    fn wait(mut self) -> ExitStatus {
        let status = self.process.0.wait().unwrap();
        self.output.rewind().unwrap();
        std::io::copy(&mut self.output, &mut std::io::stdout()).unwrap();
        status
    }
}

/// The number of workers that each router of the tests has: 1, or the environment variable `TOLLWAY_WORKERS`.
pub fn workers() -> u32 {
    std::env::var("TOLLWAY_WORKERS").map_or(1, |number| number.parse().unwrap())
}

/// The words with which `ip link add` makes a device with a queue for each worker, at least.
pub fn queues(least: u32) -> String {
    let queues = least.max(workers());
    format!("numrxqueues {queues} numtxqueues {queues}")
}

/// Says whether this is root, of the machine or of a user namespace.
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t0\t")
}

/// Returns what a test in network namespaces lacks, if an ordinary user may not make them.
pub fn lacks_namespaces() -> Option<&'static str> {
    let made = || Command::new("unshare").args(["-Urn", "true"]).status();
    (!is_root() && !made().is_ok_and(|status| status.success()))
        .then_some("this user may not make network namespaces (user.max_net_namespaces)")
}

/// Runs a command that must succeed. Returns what it printed.
pub fn sh(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {text}{error}");
    text
}

/// Waits until a condition holds, for a limited time.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// Returns the number of a device in this namespace.
pub fn ifindex(device: &str) -> u32 {
    number(&sh(&show(device)))
}

fn show(device: &str) -> String {
    format!("ip -oneline link show dev {device}")
}

fn number(shown: &str) -> u32 {
    shown.split(':').next().unwrap().parse().unwrap()
}

/// Returns the command that pings until it has `count` replies and a few more, at short intervals.
/// Only the replies to the first `count` requests matter.
///
/// With a count alone, ping waits for the last reply no longer than one interval, or twice the
/// longest time so far. That is too short on a busy machine. With a deadline, ping sends on
/// meanwhile, but ends with the last reply that it needs. A reply that the kernel has forwarded can
/// overtake those that a worker without a processor still holds.
pub fn ping(count: usize, arguments: &str) -> String {
    const MORE: usize = 5;
    format!("ping -n -c {} -w {} -i 0.02 {arguments}", count + MORE, PATIENCE.as_secs())
}

/// Returns which of the first `count` pings were not answered, from ping's output.
pub fn unanswered(output: &str, count: usize) -> Vec<usize> {
    let is_lost = |number: &usize| {
        let number = format!(" icmp_seq={number} ");
        !output.lines().any(|line| line.contains("bytes from") && line.contains(&number))
    };
    (1..=count).filter(is_lost).collect()
}

/// A process that is killed when this is dropped.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server, and waits until it reports that it is ready.
pub fn ready(command: &mut Command) -> Process {
    let mut server = Process(command.stdout(Stdio::piped()).spawn().unwrap());
    let mut word = [0; 5];
    server.0.stdout.as_mut().unwrap().read_exact(&mut word).unwrap();
    assert_eq!(word, *b"ready");
    server
}

/// A host: a network namespace, held by a process that sleeps in it.
pub struct Host(pub Process);

impl Host {
    /// Makes a host.
    pub fn new() -> Self {
        let child = Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap();
        let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
        let pid = child.id().to_string();
        let host = Self(Process(child));
        until("a namespace for a host", || {
            // The thread may be in another one than its process.
            namespace(&pid).is_some_and(|of| Some(of) != namespace("thread-self"))
        });
        host
    }

    /// Runs a command on the host. Returns what it printed.
    pub fn sh(&self, line: &str) -> String {
        sh(&format!("nsenter -t {} -n {line}", self.0.0.id()))
    }

    /// Returns the number of a device on the host.
    pub fn ifindex(&self, device: &str) -> u32 {
        number(&self.sh(&show(device)))
    }

    /// Pings from the host, and asserts replies to the first `count` requests. Returns ping's
    /// output.
    #[track_caller]
    pub fn pings(&self, count: usize, arguments: &str) -> String {
        let output = self.sh(&ping(count, arguments));
        assert!(unanswered(&output, count).is_empty(), "{output}");
        output
    }

    /// Returns the host's counts of a device: received bytes at 0, sent bytes at 8, packets behind
    /// each.
    pub fn counts(&self, device: &str) -> Vec<u64> {
        // Starting a program to read the file would take milliseconds.
        let text = std::fs::read_to_string(format!("/proc/{}/net/dev", self.0.0.id())).unwrap();
        let name = format!("{device}:");
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&name)).unwrap();
        line.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    /// Returns the number of packets that the host has received on a device.
    pub fn received(&self, device: &str) -> u64 {
        self.counts(device)[1]
    }

    /// Returns a command for the host, not yet started.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.0.id().to_string(), "-n", "--"]);
        command.args(line.split_whitespace());
        command
    }

    /// Returns a command that runs this program on the host, in another role.
    pub fn role(&self, role: &str, address: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.0.id().to_string(), "-n", "--"]);
        command.arg(std::env::current_exe().unwrap()).args([role, address]);
        command
    }

    /// Connects the host to this namespace with a veth pair, and configures the host's addresses.
    pub fn plug(&self, cable: &str, mac: &str, addresses: [&str; 2]) {
        sh(&format!("ip link add r{cable} type veth peer name h{cable}"));
        sh(&format!("ip link set h{cable} netns {} address {mac}", self.0.0.id()));
        sh(&format!("ip link set r{cable} up"));
        self.sh("ip link set lo up");
        for address in addresses {
            self.sh(&format!("ip address add {address} dev h{cable} nodad"));
        }
        self.sh(&format!("ip link set h{cable} up"));
    }

    /// Adds a default route by a gateway, and the gateway's Ethernet address.
    pub fn route(&self, device: &str, gateway: &str, mac: &str) {
        self.sh(&format!("ip neigh replace {gateway} lladdr {mac} dev {device} nud permanent"));
        self.sh(&format!("ip route add default via {gateway} dev {device}"));
    }
}
