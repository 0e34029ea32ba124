//! Tests that packets of the kernel path arrive, at any rate.

use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;

use super::namespaces::{sh, until};
use super::running::{KernelRouter, Net};

/// Packets to host B. With Tollway as many must arrive as with the kernel alone.
struct Load {
    /// Commands to run first.
    setup: &'static [&'static str],
    /// Options of `tollway lab generate`.
    sends: &'static str,
    packets: u64,
    /// Number of frames that B receives for each packet.
    frames: u64,
}

/// Sends a load. Returns how many of its frames arrive.
fn deliver(net: &Net, mac: &str, load: &Load) -> u64 {
    let before = net.b.received("hb");
    let program = env!("CARGO_BIN_EXE_tollway");
    let Load { sends, packets, frames, .. } = load;
    net.a.sh(&format!("{program} lab generate -i ha -m {mac} --via xdp -n {packets} {sends}"));
    let arrived = || net.b.received("hb") - before;
    let (mut last, mut same) = (0, 0);
    until("the last frame", || {
        let now = arrived();
        same = if now == last { same + 1 } else { 0 };
        last = now;
        same > 5 || now >= packets * frames
    });
    last
}

/// Returns the Ethernet address of a device, as `ip` prints it.
pub fn mac_of(device: &str) -> String {
    let output = sh(&format!("ip -oneline link show dev {device}"));
    output.split("link/ether ").nth(1).unwrap().split(' ').next().unwrap().to_owned()
}

/// Asserts that as many frames arrive with Tollway as without. It tries again, since a busy machine
/// loses some.
fn carries(load: &Load) {
    let net = Net::new();
    // A veth takes redirected frames only if its peer has XDP or GRO.
    sh("ethtool -K ra gro on");
    sh("ip route add 198.18.0.0/15 via 10.0.2.2");
    load.setup.iter().for_each(|line| drop(sh(line)));
    net.a.pings(1, "10.0.2.2");
    let mac = mac_of("ra");
    let mut tried = Vec::new();
    for _ in 0..4 {
        let kernel = deliver(&net, &mac, load);
        let mut router = KernelRouter::start("ra rb");
        let ours = deliver(&net, &mac, load);
        tried.push((kernel, ours));
        let log = router.read("stderr");
        let punted = router.counts().punted;
        router.stop();
        if ours * 100 >= kernel * 99 {
            println!("{}: {tried:?}, {punted} by user space", load.sends);
            assert!(punted * 4 < load.packets, "{punted} by user space\n{log}");
            return;
        }
    }
    panic!("{}: of the kernel, of Tollway: {tried:?}", load.sends);
}

const FIB: [&str; 3] = [
    "nft add table ip f",
    "nft add chain ip f fw { type filter hook forward priority 0 ; }",
    "nft add rule ip f fw fib daddr type blackhole drop",
];

pub fn flows() {
    carries(&Load {
        setup: &FIB,
        sends: "--flows 64 -p 1-64 --rate 300kpps",
        packets: 150_000,
        frames: 1,
    });
}

pub fn flood() {
    let sends = "-d 198.18.0.0/16 -p 1-60000 --flows 60000 --rate 300kpps";
    carries(&Load { setup: &FIB, sends, packets: 150_000, frames: 1 });
}

pub fn shaped() {
    let setup = &["tc qdisc add dev rb root tbf rate 40gbit burst 100mb limit 100mb"];
    carries(&Load {
        setup,
        sends: "--flows 64 -p 1-64 --rate 300kpps",
        packets: 150_000,
        frames: 1,
    });
}

/// Does the same with 64 flows, at more than half a million packets per second.
fn carries_many(setup: &'static [&'static str]) {
    let sends = "--flows 64 -p 1-64 --rate 600kpps";
    carries(&Load { setup, sends, packets: 300_000, frames: 1 });
}

