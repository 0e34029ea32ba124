//! A route that changes again and again, while streams, datagrams and pings use it: nothing is lost.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::Duration;

use crate::datagrams::Datagrams;
use crate::namespaces::{Process, ping, sh, unanswered, until};
use crate::router::Net;
use crate::running::Router;
use crate::transfer::Transfer;
use crate::variants::{PathVariant, TOLLWAY, ports, prepare, told, xdp_path_packets};

/// Addresses behind B.
const TARGETS: [&str; 2] = ["10.9.0.1", "fd09::1"];
const LENGTHS: [u8; 2] = [32, 128];
/// Traffic takes so long, and the route changes so often meanwhile, at such intervals: it ends where it began,
/// and so early that the last look finds traffic on a busy machine, too.
const SECONDS: u64 = 3;
const CHANGES: u8 = 4;
const INTERVAL: Duration = Duration::from_millis(350);
/// Pings of each kind, which take as long.
const PINGS: usize = 300;
/// Tries of each way.
const TRIES: usize = 3;

/// The gateways to the targets, by the first or the second cable between the router and B.
fn gateways(cable: u8) -> [String; 2] {
    [format!("10.0.{cable}.2"), format!("fd00:{cable}::2")]
}

/// Three ports, and routes to the targets by that cable.
fn config(cable: u8) -> String {
    let mut text = ports(1500);
    text += "[ports.c]\nkind = \"af_xdp\"\ndevice = \"rc\"\naddresses = [\"10.0.3.1/24\", \"fd00:3::1/64\"]\n";
    for ((target, length), via) in TARGETS.iter().zip(LENGTHS).zip(gateways(cable)) {
        let _ = write!(text, "[[routes]]\nto = \"{target}/{length}\"\nvia = \"{via}\"\n");
    }
    text
}

/// The kernel's routes alike.
fn kernel(cable: u8) {
    for (target, via) in TARGETS.iter().zip(gateways(cable)) {
        sh(&format!("ip route replace {target} via {via}"));
    }
}

/// A, the router and B with two cables to B.
fn network() -> Net {
    let net = Net::new(1500, 1);
    net.plug(&net.b, "c", "02:00:00:00:03:02", 3);
    prepare(&net);
    net.b.sh("ethtool -K hc gro on");
    net.b.sh("ip link set lo up");
    // It sends by the first cable and receives by both.
    net.b.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.hc.rp_filter=0");
    for (gateway, target) in ["10.0.2.1", "fd00:2::1"].iter().zip(TARGETS) {
        net.b.sh(&format!("ip route replace default via {gateway}"));
        net.b.sh(&format!("ip address add {target} dev lo"));
    }
    // What A sends again was lost: neither is it impatient, nor does it take another order for a loss.
    net.a.sh("sysctl -qw net.ipv4.tcp_sack=0 net.ipv4.tcp_reordering=100");
    for gateway in ["10.0.1.1", "fd00:1::1"] {
        net.a.sh(&format!("ip route replace default via {gateway} rto_min 5s"));
    }
    net
}

/// TCP segments that A has sent again.
fn sent_again(net: &Net) -> u64 {
    let told = net.a.sh("cat /proc/net/snmp");
    let mut lines = told.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let mut words = || lines.next().unwrap().split_whitespace();
    let at = words().position(|name| name == "RetransSegs").unwrap();
    words().nth(at).unwrap().parse().unwrap()
}

/// All that is under way.
struct Traffic<'a> {
    net: &'a Net,
    sent_again: u64,
    streams: Vec<Transfer>,
    datagrams: Vec<Datagrams>,
    pings: Vec<Process>,
}

impl<'a> Traffic<'a> {
    fn start(net: &'a Net) -> Self {
        let sent_again = sent_again(net);
        let addresses = |port| [format!("10.9.0.1:{port}"), format!("[fd09::1]:{port}")];
        let streams = addresses(7000).map(|to| Transfer::start_paced(net, &to, SECONDS)).into();
        let datagrams = addresses(7001).map(|to| Datagrams::start(net, &to, SECONDS)).into();
        let mut pings = Vec::new();
        for target in TARGETS {
            // Whole packets, and such of three fragments.
            for size in [56, 4000] {
                let line = ping(PINGS, &format!("-i 0.01 -s {size} {target}"));
                let mut ping = net.a.command(&line);
                pings.push(Process(ping.stdout(Stdio::piped()).spawn().unwrap()));
            }
        }
        Self { net, sent_again, streams, datagrams, pings }
    }

