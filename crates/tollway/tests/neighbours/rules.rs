//! Tollway follows the kernel's firewall, with the real nft.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use tollway_dataplane::epoch::Epochs;
use tollway_dataplane::stages::filter::Filter;
use tollway_firewall::ir::{Elements, Ruleset};
use tollway_firewall::links::Link;
use tollway_firewall::program;
use tollway_rules::{self as rules, Event, Follower, Reading};

use super::namespaces::{Process, sh};

/// Longer than anything here takes.
pub const PATIENCE: Duration = Duration::from_secs(15);
/// By then, changes that were lost or came all at once are active.
pub const SOON: Duration = Duration::from_secs(3);

/// A consumer that installs what a follower reports.
pub struct Consumer {
    follower: Follower,
    events: Receiver<Event>,
    /// The rules that the follower read last, and the filter compiled from them.
    rules: Ruleset,
    /// The same for flows of known connections.
    connections: Ruleset,
    pub filter: Filter,
    /// The active generation; none while the kernel forwards.
    installed: Option<u32>,
    unreadable: Option<String>,
    needs_tracking: bool,
    pub counts: Counts,
    pub is_behind: bool,
    /// The last request to list sets of ipset that was answered.
    looked: u64,
}

/// Number of events of each kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub changed: usize,
    pub read: usize,
    pub elements: usize,
    pub behind: usize,
}

impl Consumer {
    pub fn new() -> Self {
        let (sender, events) = channel();
        Self::with_report(Box::new(move |event| drop(sender.send(event))), events)
    }

    pub fn with_report(report: rules::Report, events: Receiver<Event>) -> Self {
        Self {
            follower: Follower::start(report).unwrap(),
            events,
            rules: Ruleset::default(),
            connections: Ruleset::default(),
            filter: Filter::default(),
            installed: None,
            unreadable: None,
            needs_tracking: false,
            counts: Counts::default(),
            is_behind: false,
            looked: 0,
        }
    }

    /// Handles an event that arrives within some time. Returns whether there was one.
    pub fn take(&mut self, within: Duration) -> bool {
        match self.events.recv_timeout(within) {
            Ok(event) => self.handle_event(event),
            Err(RecvTimeoutError::Timeout) => return false,
            Err(RecvTimeoutError::Disconnected) => panic!("the follower has ended"),
        }
        true
    }

    fn handle_event(&mut self, event: Event) {
        match event {
            Event::Changed => {
                assert!(self.installed.take().is_some(), "reported twice");
                self.counts.changed += 1;
            }
            // The active rules stay valid; a router would leave packets to the kernel path.
            Event::Behind(is_behind) => {
                assert_ne!(is_behind, self.is_behind, "reported twice");
                self.counts.behind += usize::from(is_behind);
                self.is_behind = is_behind;
            }
            Event::Read(reading) => {
                let Reading { rules, needs, generation, .. } = &*reading;
                self.rules = (**rules).clone();
                self.connections = (*reading.connections).clone();
                self.filter = program::compile(rules, &[Link::default()], &Epochs::new()).unwrap();
                self.installed = Some(*generation);
                self.unreadable = None;
                self.needs_tracking = needs.tracking(true).is_some();
                self.counts.read += 1;
            }
            Event::Elements { generation, changes } => {
                assert!(self.installed.is_some(), "of rules that are not active");
                rules::apply(&self.filter, &changes).unwrap();
                self.installed = Some(generation);
                self.counts.elements += 1;
            }
            Event::Looked(number) => self.looked = number,
            Event::Unreadable(why) => {
                self.installed = None;
                self.unreadable = Some(why);
            }
        }
    }

    /// Waits until the kernel's current rules are active. Returns how long that took.
    pub fn sync(&mut self) -> Duration {
        let since = Instant::now();
        let kernels = rules::generation().unwrap();
        while self.installed.is_none_or(|known| !rules::is_reached(kernels, known)) {
            assert!(since.elapsed() < PATIENCE, "never active: {:?}", self.counts);
            self.take(Duration::from_millis(100));
        }
        since.elapsed()
    }

