//! What a conversation's packets become, and what the kernel has of it.

use std::collections::BTreeSet;
use std::fmt::Debug;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;
use tollway_commands::control::ShowRequest;

use super::connections::{json, show};
use super::namespaces::{Host, patience, sh};
use super::running::{KernelRouter, by_kernel};
use super::talk::Talk;

/// How long packets are counted.
const WINDOW: Duration = Duration::from_millis(300);
/// After so long, the kernel has assured connections of UDP (`nf_conntrack_udp_packet`), and Tollway has asked for them.
const SETTLED: Duration = Duration::from_millis(3500);

/// Both engines of the tests. Scenes that come twice, with other rules or another protocol, are played by one each.
pub const ENGINES: [&str; 2] = ["xdp", "tc"];

/// Plays a scene by the kernel alone, and then with Tollway at these devices by each engine. What it returns must be the same.
/// The kernel has no rules and no connections before.
#[track_caller]
pub fn compared<T: Debug + PartialEq>(
    devices: &str,
    engines: &[&str],
    scene: impl Fn(Option<&KernelRouter>) -> T,
) {
    clear();
    let alone = scene(None);
    for engine in engines {
        clear();
        let mut router = KernelRouter::start(&format!("{devices} --engine {engine}"));
        let with = scene(Some(&router));
        assert_eq!(with, alone, "with the engine {engine}, and by the kernel alone");
        router.stop();
    }
}

fn clear() {
    sh("nft flush ruleset");
    sh("conntrack -F");
}

/// Loads rules from a text: of nft, or with `iptables-restore`.
pub fn load(program: &str, rules: &str) {
    let mut words = program.split_whitespace();
    let mut command = Command::new(words.next().unwrap());
    let mut process = command.args(words).stdin(Stdio::piped()).spawn().unwrap();
    std::io::Write::write_all(&mut process.stdin.take().unwrap(), rules.as_bytes()).unwrap();
    assert!(process.wait().unwrap().success(), "{program}: {rules}");
}

/// Packets within some time: of questions that have an answer, by Tollway, by the kernel.
#[derive(Clone, Copy, Debug)]
pub struct Share {
    answered: u64,
    tollway: u64,
    kernel: u64,
}

impl Share {
    fn of(router: &KernelRouter, talk: &mut Talk) -> Self {
        let before = (router.counts().sent, by_kernel());
        let answered = talk.answers_within(WINDOW);
        // Tollway counts packets of the XDP path with a delay.
        std::thread::sleep(Duration::from_millis(20));
        let (tollway, kernel) = (router.counts().sent - before.0, by_kernel() - before.1);
        Self { answered, tollway, kernel }
    }

    /// A question and its answer are a packet each, at least.
    const fn is_fast(self) -> bool {
        self.answered >= 5
            && self.tollway >= 2 * self.answered * 9 / 10
            && self.kernel * 5 <= self.tollway
    }

    const fn is_half_fast(self) -> bool {
        let most = self.answered * 9 / 10;
        self.answered >= 5 && self.kernel >= most && self.tollway >= most
    }

    const fn is_slow(self) -> bool {
        self.answered >= 5
            && self.kernel >= 2 * self.answered * 9 / 10
            && self.tollway * 5 <= self.kernel
    }
}

/// Waits until Tollway forwards nearly all packets of one direction of a conversation, and the kernel those of the other.
#[track_caller]
pub fn is_half_fast(router: Option<&KernelRouter>, talk: &mut Talk) {
    becomes(router, talk, "half on the kernel path", Share::is_half_fast);
}

/// Waits until Tollway forwards nearly all packets of a conversation, in both directions. It is the only one.
#[track_caller]
pub fn is_fast(router: Option<&KernelRouter>, talk: &mut Talk) {
    becomes(router, talk, "fast", Share::is_fast);
}

/// Asserts that the kernel forwards nearly all packets of a conversation, even when it has lasted for some time.
#[track_caller]
pub fn is_slow(router: Option<&KernelRouter>, talk: &mut Talk) {
    std::thread::sleep(SETTLED.saturating_sub(talk.age()));
    becomes(router, talk, "of the kernel path", Share::is_slow);
}

#[track_caller]
fn becomes(
    router: Option<&KernelRouter>,
    talk: &mut Talk,
    what: &str,
    is_so: impl Fn(Share) -> bool,
) {
    let Some(router) = router else { return };
    let (start, mut seen) = (Instant::now(), Vec::new());
    loop {
        let share = Share::of(router, talk);
        if is_so(share) {
            return;
        }
        seen.push(share);
        if start.elapsed() > patience() {
            let connections = show(router, "");
            let counts = router.show(&ShowRequest::Offload)["counts"].clone();
            let log = router.read("stderr");
            panic!("not {what}: {seen:?}\n{:?}\n{connections}\n{counts}\n{log}", talk.progress());
        }
    }
}

/// Waits until all connections are as they should, of those that `tollway show connections` selects by these words.
#[track_caller]
pub fn until_all(router: &KernelRouter, words: &str, count: usize, is_so: impl Fn(&Value) -> bool) {
    let start = Instant::now();
    loop {
        let all = json(router, words);
        if all.len() == count && all.iter().all(&is_so) {
            return;
        }
        assert!(start.elapsed() < patience(), "{words}:\n{}", show(router, words));
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// The path and the reason of each connection that `tollway show connections` selects by these words.
pub fn paths(router: &KernelRouter, words: &str) -> BTreeSet<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap().to_owned();
    let all = json(router, words);
    all.iter().map(|one| (text(&one["path"]), text(&one["reason"]))).collect()
}

/// What the kernel lists of its connections of TCP and UDP: all but times, and ports other than these.
pub fn entries(ports: &[u16]) -> Vec<String> {
    let list = sh("conntrack -L");
    let lines = list.lines().filter(|line| line.starts_with("tcp ") || line.starts_with("udp "));
    let mut lines: Vec<_> = lines.map(|line| entry(line, ports)).collect();
    lines.sort();
    lines
}

fn entry(line: &str, ports: &[u16]) -> String {
    let words = line.split_whitespace().enumerate();
    // Protocol by name and number, and the timeout.
    let words = words.filter(|(at, word)| ![1, 2].contains(at) && !word.starts_with("use="));
    let words = words.map(|(_, word)| match word.split_once('=') {
        Some((name @ ("sport" | "dport"), port)) if !ports.contains(&port.parse().unwrap()) => {
            format!("{name}=*")
        }
        _ => word.to_owned(),
    });
    words.collect::<Vec<_>>().join(" ")
}

/// A directory for files of servers, which all users may read.
pub fn directory() -> (tempfile::TempDir, PathBuf) {
    let dir = tempfile::tempdir().unwrap();
    sh(&format!("chmod 755 {}", dir.path().display()));
    let path = dir.path().to_owned();
    (dir, path)
}

/// Says whether a host can open a connection of TCP within a second.
pub fn reaches(host: &Host, address: &str) -> bool {
    let (address, port) = address.split_once(':').unwrap();
    let mut command = host.command("timeout 1 bash -c");
    command.arg(format!("exec 3<>/dev/tcp/{address}/{port}")).stderr(Stdio::null());
    command.status().unwrap().success()
}

/// What `tollway check` says: its exit status and its answer.
pub fn check(words: &str) -> (i32, Value) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    let output = command.args(["check", "--json"]).args(words.split_whitespace()).output().unwrap();
    let answer = serde_json::from_slice(&output.stdout);
    (output.status.code().unwrap(), answer.unwrap_or_else(|error| panic!("{error}: {output:?}")))
}
