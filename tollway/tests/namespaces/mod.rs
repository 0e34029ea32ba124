//! What the tests in network namespaces share: each starts its program again in a namespace of its own
//! (by `unshare`, which needs no root where user namespaces are allowed) and the hosts in further
//! ones. Nothing outside is touched, and what a test has made ends with it.

// Not every test program uses all of it.
#![allow(dead_code)]

use std::fs::File;
use std::io::{Read as _, Seek as _};
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

/// No single wait is longer.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// The same where this runs: a virtual machine that is emulated takes its time.
fn patience() -> Duration {
    if std::env::var_os("TOLLWAY_OUT").is_some() { 4 * PATIENCE } else { PATIENCE }
}

/// Tests of such names run beside the others of their program: a virtual machine takes minutes, and one
/// processor.
const BESIDE: &str = "_in_a_virtual_machine";
const UNSHARE: &str = "unshare (util-linux) is needed for this test";

/// The tests of a program by name; each runs in a network namespace of its own.
pub type Test = (&'static str, fn());

/// Runs the tests that the command line asks for, or one of them, inside, or another role.
///
/// `namespaces` is what root asks `unshare` for; `missing` says what a test lacks here.
pub fn main(
    tests: &[Test],
    namespaces: &str,
    missing: fn(&str) -> Option<&'static str>,
    role: impl Fn(&[&str]) -> ExitCode,
) -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words[..] {
        ["--inside", name] => {
            tests.iter().find(|(test, _)| *test == name).unwrap().1();
            ExitCode::SUCCESS
        }
        ["--list", ..] => {
            tests.iter().for_each(|(name, _)| println!("{name}: test"));
            ExitCode::SUCCESS
        }
        ["--serve" | "--ask", ..] => role(&words),
        _ => run_all(tests, namespaces, missing, &words),
    }
}

fn run_all(
    tests: &[Test],
    namespaces: &str,
    missing: fn(&str) -> Option<&'static str>,
    words: &[&str],
) -> ExitCode {
    let wanted: Vec<_> = words.iter().filter(|word| !word.starts_with('-')).collect();
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|w| name.contains(**w));
    let (mut passed, mut failed) = (0, 0);
    let mut told = |name: &str, status: ExitStatus| {
        println!("test {name} ... {}", if status.success() { "ok" } else { "FAILED" });
        *(if status.success() { &mut passed } else { &mut failed }) += 1;
    };
    let mut beside = Vec::new();
    for (name, _) in tests.iter().filter(|(name, _)| is_wanted(name)) {
        // A user may lack what only root can give; the machine that tests every change may not.
        if let Some(missing) = missing(name).filter(|_| std::env::var_os("CI").is_none()) {
            println!("test {name} ... left out: {missing}");
            continue;
        }
        // `unshare -Ur` works for root too, but gives less: a real root tests what users run.
        let mut command = inside(if is_root() { namespaces } else { "-Urn" }, name);
        if name.ends_with(BESIDE) {
            beside.push((name, Beside::start(command)));
            continue;
        }
        told(name, command.status().expect(UNSHARE));
    }
    for (name, process) in beside {
        told(name, process.wait());
    }
    if failed > 0 {
        println!("If unshare said why it failed: this test needs network namespaces.");
    }
    let result = if failed == 0 { "ok" } else { "FAILED" };
    println!("test result: {result}. {passed} passed; {failed} failed");
    ExitCode::from(failed)
}

/// What runs a test of this program inside namespaces of its own, by what `unshare` is asked for.
pub fn inside(namespaces: &str, test: &str) -> Command {
    let mut command = Command::new("unshare");
    command.args([namespaces, "--"]).arg(std::env::current_exe().unwrap());
    command.args(["--inside", test]);
    command
}

/// A process whose output is kept until it has ended.
struct Beside {
    process: Process,
    output: File,
}

impl Beside {
    fn start(mut command: Command) -> Self {
        let output = tempfile::tempfile().unwrap();
        let [one, other] = [(); 2].map(|()| output.try_clone().unwrap());
        let process = Process(command.stdout(one).stderr(other).spawn().expect(UNSHARE));
        Self { process, output }
    }

    fn wait(mut self) -> ExitStatus {
        let status = self.process.0.wait().unwrap();
        self.output.rewind().unwrap();
        std::io::copy(&mut self.output, &mut std::io::stdout()).unwrap();
        status
    }
}

/// Says whether this is a real root, or that of a namespace.
pub fn is_root() -> bool {
    std::fs::read_to_string("/proc/self/status").unwrap().contains("\nUid:\t0\t0\t")
}