    /// Has the sets of ipset listed, and waits until changes are active. Says whether there are any sets.
    pub fn list_ipsets(&mut self) -> bool {
        let number = self.follower.look();
        let since = Instant::now();
        while self.looked < number {
            assert!(since.elapsed() < PATIENCE, "never listed: {:?}", self.counts);
            self.take(Duration::from_millis(100));
        }
        number > 0
    }

    /// The rules that the follower read last.
    pub const fn rules(&self) -> &Ruleset {
        &self.rules
    }

    /// The rules that the follower read last, for flows of known connections.
    pub const fn connections(&self) -> &Ruleset {
        &self.connections
    }

    /// The active rules with the current elements of their sets, in order.
    fn now(&self) -> Ruleset {
        let mut rules = self.rules.clone();
        rules.take_live_sets(&self.filter);
        for set in &mut rules.sets {
            // Only a consumer that has seen a set change knows that it may change.
            set.dynamic = false;
            if let Elements::Ranges(ranges) = &mut set.elements {
                ranges.sort_unstable();
            }
        }
        rules
    }

    /// Says whether the active rules equal those that a new consumer reads.
    pub fn is_like_another(&mut self) -> bool {
        let mut other = Self::new();
        other.sync();
        self.installed.is_some() && self.now() == other.now()
    }

    /// Asserts that the active rules equal those that a new consumer reads.
    pub fn check(&mut self) {
        self.sync();
        let mut other = Self::new();
        other.sync();
        assert_eq!(self.now(), other.now());
        assert_eq!(self.needs_tracking, other.needs_tracking);
    }
}

/// Runs a script with nft.
pub fn nft(script: &str) {
    let mut child =
        Command::new("nft").args(["-f", "-"]).stdin(Stdio::piped()).spawn().expect("nft is there");
    child.stdin.take().unwrap().write_all(script.as_bytes()).unwrap();
    assert!(child.wait().unwrap().success(), "{script}");
}

pub const TABLE: &str = "table inet t {
    set bad { type ipv4_addr; }
    set nets { type ipv4_addr; flags interval; }
    set merged { type ipv4_addr; flags interval; auto-merge; }
    set nets6 { type ipv6_addr; flags interval; }
    set ports { type inet_service; }
    set unused { type ipv4_addr; }
    chain c {
        type filter hook forward priority 0; policy accept;
        ip saddr @bad counter drop
        ip daddr @nets drop
        ip daddr @merged drop
        ip6 saddr @nets6 drop
        tcp dport @ports drop
    }
}
";

pub fn changes() {
    let mut consumer = Consumer::new();
    consumer.sync();
    assert!(consumer.rules.chains.is_empty() && consumer.counts.changed == 0);
    let devices = ["ip link add own0 type veth peer name own1", "ip link set own0 up"];
    devices.iter().for_each(|line| drop(sh(line)));
    let mut slowest = Duration::ZERO;
    for script in [
        TABLE,
        "add rule inet t c ip saddr 192.0.2.1 drop",
        "insert rule inet t c tcp dport 22 accept",
        "add chain inet t d; add rule inet t c jump d; add rule inet t d udp dport 53 drop",
        "add table netdev n; add chain netdev n i { type filter hook ingress device own0 priority 0; }; \
            add rule netdev n i ip protocol 47 drop",
        "add element inet t ports { 22, 80 }",
        "add chain inet t c { policy drop; }",
        "flush chain inet t c",
        "add table inet t { flags dormant; }",
        "add table inet t",
        "add rule inet t c ct state established accept",
        "delete table inet t",
        "flush ruleset",
    ] {
        let before = consumer.counts;
        nft(script);
        slowest = slowest.max(consumer.sync());
        assert_eq!(consumer.counts.changed, before.changed + 1, "{script}");
        consumer.check();
        assert_eq!(consumer.needs_tracking, script.contains("ct state"), "{script}");
    }
    assert!(slowest < Duration::from_secs(2), "{slowest:?}");
    assert!(consumer.rules.chains.is_empty());
    // A device's own chain, which the kernel deletes with the device.
    nft(
        "add table netdev n; add chain netdev n i { type filter hook ingress device own0 priority 0; }",
    );
    consumer.check();
    let chain = consumer.rules.chains[0].base.clone().unwrap();
    assert_eq!(chain.devices.len(), 1, "of whatever version nft is");
    let read = consumer.counts.read;
    consumer.follower.read_again();
    while consumer.counts.read == read {
        assert!(consumer.take(PATIENCE));
    }
    consumer.check();
}

