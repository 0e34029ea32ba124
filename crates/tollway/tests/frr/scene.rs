//! A sender, a router with FRR, a peer that announces, and a host behind another route.

use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

use crate::namespaces::{Host, Process, sh, until};
use crate::running::{Net, plug};
use crate::speakers::Speakers;

/// A prefix that covers all announced ones; it leads to the peer itself.
const ANNOUNCED: &str = "20.0.0.0/6";
/// A destination behind host C, on a route that has nothing to do with BGP.
pub const ELSEWHERE: &str = "198.19.0.1";

/// The prefix with this number: /24s from 20.0.0.0 on.
pub fn prefix(number: usize) -> String {
    format!("{}.{}.{}.0/24", 20 + number / 65536, number / 256 % 256, number % 256)
}

/// What happens to routes when bgpd or its peer restarts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Restarts {
    /// The routes go with the session.
    Plain,
    /// The routes stay for a while (RFC 4724).
    Graceful,
}

impl Restarts {
    const fn lines(self) -> &'static str {
        match self {
            Self::Plain => "",
            Self::Graceful => " bgp graceful-restart\n bgp graceful-restart preserve-fw-state\n",
        }
    }
}

/// All hosts and daemons.
pub struct Scene {
    pub net: Net,
    pub c: Host,
    pub router: Speakers,
    pub peer: Speakers,
    restarts: Restarts,
    /// Number of prefixes that exist without BGP.
    others: usize,
    dir: TempDir,
}

impl Scene {
    /// Creates all hosts. The router's daemons run, the peer's do not yet.
    pub fn new(restarts: Restarts) -> Self {
        let net = Net::new();
        let c = Host::new();
        plug(&c, "c", 3);
        sh(&format!("ip route add {ELSEWHERE} via 10.0.3.2"));
        net.b.sh(&format!("ip route add local {ANNOUNCED} dev lo"));
        let dir = tempfile::tempdir().unwrap();
        sh(&format!("chmod 755 {}", dir.path().display()));
        let router = Speakers::new(dir.path().join("router"), None);
        let peer = Speakers::new(dir.path().join("peer"), Some(&net.b));
        let mut scene = Self { net, c, router, peer, restarts, others: prefixes(), dir };
        scene.router.start_zebra();
        scene.router.start_bgpd(&config(restarts, [65001, 65002], ["10.0.2.1", "10.0.2.2"], 0));
        scene
    }

    /// The directory for files.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }

    /// Starts the peer, which announces `count` prefixes.
    pub fn announce(&mut self, count: usize) {
        let config = config(self.restarts, [65002, 65001], ["10.0.2.2", "10.0.2.1"], count);
        self.peer.start_bgpd(&config);
    }

    /// Number of BGP routes in the kernel.
    pub fn routes(&self) -> usize {
        prefixes().saturating_sub(self.others)
    }

    /// Waits until the kernel has `count` BGP routes.
    pub fn until_routes(&self, count: usize, patience: Duration) {
        let start = Instant::now();
        while self.routes() < count {
            let (router, peer) = (&self.router, &self.peer);
            assert!(
                start.elapsed() < patience,
                "{} of {count} routes: {}{}",
                self.routes(),
                router.log(),
                peer.log()
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A configuration for bgpd.
fn config(restarts: Restarts, numbers: [u32; 2], addresses: [&str; 2], count: usize) -> String {
    let ([own, other], [from, to]) = (numbers, addresses);
    let mut config = format!(
        "router bgp {own}\n bgp router-id {from}\n no bgp ebgp-requires-policy\n \
         no bgp network import-check\n no bgp default ipv4-unicast\n{} \
         neighbor {to} remote-as {other}\n neighbor {to} timers connect 1\n \
         neighbor {to} advertisement-interval 0\n address-family ipv4 unicast\n  \
         neighbor {to} activate\n",
        restarts.lines()
    );
    config.extend((0..count).map(|number| format!("  network {}\n", prefix(number))));
    config
}

/// Number of prefixes in the kernel's table main.
///
/// A list of all routes would take the kernel longer than the callers can wait. Without policy
/// rules the tables local and main share one trie, which appears under both names.
fn prefixes() -> usize {
    let text = std::fs::read_to_string("/proc/self/net/fib_triestat").unwrap();
    let main = text.split_once("Main:").unwrap().1;
    let count = main.lines().find_map(|line| line.trim().strip_prefix("Prefixes:")).unwrap();
    count.trim().parse().unwrap()
}

/// The kernel's messages about routes, with times.
pub struct Witness {
    process: Process,
    file: std::path::PathBuf,
}

impl Witness {
    /// Starts to record messages.
    pub fn new(scene: &Scene) -> Self {
        let file = scene.path().join("witness");
        let output = std::fs::File::create(&file).unwrap();
        // `ip` stamps messages when it reads them, so it runs before everything else on the
        // machine.
        let mut ip = Command::new("chrt");
        ip.args(["-f", "1", "ip", "-4", "-rcvbuf", "100000000", "-ts", "monitor", "route"]);
        ip.env("TZ", "UTC");
        let process = Process(ip.stdin(Stdio::null()).stdout(output).spawn().unwrap());
        until("the witness to listen", || {
            let wanted = process.0.id().to_string();
            let sockets = std::fs::read_to_string("/proc/self/net/netlink").unwrap();
            sockets.lines().any(|line| line.split_whitespace().nth(2) == Some(&wanted))
        });
        Self { process, file }
    }

    /// When a route went and came since the recording started, as times of day in seconds.
    pub fn changes(&self, prefix: &str) -> Vec<(f64, bool)> {
        assert!(self.process.0.id() > 0);
        let text = std::fs::read_to_string(&self.file).unwrap();
        text.lines().filter_map(|line| change(line, prefix)).collect()
    }
}

/// Parses a line such as `[2026-01-31T23:59:58.123456] Deleted 20.0.0.0/24 ...`.
fn change(line: &str, prefix: &str) -> Option<(f64, bool)> {
    let (time, rest) = line.strip_prefix('[')?.split_once("] ")?;
    let (gone, rest) = match rest.strip_prefix("Deleted ") {
        Some(rest) => (true, rest),
        None => (false, rest),
    };
    let mut clock = time.split_once('T')?.1.split(':').map(|part| part.parse::<f64>().unwrap());
    let [hours, minutes, seconds] = [clock.next()?, clock.next()?, clock.next()?];
    (rest.split(' ').next() == Some(prefix))
        .then_some(((hours * 60.0 + minutes) * 60.0 + seconds, !gone))
}
