//! A route changes again and again while streams, datagrams and pings use it. Nothing is lost.

use std::fmt::Write as _;
use std::process::Stdio;
use std::time::Duration;

use crate::datagrams::Datagrams;
use crate::namespaces::{Process, ping, sh, unanswered, until};
use crate::router::Net;
use crate::running::Router;
use crate::transfer::Transfer;
use crate::variants::{PathVariant, TOLLWAY, output_of, ports, prepare, xdp_path_packets};

/// Addresses behind B.
const TARGETS: [&str; 2] = ["10.9.0.1", "fd09::1"];
const LENGTHS: [u8; 2] = [32, 128];
/// Duration of the traffic. Meanwhile the route changes `CHANGES` times at `INTERVAL`. It ends
/// where it began, and so early that the last measurement sees traffic on a busy machine too.
const SECONDS: u64 = 8;
const CHANGES: u8 = 4;
const INTERVAL: Duration = Duration::from_millis(350);
/// Number of pings of each kind. They take as long as the other traffic.
const PINGS: usize = 800;
/// Datagrams that a client sends in a second.
const DATAGRAMS_PER_SECOND: u64 = 500;
/// Number of tries of each variant.
const TRIES: usize = 3;

/// Returns the gateways to the targets on the first or second cable between the router and B.
fn gateways(cable: u8) -> [String; 2] {
    [format!("10.0.{cable}.2"), format!("fd00:{cable}::2")]
}

/// Returns a configuration with three ports, and routes to the targets on a cable.
fn config(cable: u8) -> String {
    let mut text = ports(1500);
    text += "[ports.c]\nkind = \"af_xdp\"\ndevice = \"rc\"\naddresses = [\"10.0.3.1/24\", \"fd00:3::1/64\"]\n";
    for ((target, length), via) in TARGETS.iter().zip(LENGTHS).zip(gateways(cable)) {
        let _ = write!(text, "[[routes]]\nto = \"{target}/{length}\"\nvia = \"{via}\"\n");
    }
    text
}

/// Sets the same routes in the kernel.
fn kernel(cable: u8) {
    for (target, via) in TARGETS.iter().zip(gateways(cable)) {
        sh(&format!("ip route replace {target} via {via}"));
    }
}

/// Makes A, the router, and B with two cables to the router.
fn network() -> Net {
    let net = Net::new(1500, 1);
    net.plug(&net.b, "c", "02:00:00:00:03:02", 3);
    prepare(&net);
    net.b.sh("ethtool -K hc gro on");
    net.b.sh("ip link set lo up");
    // B sends on the first cable and receives on both.
    net.b.sh("sysctl -qw net.ipv4.conf.all.rp_filter=0 net.ipv4.conf.hc.rp_filter=0");
    for (gateway, target) in ["10.0.2.1", "fd00:2::1"].iter().zip(TARGETS) {
        net.b.sh(&format!("ip route replace default via {gateway}"));
        net.b.sh(&format!("ip address add {target} dev lo"));
    }
    // A sends again only what was lost: its timeout is long, and it does not take reordering for
    // loss.
    net.a.sh("sysctl -qw net.ipv4.tcp_sack=0 net.ipv4.tcp_reordering=100");
    for gateway in ["10.0.1.1", "fd00:1::1"] {
        net.a.sh(&format!("ip route replace default via {gateway} rto_min 5s"));
    }
    net
}

/// Returns the number of TCP segments that A has sent again.
fn sent_again(net: &Net) -> u64 {
    let output = net.a.sh("cat /proc/net/snmp");
    let mut lines = output.lines().filter_map(|line| line.strip_prefix("Tcp: "));
    let mut words = || lines.next().unwrap().split_whitespace();
    let at = words().position(|name| name == "RetransSegs").unwrap();
    words().nth(at).unwrap().parse().unwrap()
}

/// All traffic of a measurement.
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
            // Whole packets, and packets of three fragments.
            for size in [56, 4000] {
                let line = ping(PINGS, &format!("-i 0.01 -s {size} {target}"));
                let mut ping = net.a.command(&line);
                pings.push(Process(ping.stdout(Stdio::piped()).spawn().unwrap()));
            }
        }
        Self { net, sent_again, streams, datagrams, pings }
    }

    /// Waits for the end of all traffic. Returns the results.
    fn finish(self) -> Vec<String> {
        let mut all = Vec::new();
        for mut ping in self.pings {
            let output = std::io::read_to_string(ping.0.stdout.take().unwrap()).unwrap();
            let lost = unanswered(&output, PINGS).len();
            all.push(format!("{lost} of {PINGS} pings were lost"));
        }
        all.extend(self.datagrams.into_iter().map(Datagrams::finish));
        self.streams.into_iter().for_each(Transfer::finish);
        all.push(format!("{} segments sent again", sent_again(self.net) - self.sent_again));
        all
    }
}

/// Sends traffic while the route changes in the kernel alone, or in the kernel and Tollway.
fn see(net: &Net, router: Option<&Router>, variant: Option<PathVariant>) -> Vec<String> {
    // The first change leads to neighbours that the router has yet to resolve.
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
            let report = router.reload(&variant.config(&config(cable)));
            assert!(report.contains("is active"), "{report}");
        }
        // By now, packets that were on their way have arrived.
        std::thread::sleep(Duration::from_millis(20));
        before = both();
    }
    traffic.finish()
}

/// Compares the kernel alone with each variant of Tollway.
pub fn routes() {
    let net = network();
    // New cables lose packets that come too early.
    for cable in [3, 2] {
        kernel(cable);
        for target in TARGETS {
            let ping = format!("ping -n -c 1 -W 1 {target}");
            until("an answer", || output_of(&net.a, &ping).contains(" 0%"));
        }
    }
    let by_kernel = see(&net, None, None);
    let datagrams = DATAGRAMS_PER_SECOND * SECONDS;
    let lost_nothing = [
        format!("0 of {PINGS} pings were lost"),
        format!("{datagrams} of {datagrams} came back, 0 twice"),
        "0 segments sent again".to_owned(),
    ];
    let is_whole = |line: &String| lost_nothing.contains(line);
    assert!(by_kernel.iter().all(is_whole), "by the kernel alone: {by_kernel:#?}");
    for variant in TOLLWAY {
        let mut tried = Vec::new();
        // While the worker has no processor, the kernel forwards. Its packets then overtake those
        // that the worker still holds. If these are more than a hundred segments, A takes them for
        // lost.
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
            let summary = router.stop();
            let is_zero = |line: &str| line.split_whitespace().last() == Some("0");
            let dropped = summary.lines().find(|line| line.starts_with("dropped "));
            // The router prints this line only if a queue had no room.
            assert!(
                dropped.is_some_and(is_zero) && !summary.contains("missed before rx"),
                "{summary}"
            );
            tried.last().unwrap().as_ref() == by_kernel.last()
        };
        assert!((0..TRIES).any(is_alike), "{variant:?}: {tried:?}, and before: {by_kernel:#?}");
    }
}