/// Changes of rules for the host alone leave the rules for forwarding active.
pub fn apart() {
    nft(TABLE);
    nft(
        "table inet t { chain own { type filter hook input priority 0; }; chain called { }; chain late { }; }\n\
        add rule inet t own jump called; add rule inet t c meta mark 7 jump late",
    );
    let mut consumer = Consumer::new();
    consumer.sync();
    for (script, changes) in [
        ("add rule inet t own tcp dport 22 counter log accept", 0),
        ("add rule inet t called ip saddr { 192.0.2.1, 192.0.2.2 } drop", 0),
        ("add rule inet t own ip saddr @bad drop; add element inet t unused { 192.0.2.1 }", 0),
        ("flush chain inet t called", 0),
        ("add rule inet t late counter", 1),
        ("add rule inet t own ct state established accept", 1),
        ("add rule inet t own counter; add rule inet t c counter", 1),
        ("add rule inet t c jump called", 1),
        ("add rule inet t called counter", 1),
    ] {
        let before = consumer.counts;
        nft(script);
        let read = before.read + 1;
        while consumer.counts.read < read {
            assert!(consumer.take(PATIENCE), "{script}: it is read");
        }
        consumer.check();
        let changed = consumer.counts.changed - before.changed;
        assert_eq!(changed, changes, "{script}");
    }
}

pub fn storm() {
    nft(TABLE);
    let mut consumer = Consumer::new();
    consumer.sync();
    let cpu = || {
        let stat = std::fs::read_to_string("/proc/self/stat").unwrap();
        let fields: Vec<_> = stat.rsplit(") ").next().unwrap().split(' ').collect();
        // CPU ticks of this process and of those that it has waited for.
        fields[11..15].iter().map(|ticks| ticks.parse::<u64>().unwrap()).sum::<u64>()
    };
    let (ticks, began) = (cpu(), Instant::now());
    let mut changer = Process(
        Command::new("sh")
            .args([
                "-c",
                "i=0; while [ $i -lt 400 ]; do i=$((i+1)); \
                echo \"add rule inet t c tcp sport $i drop\"; sleep 0.01; done | nft -i",
            ])
            .stdout(Stdio::null())
            .spawn()
            .unwrap(),
    );
    while changer.0.try_wait().unwrap().is_none() {
        consumer.take(Duration::from_millis(50));
        assert!(began.elapsed() < Duration::from_secs(60));
    }
    let took = began.elapsed();
    let busy = Duration::from_millis((cpu() - ticks) * 10);
    let waited = consumer.sync();
    println!("{took:?} of changes, busy {busy:?}, then {waited:?}, {:?}", consumer.counts);
    assert!(waited < SOON, "{waited:?}");
    consumer.check();
    assert_eq!(consumer.rules.chains[0].rules.len(), 406);
}

pub fn many() {
    let mut script = TABLE.to_owned();
    for number in 0..10_000_u32 {
        let source = std::net::Ipv4Addr::from(0x0a00_0000 + number * 7);
        let port = 1 + number % 60_000;
        script += &format!("add rule inet t c ip saddr {source} tcp dport {port} counter drop\n");
    }
    let mut consumer = Consumer::new();
    consumer.sync();
    nft(&script);
    let took = consumer.sync();
    println!("10,000 rules are active after {took:?}");
    assert!(took < Duration::from_secs(10), "{took:?}");
    assert_eq!(consumer.rules.chains[0].rules.len(), 10_006);
}

/// A program called nft that is found before the real one.
fn stand_in(script: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("nft");
    std::fs::write(&file, format!("#!/bin/sh\n{script}\n")).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o755)).unwrap();
    dir
}

/// Runs this test program again in a role, with another nft.
fn with_path(dir: &std::path::Path, role: &str) {
    let path = format!("{}:{}", dir.display(), std::env::var("PATH").unwrap());
    let status = Command::new(std::env::current_exe().unwrap())
        .args(["--serve", role])
        .env("PATH", path)
        .status()
        .unwrap();
    assert!(status.success(), "{role}");
}

