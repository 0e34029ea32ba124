//! Measures how long packets of a flow on the XDP path still pass after a command has forbidden
//! them.

pub mod behind;
pub mod file;
mod flow;
mod tcx;

use std::process::{Command, Stdio};
use std::time::Duration;

use tollway_commands::control::ShowRequest;

use super::namespaces::{Process, sh, until};
use super::running::{KernelRouter, Net};
use flow::Flow;
pub use flow::role;

/// Limit for changes that the kernel reports by an event.
const REPORTED: Duration = Duration::from_millis(10);
/// Limit for the median of these changes.
const REPORTED_MEDIAN: Duration = Duration::from_millis(1);
/// Limit for changes without an event, which the controller polls.
const POLLED: Duration = Duration::from_millis(100);
/// Number of tries, since a busy machine may be slow once.
const TRIES: usize = 5;
/// Number of processes that only use processor time.
const BUSY: usize = 4;
const BUSY_LOAD: &str = "busy";

/// A change that stops the flow.
struct Change {
    name: &'static str,
    stop: How,
    limit: Duration,
}

/// How a change is made.
enum How {
    /// The first command stops the flow, the second lets it go on.
    Commands(&'static str, &'static str),
    /// A program at a device's ingress.
    Tcx,
}

const fn reported(name: &'static str, stop: &'static str, go: &'static str) -> Change {
    Change { name, stop: How::Commands(stop, go), limit: REPORTED }
}

const CHANGES: [Change; 13] = [
    reported(
        "a rule of nft",
        "nft add rule inet f fw udp dport 9 drop",
        "nft flush chain inet f fw",
    ),
    reported(
        "a rule of nft while others are read",
        "nft add rule inet o others udp dport 99 accept; sleep 0.005; nft add rule inet f fw udp dport 9 drop",
        "nft flush chain inet f fw; nft flush chain inet o others",
    ),
    reported(
        "an element of a set",
        "nft add element inet f s { 172.16.5.5 }",
        "nft delete element inet f s { 172.16.5.5 }",
    ),
    reported(
        "a blackhole",
        "ip route add blackhole 172.16.5.5/32",
        "ip route del blackhole 172.16.5.5/32",
    ),
    reported(
        "a route withdrawn",
        "ip route del 172.16.0.0/16",
        "ip route add 172.16.0.0/16 via 10.0.2.2",
    ),
    reported("ip rule", "ip rule add pref 100 iif ra blackhole", "ip rule del pref 100"),
    reported(
        "rp_filter",
        "sysctl -qw net.ipv4.conf.ra.rp_filter=1",
        "sysctl -qw net.ipv4.conf.ra.rp_filter=0",
    ),
    reported(
        "an address of its own",
        "ip address add 172.16.5.5/32 dev lo",
        "ip address del 172.16.5.5/32 dev lo",
    ),
    reported("ip_forward", "sysctl -qw net.ipv4.ip_forward=0", "sysctl -qw net.ipv4.ip_forward=1"),
    reported(
        "a neighbour",
        "ip neigh replace 10.0.2.2 lladdr 02:00:00:00:77:77 dev rb nud permanent",
        "ip neigh del 10.0.2.2 dev rb",
    ),
    Change {
        name: "iptables-legacy",
        stop: How::Commands(
            "iptables-legacy -A FORWARD -p udp -j DROP",
            "iptables-legacy -F FORWARD",
        ),
        limit: POLLED,
    },
    Change {
        name: "an element of an ipset",
        stop: How::Commands("ipset add listed 172.16.5.5", "ipset del listed 172.16.5.5"),
        limit: POLLED,
    },
    Change { name: "a program of tcx", stop: How::Tcx, limit: POLLED },
];