pub fn timed() {
    let setup = &[
        "nft add table ip f",
        "nft add set ip f s { type ipv4_addr ; flags timeout , dynamic ; timeout 1h ; }",
        "nft add chain ip f fw { type filter hook forward priority 0 ; }",
        "nft add rule ip f fw update @s { ip saddr } accept",
    ];
    carries_many(setup);
}

pub fn limited() {
    let setup = &[
        "nft add table ip f",
        "nft add chain ip f fw { type filter hook forward priority 0 ; }",
        "nft add rule ip f fw limit rate 10000000/second burst 10000000 packets accept",
        "nft add rule ip f fw drop",
    ];
    carries_many(setup);
}

/// Tests a tunnel that ends at host B.
pub fn tunnelled() {
    let setup = &[
        "ip link add name vx0 type vxlan id 5 dstport 4789 local 10.0.2.1 remote 10.0.2.2 dev rb",
        "ip address add 10.9.0.1/24 dev vx0",
        "ip link set vx0 up",
        "ip neigh replace 10.9.0.2 lladdr 02:00:00:00:00:99 dev vx0",
        "ip route replace 198.18.0.0/15 via 10.9.0.2",
    ];
    carries_many(setup);
}

pub fn fragments() {
    let setup = &["ip link set rb mtu 1300"];
    carries(&Load {
        setup,
        sends: "-s 1518 --flows 8 -p 1-8 --rate 50kpps",
        packets: 20_000,
        frames: 2,
    });
}

/// Tests new flows that all start at once. The XDP path knows none of them.
pub fn burst() {
    let sends = "-d 198.18.0.0/16 -p 1-60000 --flows 5000 --rate 312kpps";
    carries(&Load { setup: &[], sends, packets: 5000, frames: 1 });
}

/// The packets of a new flow stay in order while the flow enters the XDP path.
pub fn order() {
    const TRIALS: u16 = 40;
    // A busy machine may reorder a flow, lose some packets, and leave some to the kernel.
    const TRIES: u16 = 4;
    let net = Net::new();
    sh("ip route add 198.18.0.0/15 via 10.0.2.2");
    let router = KernelRouter::start("ra rb");
    router.forwards(&net.a, "10.0.2.2");
    let (mac, program) = (mac_of("ra"), env!("CARGO_BIN_EXE_tollway"));
    let mut tried = Vec::new();
    // At the lowest rate, a flow lasts longer than it waits for a pause in its packets.
    for (rate, least_by_xdp_path) in [("15kpps", 20), ("80kpps", 0), ("300kpps", 0)] {
        let is_good = (0..TRIES).any(|_| {
            let sink = format!("{program} lab sink -i hb --time 60 --json");
            let sink = net.b.command(&sink).stdout(Stdio::piped()).spawn().unwrap();
            until("a sink", || net.b.sh("ip -json link show dev hb").contains("\"xdp\""));
            let by_xdp_path = router.by_xdp_path();
            for trial in 0..TRIALS {
                let port = 1000 + TRIALS * tried.len() as u16 + trial;
                let sends = format!("--sport {port} -n 1000 --rate {rate}");
                net.a.sh(&format!("{program} lab generate -i ha -m {mac} --via xdp {sends}"));
            }
            std::thread::sleep(Duration::from_millis(100));
            sh(&format!("kill -INT {}", sink.id()));
            let report: Value =
                serde_json::from_slice(&sink.wait_with_output().unwrap().stdout).unwrap();
            let count = |name: &str| report[name].as_f64().unwrap() as u64;
            let (received, reordered) = (count("received_frames"), count("reordered_frames"));
            let by_xdp_path = router.by_xdp_path() - by_xdp_path;
            tried.push((rate, by_xdp_path, received, reordered));
            received * 10 > u64::from(TRIALS) * 1000 * 9
                && reordered <= 40
                && by_xdp_path >= u64::from(TRIALS) * least_by_xdp_path
        });
        assert!(is_good, "rate, by the XDP path, received, reordered: {tried:?}");
    }
    println!("rate, by the XDP path, received, reordered: {tried:?}");
}