    /// What has become of all.
    fn finish(self) -> Vec<String> {
        let mut all = Vec::new();
        for mut ping in self.pings {
            let told = std::io::read_to_string(ping.0.stdout.take().unwrap()).unwrap();
            let lost = unanswered(&told, PINGS).len();
            all.push(format!("{lost} of {PINGS} pings were lost"));
        }
        all.extend(self.datagrams.into_iter().map(Datagrams::finish));
        self.streams.into_iter().for_each(Transfer::finish);
        all.push(format!("{} segments sent again", sent_again(self.net) - self.sent_again));
        all
    }
}

/// Traffic while the route changes by the kernel alone, or by the kernel and Tollway.
fn see(net: &Net, router: Option<&Router>, variant: Option<PathVariant>) -> Vec<String> {
    // The first change leads to neighbours that nobody knows.
    sh("ip neigh flush dev rc");
    let both = || ["hb", "hc"].map(|device| net.b.counts(device)[0]);
    let traffic = Traffic::start(net);
    let mut before = both();
    for change in 1..=CHANGES {
        std::thread::sleep(INTERVAL);
        let after = both();
        let grown = [after[0] - before[0], after[1] - before[1]];
        let [used, other] = if change % 2 == 1 { grown } else { [grown[1], grown[0]] };
        assert!(used > 1 << 17 && other < 10_000, "{variant:?}, before change {change}: {grown:?}");
        let cable = if change % 2 == 1 { 3 } else { 2 };
        kernel(cable);
        if let (Some(router), Some(variant)) = (router, variant) {
            let told = router.reload(&variant.config(&config(cable)));
            assert!(told.contains("is active"), "{told}");
        }
        // What was on its way is there.
        std::thread::sleep(Duration::from_millis(20));
        before = both();
    }
    traffic.finish()
}

/// The test.
pub fn routes() {
    let net = network();
    // New cables lose what comes too early.
    for cable in [3, 2] {
        kernel(cable);
        for target in TARGETS {
            let ping = format!("ping -n -c 1 -W 1 {target}");
            until("an answer", || told(&net.a, &ping).contains(" 0%"));
        }
    }
    let by_kernel = see(&net, None, None);
    let lost_nothing =
        ["0 of 300 pings were lost", "1500 of 1500 came back, 0 twice", "0 segments sent again"];
    let is_whole = |line: &String| lost_nothing.contains(&line.as_str());
    assert!(by_kernel.iter().all(is_whole), "by the kernel alone: {by_kernel:#?}");
    for variant in TOLLWAY {
        let mut tried = Vec::new();
        // While the worker has no processor the kernel forwards, and what comes then overtakes what the worker
        // still holds: where that is more than a hundred segments, A takes them for lost.
        let is_alike = |_| {
            let mut router = variant.start(&config(2));
            let mut seen = see(&net, Some(&router), Some(variant));
            let sent_again = seen.pop();
            assert_eq!(seen, by_kernel[..seen.len()], "{variant:?}, and before by the kernel");
            tried.push(sent_again);
            let taken = xdp_path_packets(&router);
            assert_eq!(
                taken > 0,
                variant == PathVariant::Xdp,
                "{taken} packets by the XDP path, {variant:?}"
            );
            let told = router.stop();
            let is_zero = |line: &str| line.split_whitespace().last() == Some("0");
            let dropped = told.lines().find(|line| line.starts_with("dropped "));
            // What a queue had no room for is told only where there is some.
            assert!(dropped.is_some_and(is_zero) && !told.contains("missed before rx"), "{told}");
            tried.last().unwrap().as_ref() == by_kernel.last()
        };
        assert!((0..TRIES).any(is_alike), "{variant:?}: {tried:?}, and before: {by_kernel:#?}");
    }
}