/// What ends a change: a command, or the link, when it is dropped.
enum Undo {
    Command(&'static str),
    Link(#[expect(dead_code, reason = "it is there to be dropped")] tcx::Link),
}

impl Change {
    /// Makes the change. Returns the time at which it was done, in ns, and how to undo it.
    fn make(&self) -> (u64, Undo) {
        let undo = match self.stop {
            How::Commands(stop, go) => {
                run(stop);
                Undo::Command(go)
            }
            How::Tcx => Undo::Link(tcx::drop_all("ra")),
        };
        (flow::now_ns(), undo)
    }
}

/// Runs commands one after the other.
fn run(commands: &str) {
    commands.split("; ").for_each(|command| drop(sh(command)));
}

/// A router and a flow, which the kernel and Tollway forward alike until a change.
struct Bench {
    router: KernelRouter,
    flow: Flow,
    _net: Net,
}

impl Bench {
    fn new() -> Self {
        let net = Net::new();
        net.a.sh("ip address add 198.51.100.7/32 dev lo");
        net.b.sh("ip address add 172.16.5.5/32 dev lo");
        sh("ip route add 172.16.0.0/16 via 10.0.2.2");
        // The route to the source leads to another device than the flow comes from, which fails
        // rp_filter.
        sh("ip route add 198.51.100.0/24 via 10.0.2.2");
        sh("nft add table inet f");
        sh("nft add set inet f s { type ipv4_addr ; }");
        sh("nft add chain inet f first { type filter hook forward priority -1 ; }");
        sh("nft add rule inet f first ip daddr @s drop");
        sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
        sh("nft add table inet o");
        sh("nft add chain inet o others { type filter hook input priority 0 ; }");
        sh("ipset create listed hash:ip");
        sh("iptables-nft -A FORWARD -m set --match-set listed dst -j DROP");
        let router = KernelRouter::start("ra rb");
        flow::hurry();
        let flow = Flow::start((&net.a, "198.51.100.7"), (&net.b, "172.16.5.5"));
        Self { router, flow, _net: net }
    }

    /// Waits until the flow is on the XDP path.
    fn flows(&self) {
        let mut tried = Vec::new();
        until("the flow to be on the XDP path", || {
            let before = (self.router.by_xdp_path(), self.flow.packets());
            std::thread::sleep(Duration::from_millis(50));
            let now = (self.router.by_xdp_path(), self.flow.packets());
            let goes = now.0 > before.0 + 200 && now.1 > before.1 + 200;
            tried.push((now.0 - before.0, now.1 - before.1));
            assert!(
                tried.len() < 200 || goes,
                "{tried:?}\n{}",
                self.router.show(&ShowRequest::All)
            );
            goes
        });
    }

    /// Returns how long the flow goes on after a change.
    fn leak(&self, change: &Change) -> Duration {
        self.flows();
        let (done_ns, undo) = change.make();
        let last_ns = self.flow.last_ns();
        match undo {
            Undo::Command(line) => run(line),
            Undo::Link(_) => {}
        }
        Duration::from_nanos(last_ns.saturating_sub(done_ns))
    }
}

/// Starts processes that use processor time until they are dropped.
pub fn busy() -> Vec<Process> {
    let spin = |_| {
        let mut command = Command::new("chrt");
        command.args(["-o", "0", "sh", "-c", "while :; do :; done"]).stdin(Stdio::null());
        Process(command.spawn().unwrap())
    };
    (0..BUSY).map(spin).collect()
}

/// Returns how often to make each change, from the environment variable `TOLLWAY_LEAKS`.
fn repeats() -> Option<usize> {
    std::env::var("TOLLWAY_LEAKS").ok()?.parse().ok()
}

/// Makes a change `repeats` times and prints the results. Says whether they are within the limit.
fn is_within(bench: &Bench, change: &Change, repeats: usize, load: &str) -> bool {
    let mut leaks: Vec<_> = (0..repeats).map(|_| bench.leak(change)).collect();
    leaks.sort_unstable();
    let (median, worst) = (leaks[repeats / 2], leaks[repeats - 1]);
    println!("{}, {load}: packets for {median:?} (median), {worst:?} (at most)", change.name);
    let is_median_good = change.limit == POLLED || load == BUSY_LOAD || median <= REPORTED_MEDIAN;
    worst <= change.limit && is_median_good
}

fn is_wanted(change: &Change) -> bool {
    std::env::var("TOLLWAY_LEAKS_OF").map_or(true, |name| change.name.contains(&name))
}

/// Measures on an idle machine.
pub fn idle() {
    test_all(&Bench::new(), 3, "idle");
}

/// Measures while four busy loops use the processors.
pub fn loaded() {
    let bench = Bench::new();
    // This test measures how late a change is, not how late packets are.
    sh(&format!("chrt -f -p 5 {}", bench.router.process.0.id()));
    let _busy = busy();
    test_all(&bench, 1, BUSY_LOAD);
}

fn test_all(bench: &Bench, usual: usize, load: &str) {
    let late: Vec<_> = CHANGES
        .iter()
        .filter(|change| {
            let (repeats, tries) = repeats().map_or((usual, TRIES), |repeats| (repeats, 1));
            is_wanted(change) && !(0..tries).any(|_| is_within(bench, change, repeats, load))
        })
        .map(|change| change.name)
        .collect();
    assert!(late.is_empty(), "{load}: {late:?} go on for too long");
}