/// What a test in network namespaces lacks, where an ordinary user may not make them.
pub fn lacks_namespaces() -> Option<&'static str> {
    let made = || Command::new("unshare").args(["-Urn", "true"]).status();
    (!is_root() && !made().is_ok_and(|status| status.success()))
        .then_some("this user may not make network namespaces (user.max_net_namespaces)")
}

/// Runs a command that must succeed; what it printed.
pub fn sh(line: &str) -> String {
    let mut words = line.split_whitespace();
    let output = Command::new(words.next().unwrap()).args(words).output().unwrap();
    let told = String::from_utf8_lossy(&output.stdout).into_owned();
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{line}: {told}{error}");
    told
}

/// Waits for something, with bounds.
pub fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < patience(), "waited in vain: {what}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The number of a device of this namespace.
pub fn ifindex(device: &str) -> u32 {
    number(&sh(&show(device)))
}

fn show(device: &str) -> String {
    format!("ip -oneline link show dev {device}")
}

fn number(shown: &str) -> u32 {
    shown.split(':').next().unwrap().parse().unwrap()
}

/// The command that pings until so many answers are there and some more, one ping soon after the other: the
/// answers to the first `count` are what counts.
///
/// By a count alone ping waits for the last answer no longer than one interval, or twice the longest time so
/// far, which is too short on a busy machine. With a deadline it goes on asking meanwhile; but it ends with
/// the last answer that it needs, and one that the kernel has forwarded overtakes those that a worker
/// without a processor still holds.
pub fn ping(count: usize, arguments: &str) -> String {
    const MORE: usize = 5;
    format!("ping -n -c {} -w {} -i 0.02 {arguments}", count + MORE, PATIENCE.as_secs())
}

/// Which of the first `count` pings were not answered, by what ping said.
pub fn unanswered(told: &str, count: usize) -> Vec<usize> {
    let is_lost = |number: &usize| {
        let number = format!(" icmp_seq={number} ");
        !told.lines().any(|line| line.contains("bytes from") && line.contains(&number))
    };
    (1..=count).filter(is_lost).collect()
}

/// A process that ends with its owner.
pub struct Process(pub Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a server that says when it is ready; it is.
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
    /// A new one.
    pub fn new() -> Self {
        let child = Command::new("unshare").args(["-n", "sleep", "600"]).spawn().unwrap();
        let namespace = |who: &str| std::fs::read_link(format!("/proc/{who}/ns/net")).ok();
        let pid = child.id().to_string();
        let host = Self(Process(child));
        until("a namespace for a host", || {
            namespace(&pid).is_some_and(|of| Some(of) != namespace("self"))
        });
        host
    }

    /// Runs a command there.
    pub fn sh(&self, line: &str) -> String {
        sh(&format!("nsenter -t {} -n {line}", self.0.0.id()))
    }

    /// The number of a device there.
    pub fn ifindex(&self, device: &str) -> u32 {
        number(&self.sh(&show(device)))
    }

    /// Pings from there, of which the first `count` must be answered; what was said.
    #[track_caller]
    pub fn pings(&self, count: usize, arguments: &str) -> String {
        let told = self.sh(&ping(count, arguments));
        assert!(unanswered(&told, count).is_empty(), "{told}");
        told
    }

    /// What it has counted of a device: received and sent bytes stand at 0 and 8, packets behind each.
    pub fn counts(&self, device: &str) -> Vec<u64> {
        // A program to read the file would take milliseconds to start.
        let text = std::fs::read_to_string(format!("/proc/{}/net/dev", self.0.0.id())).unwrap();
        let name = format!("{device}:");
        let line = text.lines().find_map(|line| line.trim().strip_prefix(&name)).unwrap();
        line.split_whitespace().map(|word| word.parse().unwrap()).collect()
    }

    /// Packets that it has received by a device.
    pub fn received(&self, device: &str) -> u64 {
        self.counts(device)[1]
    }

    /// A command there, not yet started.
    pub fn command(&self, line: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.0.id().to_string(), "-n", "--"]);
        command.args(line.split_whitespace());
        command
    }

    /// This program there, in another role.
    pub fn role(&self, role: &str, address: &str) -> Command {
        let mut command = Command::new("nsenter");
        command.args(["-t", &self.0.0.id().to_string(), "-n", "--"]);
        command.arg(std::env::current_exe().unwrap()).args([role, address]);
        command
    }

    /// Gives it a cable to an interface of this namespace, and addresses.
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

    /// A default route, by a gateway whose Ethernet address is known.
    pub fn route(&self, device: &str, gateway: &str, mac: &str) {
        self.sh(&format!("ip neigh replace {gateway} lladdr {mac} dev {device} nud permanent"));
        self.sh(&format!("ip route add default via {gateway} dev {device}"));
    }
}