pub fn broken() {
    nft(TABLE);
    for (script, expected) in [
        ("echo hello", "not JSON"),
        ("echo '{}'", "no list"),
        ("echo '{\"nftables\": 7}'", "no list"),
        ("echo no more memory >&2; exit 1", "no more memory"),
        ("exit 1", "no reason"),
        ("kill -9 $$", "cannot list"),
        ("printf '\\377'", "UTF-8"),
    ] {
        let dir = stand_in(script);
        with_path(dir.path(), &format!("unreadable:{expected}"));
    }
    // The follower notices that nft works again.
    let dir = stand_in("test -e \"${0%/nft}/mended\" && exec /usr/sbin/nft \"$@\"; exit 1");
    with_path(dir.path(), &format!("mended:{}", dir.path().display()));
}

pub fn hanging() {
    nft(TABLE);
    let dir = stand_in("exec sleep 60");
    with_path(dir.path(), "hanging");
}

/// Roles of this program, which the tests above run with another nft.
pub fn role(role: &str) {
    let mut consumer = Consumer::new();
    match role.split_once(':') {
        Some(("unreadable", expected)) => {
            assert!(consumer.take(PATIENCE));
            let why = consumer.unreadable.clone().unwrap();
            assert!(why.contains(expected), "{why}");
            // The follower does not report it again and again.
            assert!(!consumer.take(Duration::from_millis(1500)));
        }
        Some(("mended", dir)) => {
            assert!(consumer.take(PATIENCE) && consumer.unreadable.is_some());
            std::fs::write(std::path::Path::new(dir).join("mended"), "").unwrap();
            consumer.sync();
            assert!(consumer.unreadable.is_none() && !consumer.rules.chains.is_empty());
        }
        _ => {
            std::thread::sleep(Duration::from_millis(300));
            let began = Instant::now();
            drop(consumer);
            assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
        }
    }
}

pub fn owned() {
    let mut consumer = Consumer::new();
    consumer.sync();
    let mut owner =
        Command::new("nft").arg("-i").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut input = owner.stdin.take().unwrap();
    let chain = "type filter hook forward priority 0; policy drop;";
    writeln!(input, "add table inet o {{ flags owner; }}").unwrap();
    writeln!(input, "add chain inet o c {{ {chain} }}").unwrap();
    let mut owner = Process(owner);
    let since = Instant::now();
    while consumer.rules.chains.is_empty() {
        assert!(since.elapsed() < PATIENCE);
        consumer.take(Duration::from_millis(100));
    }
    let generation = rules::generation().unwrap();
    owner.0.kill().unwrap();
    owner.0.wait().unwrap();
    while !consumer.rules.chains.is_empty() {
        assert!(since.elapsed() < PATIENCE, "rules that are gone stay active");
        consumer.take(Duration::from_millis(100));
    }
    assert_eq!(rules::generation().unwrap(), generation, "the kernel has reported it");
}

pub fn iptables() {
    let mut consumer = Consumer::new();
    sh("iptables-nft -A FORWARD -s 192.0.2.1 -j DROP");
    consumer.check();
    assert!(!consumer.needs_tracking && !consumer.filter.leaves_to_kernel());
    sh("iptables-nft -A FORWARD -m recent --set -j DROP");
    consumer.check();
    assert!(!consumer.needs_tracking && consumer.filter.leaves_to_kernel());
    sh("iptables-nft -A INPUT -m conntrack --ctstate NEW -j DROP");
    consumer.check();
    assert!(!consumer.needs_tracking, "it is about the host's own packets");
    sh("iptables-nft -A FORWARD -m conntrack --ctstate NEW -j DROP");
    consumer.check();
    assert!(consumer.needs_tracking);
    sh("iptables-nft -F");
    consumer.check();
    assert!(!consumer.needs_tracking);
    sh("iptables-nft -t nat -A POSTROUTING -j MASQUERADE");
    consumer.check();
    assert!(consumer.needs_tracking);
}
